"""Why nothing fits: what is missing where, and what would help."""

from __future__ import annotations

import dataclasses

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.planning.search._chunks import impossible
from alpa_dejavu.problem import Cluster, Model, NoPlanError, Run, SearchSpace
from alpa_dejavu.problem.run import ALPA_SCHEDULES
from alpa_dejavu.slicing import Dynamic, Slicer


def no_plan(
    model: Model,
    cluster: Cluster,
    space: SearchSpace,
    run: Run,
    table: CostTable,
    slicing: Slicer,
    more_micro_batches: bool = True,
    in_alpa: bool = False,
) -> NoPlanError:
    """Returns the error for a planning problem that no plan solves; it says whether memory, the search space or the
    slicer is at fault, and what would help.

    Args:
        model: the layers, of a micro-batch.
        cluster: the hosts that stages may be on.
        space: the submeshes and configs that stages may have.
        run: the number of micro-batches, and the schedule.
        table: the costs and memory of all stages.
        slicing: the slicer that found no plan.
        more_micro_batches: whether the batch could be cut into more.
        in_alpa: whether layers and submeshes are Alpa's, whose options decide on them.
    """
    if run.schedule not in ALPA_SCHEDULES:
        return NoPlanError(_under_schedule(model, cluster, run))
    if slicing != Dynamic() and Dynamic().slice(table.slicing_problem(cluster, space, run)).found:
        return NoPlanError(f"{slicing} found no plan, but there are some; choose the slicer 'dynamic'")
    boundless = dataclasses.replace(table, max_n_succ_stages=np.full_like(table.max_n_succ_stages, model.num_layers))
    if slicing.slice(boundless.slicing_problem(cluster, space, run)).found:
        return _memory(model, cluster, run, table, more_micro_batches, in_alpa)
    shapes = [(submesh.num_hosts, submesh.devices_per_host) for submesh in dict.fromkeys(space.submeshes)]
    return NoPlanError(
        f"no choice of the submeshes {shapes} puts {model.num_layers} layers on "
        f"{'exactly' if space.hosts is None else 'at most'} {cluster.num_devices} devices "
        f"(stage_imbalance_tolerance={space.allowed_imbalance}); allow other submeshes or more imbalance, ask for "
        "fewer devices, or cut the model into more layers"
    )


def _under_schedule(model: Model, cluster: Cluster, run: Run) -> str:
    """Why nothing fits under a schedule that Alpa hasn't, which not every number of submeshes may have."""
    hindrances = {n: impossible(run, n, model.num_layers) for n in range(1, cluster.num_devices + 1)}
    possible = [n for n, why in hindrances.items() if not why]
    if not possible:
        number = min(2, cluster.num_devices)
        return (
            f"the schedule {run.schedule} isn't possible on {cluster.name}: on {number} of its devices "
            f"{hindrances[number]}; give another number of layers or micro-batches, more devices, or another schedule"
        )
    numbers = ", ".join(map(str, possible[:12])) + (" ..." if len(possible) > 12 else "")
    return (
        f"no plan under the schedule {run.schedule} fits {cluster.name}: with {model.num_layers} layers and "
        f"{run.num_micro_batches} micro-batches it may have {numbers} submeshes, and with so many none fills the hosts "
        "and has enough memory; give other numbers of layers or micro-batches, or a schedule that keeps less (v_half, "
        "v_min) or may have any number (zb_h1)"
    )


def _devices(cluster: Cluster, table: CostTable) -> str:
    """How much memory may be used of them; of unlike ones, those of which most may."""
    room = [table.margin.usable_bytes(host) for host in cluster.hosts]
    best = int(np.argmax(table.usable_bytes))
    limit, there = float(table.usable_bytes[best]), float(table.memory_limit_bytes[best])
    # What a runtime leaves of a device may be more or less than its machine file says.
    enough = min(limit, max(room))
    count = sum(host.num_devices for host, own in zip(cluster.hosts, room, strict=True) if own >= enough)
    free, whole = there - limit, f"{units.size(there)} each"
    left = f", of which {units.size(free)} are left free (memory_margin)" if free else ""
    if count < cluster.num_devices:
        return f"the {count} devices that have most (of {cluster.num_devices}) have {whole}{left}"
    return f"the {cluster.num_devices} devices have {whole}{left}"


def _offload(cluster: Cluster, run: Run, table: CostTable) -> str:
    """Returns what offload would do, or why it doesn't do; empty where nothing is known of the hosts' memory."""
    if any(host.memory is None for host in cluster.hosts):
        return ""
    on_devices, on_hosts, count = [], [], run.in_flight(0)
    for s, kept in enumerate(table.memory):
        for stage in kept:
            if stage is not None and stage.elsewhere is not None:
                on_devices.append(float(table.margin.needed(stage).peak(count)[0, -1]))
                if on_devices[-1] <= table.usable_bytes[s]:
                    limits, there = table.limits(s), stage.elsewhere
                    on_hosts += [
                        (missing, float(needed[0, -1]), has, where)
                        for needed, has, where in (
                            (there.peak(count), limits.host_bytes, "of the host's memory"),
                            (there.nvme, limits.nvme_bytes, "of the drives"),
                        )
                        if (missing := float(needed[0, -1]) - has) > 0
                    ]
    if not on_devices:
        least = min(host.memory.num_bytes for host in cluster.hosts if host.memory is not None)
        return f"each host has {units.size(least)} beside, to which stages may offload what they keep (offload='cpu')"
    if not on_hosts:
        return f"with offload all layers as one stage still need {units.size(min(on_devices))} on each device"
    _, needed, has, where = min(on_hosts)
    return (
        f"with offload all layers as one stage would fit on the devices, but need {units.size(needed)} {where} for "
        f"each, which has {units.size(has)} for each: add memory or drives to the hosts, or offload to drives as well "
        "(offload='auto')"
    )


def _memory(model: Model, cluster: Cluster, run: Run, table: CostTable, more: bool, in_alpa: bool) -> NoPlanError:
    limit = float(table.usable_bytes.max())
    least = np.full((model.num_layers, model.num_layers), np.inf)
    for kept, own in zip(table.memory, table.usable_bytes.tolist(), strict=True):
        for stage in kept:
            if stage is not None and own == limit and stage.elsewhere is None:
                least = np.minimum(least, table.margin.needed(stage).peak(run.in_flight(0)))
    alone = np.diag(least)
    worst = int(np.argmax(alone))
    parts = [
        f"the model doesn't fit into memory: {_devices(cluster, table)}, and "
        f"all {model.num_layers} layers as one stage need {units.size(least[0, -1])} on each device of the best "
        f"submesh: {units.size(max(least[0, -1] - limit, 0.0))} are missing there"
    ]
    if alone[worst] > limit:
        missing = alone[worst] - limit
        parts.append(f"layer {worst} alone needs {units.size(alone[worst])}: {units.size(missing)} are missing")
    helps = [] if table.margin.residuals is None else [f"a larger risk than {100 * table.margin.risk:.2f} %"]
    helps += [f"more micro-batches (now {run.num_micro_batches})"] if more else []
    if in_alpa:
        helps += ["remat (AutoLayerOption(remat_layer=True))", "AutoShardingOption(prefer_reduce_scatter=True)"]
    helps += ["more layers to cut between", "more or larger devices"]
    helps += ["a smaller memory_margin"] if limit < table.memory_limit_bytes.max() >= alone[worst] else []
    advice = filter(None, (_offload(cluster, run, table), f"what helps: {', '.join(helps)}"))
    return NoPlanError("; ".join(parts), advice="; ".join(advice))
