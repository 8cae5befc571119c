"""Plans the stages in place of Alpa where the stage option is ours.

Alpa gets its own `ManualStageOption` of the plan. Only which hosts a stage is on can't be written there; `_submeshes`
has Alpa heed that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from alpa_dejavu.alpa._measure_stage import StageBench
from alpa_dejavu.alpa._places import checked, on_hosts, places
from alpa_dejavu.alpa._playoff import most_entrants
from alpa_dejavu.alpa._stage_runners import AlpaWorkers, CpuProcess, StageRunner
from alpa_dejavu.alpa._translate import model_of, space_of
from alpa_dejavu.alpa.option import DejavuStageOption
from alpa_dejavu.alpa.ray_cluster import cluster_of
from alpa_dejavu.calibration import Prices, prices
from alpa_dejavu.clusters.host_classes import across_hosts, by_sites, slow_inside, takes_part_of_several
from alpa_dejavu.clusters.space import submeshes
from alpa_dejavu.costs.memory_margin import MemoryMargin
from alpa_dejavu.exports.alpa_code import alpa_options
from alpa_dejavu.planning import Decisive, PlanningTask, Searched, plan
from alpa_dejavu.planning.changed.deviation import learned_correction
from alpa_dejavu.planning.given.other_schedules import with_better_schedules
from alpa_dejavu.planning.result import OURS
from alpa_dejavu.planning.rivals import AlpaDefault, ByStrategy, strategy
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.planning.task import Chooser, GivenSpace
from alpa_dejavu.plans.table import plan_table
from alpa_dejavu.problem import Cluster, Model, Plan, PricedBy
from alpa_dejavu.slicing import slicer, slicer_name

if TYPE_CHECKING:
    from alpa_dejavu.calibration.history import PastRun

_log = logging.getLogger("alpa_dejavu")

_SURE = 0.9
"""A plan that is nearly the best of those compared with this probability is taken without measuring any stage."""
_SHARE = 0.05
"""Measuring by default may take this part of the seconds in which `AutoStageOption` would measure all stages."""

PARAMETERS = (
    "layers", "virtual_mesh", "accumulator_mapping", "acc_grad_invars", "acc_grad_outvars", "num_micro_batches",
    "batch_size", "jax_apply_layers", "apply_grad_global_info", "pipeline_schedule", "default_as_option",
    "stage_option",
)  # fmt: skip


def planning(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Alpa's `cluster_layers_and_slice_mesh`, wrapped: a `DejavuStageOption`'s stages are planned here."""

    @functools.wraps(original)
    def cluster_layers_and_slice_mesh(*args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(PARAMETERS, args, strict=False)) | kwargs
        option = arguments["stage_option"]
        if not isinstance(option, DejavuStageOption):
            return original(*args, **kwargs)
        if option.plan is None:
            option.entrants = _plans(option, arguments)
            chosen = option.entrants[0]
        else:
            chosen = _given(option, arguments)
        option.last_plan = chosen
        _log.info("the plan:\n%s", plan_table(chosen))
        sure = [] if chosen.confidence is None else [chosen.confidence.summary]
        lost = [] if chosen.without_a_host is None else [f"if a host is lost: {chosen.without_a_host}"]
        for line in (*sure, *lost, *chosen.notes):
            _log.info("%s", line)
        searched = option.plan is None and option.strategy == OURS
        options = [dict(s.options) if searched else alpa_options(s) for s in chosen.stages]
        with on_hosts(places(chosen, arguments["virtual_mesh"], option.cluster)):
            return original(**(arguments | {"stage_option": _manual(chosen, options)}))

    return cluster_layers_and_slice_mesh


def _plans(option: DejavuStageOption, arguments: Mapping[str, Any]) -> tuple[Plan, ...]:
    """Returns the plan, and before it, where a playoff is asked for, others that may be better on the devices."""
    if arguments["virtual_mesh"].launched_physical_mesh_group is not None:
        raise NotImplementedError(
            "this virtual mesh already runs another pipeline on its own submeshes, so no new plan can be made for it; "
            "call alpa.shutdown() and alpa.init() first, or reuse that plan with its ManualStageOption"
        )
    task, runner, described_s = _task(option, arguments)
    option.task = task
    with contextlib.closing(runner):
        result = plan(task, more=(with_better_schedules,))
    if option.strategy != OURS:
        checked(result.plan, arguments, option.cluster)
    plans = (*result.contenders, result.plan.after(described_s))
    return plans if option.history is None else tuple(_corrected(option, task, candidate) for candidate in plans)


def _task(
    option: DejavuStageOption, arguments: Mapping[str, Any]
) -> tuple[PlanningTask, StageRunner, dict[str, float]]:
    """Returns the task for Alpa's layers on its cluster; the runner of stages, to be closed; and the seconds."""
    from alpa.pipeline_parallel import stage_construction

    mesh, micro_batch = arguments["virtual_mesh"], arguments["batch_size"]
    started = time.perf_counter()
    inference = arguments["pipeline_schedule"] == "inference"
    layers = arguments["layers"]
    priced = prices(cluster_of(mesh, option.cluster), option.calibration, option.latency, option.communication)
    choices = _submeshes(option, mesh, priced.cluster)
    configs = stage_construction.get_all_submesh_autosharding_config_choices(
        mesh, choices, option.submesh_logical_shape_space, micro_batch
    )
    defaults = arguments["default_as_option"]
    space = space_of(choices, configs, option.stage_imbalance_tolerance, defaults)
    looked_s = time.perf_counter()
    model = model_of(layers, arguments["accumulator_mapping"], arguments["jax_apply_layers"], inference, micro_batch)
    described = time.perf_counter()
    runner = _runner(mesh, priced.cluster)
    bench = StageBench(arguments, choices, configs, runner)
    task = PlanningTask(
        source=GivenModel(model, micro_batch or 1, name=""),
        prices=priced,
        batch=None if micro_batch is None else micro_batch * arguments["num_micro_batches"],
        layers=(model.num_layers,),
        micro_batches=(arguments["num_micro_batches"],),
        chooser=_chooser(option, bench, mesh, priced.cluster, looked_s - started),
        # A stage is measured on whichever hosts are free, not on a kind of them.
        space=GivenSpace(space, by_kinds=option.profile != "decisive"),
        schedule=arguments["pipeline_schedule"],
        slicer=slicer(option.slicer),
        margin=MemoryMargin(option.risk, priced.residuals(option.memory), option.memory_margin),
        priced_by=priced.named(_asked(option, model.num_layers, arguments["num_micro_batches"])),
        contenders=most_entrants(option),
        contingencies=option.contingencies,
        learned=_learned(option, model, priced),
    )
    if option.strategy != OURS:
        task = by_strategy(option, task)
    return task, runner, {"cluster": looked_s - started, "features": described - looked_s}


def _chooser(option: DejavuStageOption, bench: StageBench, mesh: Any, cluster: Cluster, probed_s: float) -> Chooser:
    """Returns what chooses the plan by the option's `profile`: predictions, or stages measured by a bench, too;
    `probed_s`, in which the cluster was looked at, count as measuring.
    """
    if option.profile == "decisive":
        return Decisive(bench.measured, option.measuring_s)
    # Alpa slices submeshes for measuring by their size alone: where stages are on named hosts that may be another one.
    if option.profile != "auto" or not _connected(mesh) or by_sites(cluster) or slow_inside(cluster):
        return Searched()
    return Decisive(bench.measured, option.measuring_s, _SHARE, _SURE, probed_s)


def _runner(mesh: Any, cluster: Cluster) -> StageRunner:
    """Returns who runs stages to measure them on the cluster of Alpa's virtual mesh; nothing is started yet."""
    from alpa.global_env import global_config

    if global_config.backend == "cpu" and cluster.cores is not None:
        # A device's seconds are those beside all others.
        dispatch_s = cluster.hosts[0].device.dispatch_s * cluster.core_share(cluster.num_devices)
        return CpuProcess(cluster.num_devices, cluster.cores, dispatch_s)
    return AlpaWorkers(mesh)


def _connected(mesh: Any) -> bool:
    """Returns whether Alpa's virtual mesh is of the Ray cluster that Alpa is connected to, and not made up."""
    from alpa.device_mesh import get_global_cluster

    cluster = get_global_cluster()
    return cluster is not None and list(mesh.host_info) == [cluster.host_info[n] for n in mesh.host_ids]


def _learned(option: DejavuStageOption, model: Model, priced: Prices) -> tuple[PastRun, ...]:
    """Returns past runs here whose stages were measured, and tells the option what its plans are made from."""
    if option.history is None:
        return ()
    from alpa_dejavu.calibration.history import Origin, Store

    models = priced.models
    origin = Origin.of(model, priced.cluster, models.latency, models.communication, priced.calibration)
    option.last_origin = origin
    return tuple(run for run in Store(option.history).runs() if run.origin == origin and run.stages)


def _corrected(option: DejavuStageOption, task: PlanningTask, predicted: Plan) -> Plan:
    """Returns a plan corrected by past runs: by their stages, where those were measured, or else by their steps."""
    from alpa_dejavu.calibration.history import Correction, corrected

    assert option.history is not None, "else nothing corrects"
    assert option.last_origin is not None, "told with the past runs"
    if not task.learned:
        return corrected(predicted, Correction.read(option.history).of(option.last_origin, predicted))
    return dataclasses.replace(predicted, correction=learned_correction(task, predicted))


def _asked(option: DejavuStageOption, num_layers: int, num_micro_batches: int) -> PricedBy:
    """Returns the choices that the option and the step make."""
    return PricedBy(
        risk=option.risk,
        submeshes=option.submesh_physical_shape_space,
        layers=num_layers,
        micro_batches=num_micro_batches,
        slicer=slicer_name(option.slicer),
        objective="time",
        strategy=option.strategy if isinstance(option.strategy, str) else type(option.strategy).__name__,
    )


def _submeshes(option: DejavuStageOption, mesh: Any, cluster: Cluster) -> list[tuple[int, int]]:
    """Returns Alpa's choices of hosts and devices per host; ours, where hosts are slow inside or no power of two."""
    from alpa.global_env import global_config
    from alpa.pipeline_parallel import stage_construction

    kind, shapes = option.submesh_physical_shape_space, option.manually_specified_submeshes
    devices = int(mesh.num_devices_per_host)
    if devices.bit_count() == 1 or global_config.overwrite_submesh_choices is not None:
        choices = stage_construction.get_submesh_choices(mesh.num_hosts, devices, kind, shapes)
    elif kind == "manual":
        choices = shapes
    else:
        whole = [submesh for submesh in submeshes(cluster, kind) if not takes_part_of_several(submesh, cluster)]
        choices = [(submesh.num_hosts, submesh.devices_per_host) for submesh in whole]
    submesh_shapes = [(int(hosts), int(devices)) for hosts, devices in choices]
    if kind == "manual" or option.profile == "decisive" or not slow_inside(cluster):
        return submesh_shapes
    parts, several = (
        [d for hosts, d in submesh_shapes if hosts == 1],
        [hosts for hosts, _ in submesh_shapes if hosts > 1],
    )
    across = across_hosts(cluster, parts, several)
    return [*submesh_shapes, *((submesh.num_hosts, submesh.devices_per_host) for submesh in across)]


def _given(option: DejavuStageOption, arguments: Mapping[str, Any]) -> Plan:
    """Returns the plan that the option gives; model and cluster are looked at only where a history asks for them."""
    assert option.plan is not None, "there is a plan"
    chosen = checked(option.plan, arguments, option.cluster)
    if option.history is not None:
        from alpa_dejavu.calibration.history import Origin

        inference = arguments["pipeline_schedule"] == "inference"
        parts = arguments["layers"], arguments["accumulator_mapping"], arguments["jax_apply_layers"]
        model = model_of(*parts, inference, arguments["batch_size"])
        option.last_origin = Origin.of(model, cluster_of(arguments["virtual_mesh"], option.cluster))
    return chosen


def _manual(chosen: Plan, options: list[dict[str, Any]]) -> Any:
    """Returns Alpa's option for a plan, with these auto-sharding options; Alpa's `get_last_dp_result` says it too."""
    from alpa.pipeline_parallel import stage_construction

    shapes = [(stage.submesh.num_hosts, stage.submesh.devices_per_host) for stage in chosen.stages]
    logical = [stage.logical_mesh for stage in chosen.stages]
    stage_construction.last_forward_stage_layer_ids = chosen.layer_ids
    stage_construction.last_submesh_shapes = shapes
    stage_construction.last_logical_mesh_shapes = logical
    stage_construction.last_autosharding_option_dicts = options
    return stage_construction.ManualStageOption(chosen.layer_ids, shapes, logical, options)


def by_strategy(option: DejavuStageOption, task: PlanningTask) -> PlanningTask:
    """Returns a task in which the option's strategy chooses the stages. Raises ValueError for no 1F1B schedule."""
    # Which layers are computed again is the layer option's to say.
    chosen = AlpaDefault(("none",), (0,)) if option.strategy == "alpa" else strategy(option.strategy)
    if task.schedule != "1f1b":
        raise ValueError(
            f"pipeline_schedule is {task.schedule!r}, but {chosen.name} plans for '1f1b'; give that, or "
            "strategy='dejavu'"
        )
    return dataclasses.replace(task, chooser=ByStrategy(chosen))
