"""Why nothing fits: what is missing where, and the smallest changes that would help, each tried before it is named."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.phases import phase
from alpa_dejavu.clusters.changed_cluster import with_hosts
from alpa_dejavu.clusters.offload_choices import check_offload
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.planning.search._candidate import Costs
from alpa_dejavu.planning.search._priced_shapes import PricedShapes
from alpa_dejavu.planning.search._shapes import Shape
from alpa_dejavu.planning.search._stage_times import impossible
from alpa_dejavu.planning.task import Clock, GivenSpace, PlanningTask, SpaceRules
from alpa_dejavu.problem import Cluster, NoPlanError, Run
from alpa_dejavu.problem.run import ALPA_SCHEDULES
from alpa_dejavu.slicing import Dynamic

_MOST_TIMES, _MOST_DEVICES = 64, 1024
"""So many times the hosts, and so many devices, are tried at most."""


def nothing_fits(task: PlanningTask) -> NoPlanError:
    """Returns the error for a task that no plan fits, for the fewest layers and most micro-batches that stages can
    have: whether memory, the search space or the slicer is at fault, and what would help.
    """
    shapes, none = PricedShapes(task, Clock()), NoPlanError("there is no number of micro-batches")
    for count in reversed(task.micro_batches):
        try:
            costs = shapes.costs(task.layers[0], count)
        except NoPlanError as error:  # no submesh is for such micro-batches
            none = error
            continue
        return _no_plan(task, costs)
    return none


def _no_plan(task: PlanningTask, costs: Costs) -> NoPlanError:
    model, cluster, space, run, slicer = costs.model, costs.cluster, costs.space, costs.run, task.slicer
    if run.schedule not in ALPA_SCHEDULES:
        return NoPlanError(_under_schedule(model.num_layers, cluster, run))
    if slicer != Dynamic() and Dynamic().slice(costs.problem).found:
        return NoPlanError(f"{slicer} found no plan, but there are some; choose --slicer dynamic")
    any_number = costs.table.max_n_succ_stages * 0 + model.num_layers
    boundless = dataclasses.replace(costs.table, max_n_succ_stages=any_number)
    if slicer.slice(boundless.slicing_problem(cluster, space, run)).found:
        return _memory(task, costs)
    shapes = [(submesh.num_hosts, submesh.devices_per_host) for submesh in dict.fromkeys(space.submeshes)]
    limited = math.isfinite(space.allowed_imbalance)
    within = f" (stage_imbalance_tolerance={space.allowed_imbalance})" if limited else ""
    return NoPlanError(
        f"no choice of the submeshes {shapes} puts {model.num_layers} layers on "
        f"{'exactly' if space.hosts is None else 'at most'} {cluster.num_devices} devices{within}; allow other "
        f"submeshes{' or more imbalance' if limited else ''}, ask for fewer devices, or cut the model into more layers"
    )


def _under_schedule(num_layers: int, cluster: Cluster, run: Run) -> str:
    """Why nothing fits under a schedule that Alpa hasn't, which not every number of submeshes may have."""
    hindrances = {n: impossible(run, n, num_layers) for n in range(1, cluster.num_devices + 1)}
    possible = [n for n, why in hindrances.items() if not why]
    if not possible:
        number = min(2, cluster.num_devices)
        return (
            f"the schedule {run.schedule} isn't possible on {cluster.name}: on {number} of its devices "
            f"{hindrances[number]}; give another number of layers or micro-batches, more devices, or another schedule"
        )
    numbers = ", ".join(map(str, possible[:12])) + (" ..." if len(possible) > 12 else "")
    return (
        f"no plan under the schedule {run.schedule} fits {cluster.name}: with {num_layers} layers and "
        f"{run.num_micro_batches} micro-batches it may have {numbers} submeshes, and with so many none fills the hosts "
        "and has enough memory; give other numbers of layers or micro-batches, or a schedule that keeps less (v_half, "
        "v_min) or may have any number (zb_h1)"
    )


def _devices(cluster: Cluster, table: CostTable) -> str:
    """How much memory may be used of them; of unlike ones, those of which most may."""
    usable = [table.margin.usable_bytes(host) for host in cluster.hosts]
    best = int(np.argmax(table.usable_bytes))
    limit, whole = float(table.usable_bytes[best]), float(table.memory_limit_bytes[best])
    # What a runtime leaves of a device may be more or less than its machine file says.
    enough = min(limit, max(usable))
    count = sum(host.num_devices for host, own in zip(cluster.hosts, usable, strict=True) if own >= enough)
    left = f", of which {units.size(whole - limit)} are left free (--memory-margin)" if whole > limit else ""
    if count < cluster.num_devices:
        most = f"the {count} devices that have most (of {cluster.num_devices})"
    else:
        most = f"the {cluster.num_devices} devices"
    return f"{most} have {units.size(whole)} each{left}"


def _offload(cluster: Cluster, run: Run, table: CostTable) -> str:
    """Returns what offload would do, or why it doesn't do; empty where nothing is known of the hosts' memory."""
    if any(host.memory is None for host in cluster.hosts):
        return ""
    on_devices, on_hosts, count = [], [], run.in_flight(0)
    for s, row in enumerate(table.memory):
        for memory in row:
            if memory is None or memory.elsewhere is None:
                continue
            on_devices.append(float(table.margin.needed(memory).peak(count)[0, -1]))
            if on_devices[-1] <= table.usable_bytes[s]:
                limits, elsewhere = table.limits(s), memory.elsewhere
                for bytes_needed, has, where in (
                    (elsewhere.peak(count), limits.host_bytes, "of the host's memory"),
                    (elsewhere.nvme, limits.nvme_bytes, "of the drives"),
                ):
                    needed = float(bytes_needed[0, -1])
                    on_hosts += [(needed - has, needed, has, where)] if needed > has else []
    if not on_devices:
        least = min(host.memory.num_bytes for host in cluster.hosts if host.memory is not None)
        return f"each host has {units.size(least)} beside, to which stages may offload what they keep (--offload cpu)"
    if not on_hosts:
        return f"with offload all layers as one stage still need {units.size(min(on_devices))} on each device"
    _, needed, has, where = min(on_hosts)
    return (
        f"with offload all layers as one stage would fit on the devices, but need {units.size(needed)} {where} for "
        f"each, which has {units.size(has)} for each: add memory or drives to the hosts, or offload to drives as well "
        "(--offload auto)"
    )


def _memory(task: PlanningTask, costs: Costs) -> NoPlanError:
    table, run, num_layers = costs.table, costs.run, costs.model.num_layers
    limit = float(table.usable_bytes.max())
    least = np.full((num_layers, num_layers), np.inf)
    for row, own in zip(table.memory, table.usable_bytes.tolist(), strict=True):
        for memory in row:
            if memory is not None and own == limit and memory.elsewhere is None:
                least = np.minimum(least, table.margin.needed(memory).peak(run.in_flight(0)))
    alone = np.diag(least)
    worst = int(np.argmax(alone))
    parts = [
        f"the model doesn't fit into memory: {_devices(costs.cluster, table)}, and "
        f"all {num_layers} layers as one stage need {units.size(least[0, -1])} on each device of the best "
        f"submesh: {units.size(max(least[0, -1] - limit, 0.0))} are missing there"
    ]
    if alone[worst] > limit:
        missing = alone[worst] - limit
        parts.append(f"layer {worst} alone needs {units.size(alone[worst])}: {units.size(missing)} are missing")
    helps = [] if table.margin.residuals is None else [f"a larger risk than {100 * table.margin.risk:.2f} %"]
    if task.batch is None or run.num_micro_batches < task.batch:
        helps.append(f"more micro-batches (now {run.num_micro_batches})")
    if isinstance(task.space, GivenSpace):
        helps += ["remat (AutoLayerOption(remat_layer=True))", "AutoShardingOption(prefer_reduce_scatter=True)"]
    helps += ["more layers to cut between", "more or larger devices"]
    helps += ["a smaller memory margin"] if limit < table.memory_limit_bytes.max() >= alone[worst] else []
    advice = filter(None, (_offload(costs.cluster, run, table), f"what helps: {', '.join(helps)}"))
    return NoPlanError("; ".join(parts), advice="; ".join(advice))


def with_remedies(
    error: NoPlanError, task: PlanningTask, micro_batches: Sequence[int], layers: Sequence[int]
) -> NoPlanError:
    """Returns the error of a task that nothing fits, with the smallest changes that are enough, as flags of the command
    line, in place of advice that wasn't tried; or with those that aren't.

    The numbers of micro-batches and of layers are those that could be asked for in place of the task's, ascending.
    """
    traces, rules, default = task.source.traces, task.space, SpaceRules()
    assert isinstance(rules, SpaceRules), "a model by its name is planned by rules"

    def spaces(name: str, choices: Mapping[str, Any]) -> list[tuple[str, PlanningTask]]:
        changed = {word: dataclasses.replace(rules, **{name: value}) for word, value in choices.items()}
        return [(f"--{name} {word}", dataclasses.replace(task, space=space)) for word, space in changed.items()]

    offload = rules.offload == "none" and task.schedule in ALPA_SCHEDULES and _may_offload(task.cluster)
    changes: dict[str, list[tuple[str, PlanningTask]]] = {
        "more micro-batches": [
            (f"--micro-batches {count}", dataclasses.replace(task, micro_batches=(count,)))
            for count in (micro_batches if traces else ())
            if count > task.micro_batches[-1]
        ],
        "more layers": [
            (f"--layers {number}", dataclasses.replace(task, layers=(number,)))
            for number in (layers if traces else ())
            if number > task.layers[-1]
        ],
        "remat": spaces("remat", {"auto": default.remat} if set(rules.remat) != set(default.remat) else {}),
        "ZeRO": spaces("zero", {"auto": default.zero} if set(rules.zero) != set(default.zero) else {}),
        "offload": spaces("offload", {"cpu": "cpu", "auto": "auto"} if offload else {}),
    }
    enough, tried = list[str](), [kind for kind, options in changes.items() if options]
    for options in changes.values():
        enough += next(([flag] for flag, changed in options if _fits(changed)), [])
    hosts = _more_hosts(task)
    enough += [hosts] if hosts else []
    tried += [] if hosts is None else ["more hosts"]
    if enough:
        return NoPlanError(error.why, tuple(enough), f"tried, and enough: {' or '.join(enough)}")
    not_enough = f"tried, and not enough: {', '.join(tried)}" if tried else ""
    return NoPlanError(error.why, advice="; ".join(filter(None, (error.advice, not_enough))))


def _may_offload(cluster: Cluster) -> bool:
    try:
        check_offload("cpu", cluster)
    except ValueError:
        return False
    return True


def _more_hosts(task: PlanningTask) -> str | None:
    """Returns the flag for the least number of hosts, doubled, then halved; "" if none is enough, None if untried."""
    cluster = task.cluster
    own, devices = len(cluster.hosts), cluster.hosts[0].num_devices
    most = min(_MOST_TIMES * own, _MOST_DEVICES // devices)
    if task.unlike or cluster.shared or own >= most:
        return None

    def fits(count: int) -> bool:
        names = [f"{cluster.name} {n}" for n in range(own, count)]
        try:
            return _fits(task.on(with_hosts(cluster, dict.fromkeys(names, devices))))
        except ValueError:  # it isn't known what would join them
            return False

    low, high = own, min(2 * own, most)
    while not fits(high):
        if high >= most:
            return ""
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return f"--hosts {high}"


def _fits(task: PlanningTask) -> bool:
    """Whether there is a plan with the most layers, and the smallest micro-batches or those that a host can share."""
    phase(f"whether it fits on {units.counted(len(task.cluster.hosts), 'host')}")
    shapes, devices = PricedShapes(task, Clock()), task.cluster.hosts[0].num_devices
    shared = [count for count in task.micro_batches if task.micro_batch(count) >= devices]
    for count in dict.fromkeys((task.micro_batches[-1], *shared[-1:])):
        try:
            if shapes.candidate(Shape(task.layers[-1], count)) is not None:
                return True
        except NoPlanError:  # no submesh is for such micro-batches
            continue
    return False
