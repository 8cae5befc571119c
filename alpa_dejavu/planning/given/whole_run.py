"""The figures of a training of many steps by a plan: time, devices, money, bytes by link, and memory."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu.costs.communication import Group, link_bytes
from alpa_dejavu.layers.models import tokens_of_sample
from alpa_dejavu.planning.given.footing import phases, variants_of
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.problem import AxisCollectives, StageChoice, checks


@final
@dataclasses.dataclass(frozen=True)
class WholeRun:
    """The figures of a training of so many steps by a plan."""

    steps: int
    seconds: float  # the seconds of all steps, by the expected one
    deviation_s: float | None  # their standard deviation, as far as predictions err alike in all steps; None: unknown
    device_s: float  # the seconds of all devices of the hosts that the plan uses, which are paid for as a whole
    price: float | None  # what these hosts cost meanwhile, in US dollars; None where a host's price isn't known
    sent_bytes: Mapping[Ends, float]  # by the names of sending and receiving host; one with itself: among its devices
    host_bytes: Mapping[str, float]  # by the host's name, the peak of what its own memory keeps that plans offload
    device_bytes: float  # the peak of the fullest device's memory


def whole_run(planned: PlanningResult, steps: int) -> WholeRun:
    """Returns what a training of so many steps takes by a plan. Raises ValueError for no whole number of at least 1."""
    checks.count("whole_run", "steps", steps)
    plan, sure = planned.plan, planned.confidence
    used = set(plan.devices_of_hosts)
    devices = sum(host.num_devices for host in planned.cluster.hosts if host.name in used)
    kept: Counter[str] = Counter(dict.fromkeys(plan.devices_of_hosts, 0))
    for stage in plan.stages:
        if stage.offload is not None:
            for host in dict.fromkeys(stage.hosts):
                kept[host] += round(stage.offload.host_bytes * stage.submesh.devices_per_host)
    price = planned.price_per_step
    return WholeRun(
        steps=steps,
        seconds=steps * plan.expected_s,
        deviation_s=None if sure is None or not sure.deviation_s else steps * sure.deviation_s,
        device_s=steps * plan.expected_s * devices,
        price=None if price is None else steps * price,
        sent_bytes={ends: steps * num_bytes for ends, num_bytes in step_bytes(planned).items()},
        host_bytes=dict(kept),
        device_bytes=max(stage.memory_bytes for stage in plan.stages),
    )


def run_facts(run: WholeRun) -> list[tuple[str, str]]:
    """Returns the figures of a training as pairs of name and text, without the bytes of each link."""
    kept = [num_bytes for num_bytes in run.host_bytes.values() if num_bytes]
    return [
        ("training", f"{units.counted(run.steps, 'step')} in {units.hours(run.seconds, run.deviation_s)}"),
        ("device-hours", units.number(run.device_s / 3600)),
        ("price", "unknown: a host's file has no price_per_hour" if run.price is None else units.price(run.price)),
        ("memory of a device", f"at most {units.size(run.device_bytes)}"),
        ("memory of a host", f"at most {units.size(max(kept))} offloaded" if kept else "nothing is offloaded to it"),
    ]


def sent_rows(run: WholeRun) -> list[tuple[str, str, float]]:
    """Returns who sends how many bytes to whom in a training: first within each host, then from host to host; those
    that send as much stand together.
    """
    groups: dict[tuple[bool, str], list[tuple[str, str, float]]] = {}
    for (sender, receiver), num_bytes in run.sent_bytes.items():
        key = sender != receiver, units.traffic(num_bytes)
        groups.setdefault(key, []).append((sender, receiver, num_bytes))
    rows = []
    for (apart, _), alike in sorted(groups.items(), key=lambda group: group[0][0]):
        senders, receivers = (name_ranges(ends) for ends in list(zip(*alike, strict=True))[:2])
        pairs = f", {len(alike)} pairs" if alike[1:] else ""
        names = (senders, receivers + pairs) if apart else (f"devices of {senders}", "each other")
        rows.append((*names, alike[0][2]))
    return rows


def steps_of_samples(samples: int, batch: int) -> int:
    """Returns how many steps train so many samples, the last one perhaps a part of a batch.

    >>> steps_of_samples(1000, 256)
    4
    """
    checks.count("whole_run", "samples", samples)
    return math.ceil(samples / batch)


def steps_of_tokens(tokens: int, batch: int, model: str, length: int | None = None) -> int:
    """Returns how many steps train so many tokens, in samples of a length; None: the one that the model's name says.
    Raises ValueError if it says none.

    >>> steps_of_tokens(10**9, 1024, "gpt-1.3b")
    954
    """
    checks.count("whole_run", "tokens", tokens)
    length = length or tokens_of_sample(model)
    if length is None:
        raise ValueError(
            f"tokens is {tokens}, but must be left out for {model}, whose name doesn't say how many a sample has; give "
            "the number of steps or of samples, or if it is a function, the tokens of a sample (--sequence)"
        )
    return math.ceil(tokens / (batch * length))


Ends = tuple[str, str]
"""The names of the host that sends and of the one that receives; the same one: devices of one host."""


def step_bytes(planned: PlanningResult) -> dict[Ends, float]:
    """Returns the bytes that one step of a plan sends, by the hosts that send and receive, in the order of the cluster.

    It counts stages' collectives as rings for all micro-batches, those of forward passes again where they are computed
    again; gradients and parameters once; and all that goes from stage to stage, in equal parts between the hosts of
    both.
    """
    cluster, plan = planned.cluster, planned.plan
    numbers, total = cluster.host_numbers, defaultdict[tuple[int, int], float](float)
    for stage, choice in zip(plan.stages, planned.choices, strict=True):
        hosts = [numbers[name] for name in stage.hosts for _ in range(stage.submesh.devices_per_host)]
        for sent, times in _collectives(planned, choice):
            num_bytes = float(np.sum(sent.num_bytes * sent.counts)) * times
            for group in planned.space.config(choice).groups(sent.axis):
                on = tuple(hosts[n] for n in group)
                for hop, hop_bytes in link_bytes(sent.kind, num_bytes, Group(cluster, on)).items():
                    total[hop] += hop_bytes
    for hop, hop_bytes in _interstage(planned):
        total[hop] += hop_bytes
    names = [host.name for host in cluster.hosts]
    return {(names[a], names[b]): total[a, b] for a, b in sorted(total) if total[a, b] > 0}


def _collectives(planned: PlanningResult, choice: StageChoice) -> Iterator[tuple[AxisCollectives, int]]:
    """Yields the collectives of a stage, and how often each happens in a step."""
    costs, config = planned.table.stage_costs, planned.space.config(choice)
    assert costs is not None, "a table that was priced keeps its prices"
    division, shape = costs.division(config), costs.gradient_bytes.shape
    device = planned.table.devices[choice.submesh].kinds[0]
    recomputed = costs.exchanges_again(config, device, (choice.first, choice.last))
    for phase, times in phases(costs, planned.run):
        for sent in division.combined(phase):
            num_bytes, counts = (
                np.array([np.broadcast_to(array, shape)[choice.first, choice.last]])
                for array in (sent.num_bytes, sent.counts)
            )
            yield AxisCollectives(sent.kind, sent.axis, num_bytes, counts), times
        for variant in variants_of(costs, config, choice):
            again = phase == "forward" and bool(recomputed[variant])
            for sent in division.exchanges(variant, phase):
                yield sent, times * (2 if again else 1)


def _interstage(planned: PlanningResult) -> Iterator[tuple[tuple[int, int], float]]:
    """Yields what goes from stage to stage and back, by the hosts that send and receive."""
    if planned.table.transfer is None:
        return
    sent, numbers, plan = planned.table.transfer.bytes, planned.cluster.host_numbers, planned.plan
    stages = zip(plan.stages, planned.choices, plan.submesh_of, strict=True)
    for (before, _, old), (after, choice, new) in itertools.pairwise(stages):
        ends = itertools.product(dict.fromkeys(before.hosts), dict.fromkeys(after.hosts))
        pairs = [(numbers[a], numbers[b]) for a, b in ends]
        for a, b in pairs if old != new else ():
            count = planned.run.num_micro_batches / len(pairs)
            yield (a, b), float(sent.forward_bytes[choice.first]) * count
            yield (b, a), float(sent.backward_bytes[choice.first]) * count
