"""The bytes that a step of a plan sends over each link, within hosts and from host to host."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from alpa_dejavu.costs.communication import Group, link_bytes
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.problem import AxisCollectives, MeshConfig, StageChoice, StagePlan

__all__ = ["Ends", "step_bytes"]

Ends = tuple[str, str]
"""The names of the host that sends and of the one that receives; the same one: devices of one host."""


def step_bytes(planned: PlanningResult) -> dict[Ends, float]:
    """Returns the bytes that one step of a plan sends, by the hosts that send and receive, in the order of the cluster.

    It counts the collectives among the devices of each stage, as rings, for all micro-batches, those of forward passes
    again where they are computed again; those of gradients and parameters once; and all that goes from stage to stage,
    which crosses once, in equal parts between the hosts of both stages. Copies to a host's own memory aren't counted.
    """
    cluster, plan = planned.cluster, planned.plan
    numbers, found = cluster.host_numbers, defaultdict[tuple[int, int], float](float)
    for stage, choice in zip(plan.stages, planned.choices, strict=True):
        hosts = [numbers[name] for name in stage.hosts for _ in range(stage.submesh.devices_per_host)]
        for one, times in _collectives(planned, choice):
            total = float(np.sum(one.num_bytes * one.counts)) * times
            for group in choice_config(planned, choice).groups(one.axis):
                on = tuple(hosts[n] for n in group)
                for hop, each in link_bytes(one.kind, total, Group(cluster, on)).items():
                    found[hop] += each
    for hop, each in _interstage(planned):
        found[hop] += each
    names = [host.name for host in cluster.hosts]
    return {(names[a], names[b]): found[a, b] for a, b in sorted(found) if found[a, b] > 0}


def choice_config(planned: PlanningResult, choice: StageChoice) -> MeshConfig:
    """Returns the logical mesh, remat, ZeRO and offload of a chosen stage."""
    config = planned.space.configs[choice.submesh][choice.config]
    assert config is not None, "a slicer chose an entry that the search space doesn't offer"
    return config


def _collectives(planned: PlanningResult, choice: StageChoice) -> Iterator[tuple[AxisCollectives, int]]:
    """Yields the collectives of a stage, and how often each happens in a step."""
    costs, config = planned.table.stage_costs, choice_config(planned, choice)
    assert costs is not None, "a table that was priced keeps its prices"
    division, count = costs.division(config), planned.run.num_micro_batches
    recomputed = costs.exchanges_again(config, planned.table.devices[choice.submesh].kinds[0])
    for phase, times in (("forward", count), ("backward", count), ("step", 1)):
        if phase == "backward" and not costs.model.training:
            continue
        for one in division.combined(phase):
            shape = costs.gradient_bytes.shape
            of_range = [np.broadcast_to(each, shape)[choice.first, choice.last] for each in (one.num_bytes, one.counts)]
            yield AxisCollectives(one.kind, one.axis, np.array([of_range[0]]), np.array([of_range[1]])), times
        for variant in _variants(costs, config, choice):
            again = phase == "forward" and bool(recomputed[variant])
            for one in division.exchanges(variant, phase):
                yield one, times * (2 if again else 1)


def _variants(costs: StageCostModel, config: MeshConfig, choice: StageChoice) -> list[int]:
    of_stages = costs.division(config).of_stages
    if of_stages is None:
        return list(range(choice.first, choice.last + 1))
    return [int(n) for n in of_stages[choice.first, choice.last] if n >= 0]


def _interstage(planned: PlanningResult) -> Iterator[tuple[tuple[int, int], float]]:
    """Yields what goes from stage to stage and back, by the hosts that send and receive."""
    if planned.table.transfer is None:
        return
    sent, numbers, plan = planned.table.transfer.bytes, planned.cluster.host_numbers, planned.plan
    stages = list(zip(plan.stages, planned.choices, plan.submesh_of, strict=True))
    for (one, _, here), (other, choice, there) in itertools.pairwise(stages):
        pairs = [(numbers[a], numbers[b]) for a, b in itertools.product(_hosts(one), _hosts(other))]
        for a, b in pairs if here != there else ():
            count = planned.run.num_micro_batches / len(pairs)
            yield (a, b), float(sent.forward_bytes[choice.first]) * count
            yield (b, a), float(sent.backward_bytes[choice.first]) * count


def _hosts(stage: StagePlan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(stage.hosts))
