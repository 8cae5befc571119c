"""Makes a whole plan from a model's name and a cluster, without devices, Ray or Alpa."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from alpa_dejavu._util.extras import installed_version
from alpa_dejavu.calibration import Calibration, check_choice, prices
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.costs.memory_margin import DEFAULT_RISK, MemoryMargin, MemoryResiduals
from alpa_dejavu.costs.overlap import Overlap
from alpa_dejavu.costs.runtime import ALPA, RuntimeProfile, runtime_names, runtime_profile
from alpa_dejavu.planning._restricted import in_blocks, plan_for
from alpa_dejavu.planning.planner import plan
from alpa_dejavu.planning.result import OURS, PlanningResult, check_prices
from alpa_dejavu.planning.search._diagnosis import with_remedies
from alpa_dejavu.planning.search._polish import ANY_SCHEDULE
from alpa_dejavu.planning.search._searched import Searched
from alpa_dejavu.planning.search._shapes import micro_batch_counts
from alpa_dejavu.planning.search.models.model_source import ModelSource
from alpa_dejavu.planning.search.models.named_model import SizedTransformer, attention_on, model_source
from alpa_dejavu.planning.search.restriction import Restriction, division_choices, restriction
from alpa_dejavu.planning.search.runtimes import RUNTIMES, check_schedule_of, limits_of
from alpa_dejavu.planning.task import OBJECTIVES, Clock, PlanningTask, SpaceRules
from alpa_dejavu.problem import REMAT, Cluster, Model, NoPlanError, Plan, PricedBy
from alpa_dejavu.problem.checks import count, one_of
from alpa_dejavu.problem.limits import check_sizes
from alpa_dejavu.problem.run import ALPA_SCHEDULES, schedule_form
from alpa_dejavu.slicing import Slicer, slicer, slicer_name

if TYPE_CHECKING:
    from alpa_dejavu.planning.rivals import ByStrategy, Strategy

AUTO = "auto"
LAYERS = (16, 24, 32, 48)
"""Numbers of layers that are tried where the number is left open."""


def plan_model(
    model: str | Callable[..., Any] | Model | ModelSource,
    cluster: str | Cluster,
    hosts: int = 1,
    batch: int = 1024,
    micro_batches: int | None = None,
    layers: int | None = None,
    schedule: str | None = None,
    *,
    remat: Sequence[str] = REMAT,
    zero: Sequence[int] = (0, 2, 3),
    pipeline: int | None = None,
    tensor: int | None = None,
    context: int | None = None,
    experts: int | None = None,
    shard: int | str | None = None,
    submeshes: str = "power_of_two",
    offload: str = "none",
    replicas: int = 1,
    checkpoint_bytes_per_s: float | None = None,
    slicing: str | Slicer = "dynamic",
    latency: str | LatencyModel = "auto",
    communication: str | CommunicationModel = "auto",
    risk: float = DEFAULT_RISK,
    memory: MemoryResiduals | None = None,
    memory_margin: float | None = None,
    history: str | os.PathLike[str] | None = None,
    calibration: str | os.PathLike[str] | Calibration | None = None,
    runtime: str | RuntimeProfile | None = None,
    overlap: str | Overlap | None = None,
    attention: str = "",
    objective: str = "time",
    strategy: str | Strategy = OURS,
    runs_on: str = "",
    free: Plan | None = None,
    contingencies: bool = False,
    cache: str | os.PathLike[str] | Literal[False] | None = None,
) -> PlanningResult:
    """Returns the best plan for training or running a model on a cluster.

    Args:
        model: a name that `alpa_dejavu.layers.models.known_models` lists; a transformer's sizes, as
            `alpa_dejavu.layers.models.Transformer.text`; "module:function"; a function that takes `batch_size` and
            returns a train step with its abstract arguments; the model's layers, for a micro-batch that
            `micro_batches` makes of the batch; or a source of them.
        cluster: the name of a machine type, the path of a machine or cluster file, or a `Cluster`.
        hosts: how many machines of that type.
        batch: samples of a step.
        micro_batches: how many micro-batches the batch is cut into; None chooses.
        layers: how many layers the model is cut into; None chooses.
        schedule: the name of a pipeline schedule in `alpa_dejavu.schedules.SCHEDULES`; "auto" chooses one with the
            plan, among those that update the weights once a step. None is "1f1b", and with `runs_on` "auto". A step
            without gradients always has "inference".
        remat: the choices of rematerialisation that stages have, among "none", "layer" and, where a transformer isn't
            traced, "selective".
        zero: the ZeRO levels that stages may have, among 0, 2 and 3.
        pipeline: how many stages, of equally many devices each; None: as is best.
        tensor, context, experts: how many devices share operators, a sample's tokens, and the experts of a model. None:
            each as is best; of a traced model only operators are divided.
        shard: in groups of how many data-parallel devices ZeRO shares parameters or states: a number, "host" or "all";
            None: as is best, and in one group for a traced model.
        submeshes: the kind of submeshes that stages may have: "power_of_two", "small_power_of_two" or "all".
        offload: where stages may offload what they keep: "none"; "cpu", the memory of their hosts; "nvme", drives for
            the optimizer's state and parameters; "auto", either. Only under Alpa's schedules.
        replicas: the least number of data-parallel replicas of each stage, as robust training needs them.
        checkpoint_bytes_per_s: the rate at which all hosts together read a checkpoint, which tells how long it takes to
            go on once a host is lost; None: the cluster's, which may be unknown.
        slicing: a slicer or its name.
        latency: a latency model or its name; "auto": the calibration's, or without one "kernels" on known GPUs
            and else "analytic".
        communication: a communication model or its name; "auto": the calibration's, or without one "nccl" on known
            GPUs and else "alpha-beta".
        risk: the probability of running out of memory that a plan may have, if measured peaks of memory are given.
        memory: measured peaks of memory against the analytic count; None: the calibration's, if it has any. Without
            any, a share of the memory is left free, and plans say that their risk is unknown.
        memory_margin: the share of the memory that is left free without measured peaks; None: each host's own
            (`Host.memory_margin`), or 5 % where it has none.
        history: a file of past runs, which needn't exist yet: each plan's predicted seconds are corrected by what
            similar plans took in these runs, before the best one is chosen. None: nothing is corrected.
        calibration: a file's path, or a `Calibration`: measured figures of devices and links, in place of data sheets
            and of the "auto" models; "none": data sheets; None: GPUs by the models that are fitted to measured ones,
            other devices by their data sheets.
        runtime: the training framework that plans are for: a runtime profile or its name, such as "alpa", "megatron" or
            "torchtitan"; only its schedules may be chosen. A known transformer is priced and kept as the framework runs
            it. None: plans are priced as for Alpa, with any schedule.
        overlap: what devices do at the same time: "none", "gradients", "tensor" or "streams", which Alpa's don't, as
            `alpa_dejavu.costs.overlap` says; or an `Overlap` with measured slowdowns. None: as the runtime has it.
        attention: how attention is priced and kept: "fused", as one kernel; "plain", with its scores in memory. Empty:
            as the runtime has it, which is plain for Alpa but where the model calls a fused kernel.
        objective: what is made least: "time" of a step, or its "price" by the hosts' prices, for which each choice of
            hosts is searched. "pareto": the fastest plan is given, with those that are cheaper the slower they are.
        strategy: whose search is used: "dejavu" is alpa-dejavu's own; to compare with it, another planner, as
            `alpa_dejavu.planning.rivals` has them, or its name. That has rules of its own in place of `schedule`,
            `remat`, `zero`, `submeshes`, `slicing` and `objective`; its plan is costed like any other.
        runs_on: a training framework, by its name in `alpa_dejavu.planning.search.runtimes.RUNTIMES`: the plan is the
            best that it can run, and says what that restriction costs. A known transformer is then planned in its
            blocks. Empty: the plan may be any.
        free: with `runs_on` the best plan for any framework, where it is known; None: it is looked for, too.
        contingencies: whether the plan is to hold ready what is run once each of its hosts is lost, which takes longer;
            `alpa_dejavu.planning.changed.replanning.prepared` adds that to a plan later.
        cache: the folder of a cache of traced models; None: the user's own; False: none is read or written. The plan is
            the same with and without.

    Raises:
        NoPlanError: nothing fits; says what is missing where, and the smallest changes by which it would fit: each was
            tried.
        ValueError: an unknown name, a number out of its range, a file that is broken or of something else, options
            that contradict each other, a host's price that isn't known, or what the strategy can't do.
    """
    one_of("plan_model", "objective", objective, OBJECTIVES)
    limits, schedule = restriction(runs_on, batch, model if isinstance(model, str) else ""), schedule or ""
    if not schedule:
        schedule = AUTO if runs_on and offload == "none" else "1f1b"
    if runs_on:
        model = in_blocks(model, runs_on, strategy)
        runtime = runtime or (runs_on if runs_on in runtime_names() else None)
    check_sizes(batch, layers, micro_batches)
    count("plan_model", "replicas", replicas)
    if micro_batches is not None and (micro_batches < 1 or batch % micro_batches):
        raise ValueError(f"{micro_batches} micro-batches don't divide a batch of {batch}; give a divisor, or auto")
    from alpa_dejavu.clusters import named_cluster
    from alpa_dejavu.clusters.offload_choices import check_offload

    correction = None
    if history is not None:
        from alpa_dejavu.calibration.history import Correction

        correction = Correction.read(history)
    measured = check_choice(calibration, latency, communication)
    cluster = named_cluster(cluster, hosts) if isinstance(cluster, str) else cluster
    if checkpoint_bytes_per_s is not None:
        cluster = dataclasses.replace(cluster, checkpoint_bytes_per_s=checkpoint_bytes_per_s)
    if objective != "time":
        check_prices(cluster)
    check_offload(offload, cluster)
    if offload != "none" and schedule not in ALPA_SCHEDULES:
        raise ValueError(
            f"schedule is {schedule!r}, but must be one of {', '.join(map(repr, ALPA_SCHEDULES))} where stages may "
            "offload; give one of these, or offload nothing"
        )
    priced = prices(cluster, measured, latency, communication, runtime_profile(runtime or ALPA, overlap))
    counts = micro_batch_counts(batch, cluster) if micro_batches is None else (micro_batches,)
    search, clock = slicer(slicing), Clock()
    framework = priced.models.runtime.name
    how = attention_on(priced.cluster, framework, attention)
    source = model_source(model, batch, counts, cache, clock.lap, framework, how)
    space = _space(
        source if strategy == OURS else None,
        SpaceRules(submeshes, tuple(remat), tuple(zero), offload=offload, replicas=replicas),
        {"pipeline": pipeline, "tensor": tensor, "context": context, "experts": experts, "shard": shard}, framework,
        limits, batch,
        "" if strategy == OURS else strategy if isinstance(strategy, str) else type(strategy).__name__,
    )  # fmt: skip
    chooser = _chooser(strategy, schedule, space, search, objective)
    schedule, *others = _schedules(source, schedule, None if runs_on else runtime)
    by = PricedBy(
        risk=risk, submeshes=submeshes, remat=space.remat, zero=space.zero, layers=layers or "auto",
        micro_batches=micro_batches or "auto", slicer=slicer_name(slicing), objective=objective,
        strategy=strategy if isinstance(strategy, str) else type(strategy).__name__, offload=offload,
        replicas=replicas, runs_on=runs_on, attention=attention, jax=installed_version("jax") or "",
    )  # fmt: skip
    task = PlanningTask(
        source=source,
        prices=priced,
        batch=batch,
        layers=source.numbers_of_layers(LAYERS) if layers is None else (layers,),
        micro_batches=counts,
        chooser=chooser,
        space=space,
        schedule=schedule,
        other_schedules=tuple(others),
        slicer=search,
        margin=MemoryMargin(risk, priced.residuals(memory), memory_margin),
        objective=objective,
        correction=correction,
        priced_by=priced.named(by),
        contingencies=contingencies,
    )
    try:
        return plan(task, clock=clock) if limits is None else plan_for(task, runs_on, limits, clock, free)
    except NoPlanError as error:
        if not isinstance(chooser, Searched):
            raise
        limited = dataclasses.replace(task, space=dataclasses.replace(space, restriction=limits or space.restriction))
        numbers = source.numbers_of_layers(LAYERS) if source.traces else ()
        raise with_remedies(error, limited, micro_batch_counts(batch, cluster), numbers) from None


def _space(
    source: ModelSource | None,
    rules: SpaceRules,
    asked: Mapping[str, int | str | None],
    framework: str,
    limits: Restriction | None,
    batch: int,
    strategy: str = "",
) -> SpaceRules:
    """Returns the rules for stages with how devices may divide the model of a source (None: as Alpa's pass does).

    A transformer that isn't traced has what the framework that runs it can, and only plans that this can run; where the
    plan is for a framework (`limits`), it has what an export writes. ValueError where it can't have what is asked for.
    """
    sized = source if isinstance(source, SizedTransformer) else None
    runs = None if sized is None else limits_of(framework)
    runs = runs if runs is None or limits is None else limits.limits
    remat = tuple(choice for choice in rules.remat if choice != "selective")
    if sized is not None and rules.remat != REMAT:
        remat = rules.remat
    elif sized is not None and sized.execution.selects and runs is not None and "selective" in runs.remat:
        remat = REMAT
    if not remat:
        raise ValueError(
            "remat is ['selective'], but must be among 'none' and 'layer' for a traced model; give one of them, or a "
            "transformer by its sizes and a runtime such as megatron or torchtitan"
        )
    size = None if sized is None else sized.size
    restricted = None if runs is None or limits is not None else Restriction(runs, batch, size)
    choices = division_choices(size, framework, runs, asked, strategy)
    return dataclasses.replace(rules, remat=remat, divisions=choices, restriction=restricted)


def _schedules(source: ModelSource, name: str, runtime: str | RuntimeProfile | None) -> tuple[str, ...]:
    """Returns the schedules that may be chosen: a step without gradients has "inference" alone, and no other has it."""
    if source.training and name == "inference":
        raise ValueError(
            f"schedule is 'inference', but the step of {source.name} takes gradients; "
            "give a step without them, or the schedule '1f1b'"
        )
    framework = None if runtime is None else runtime_profile(runtime).name.partition("+")[0]
    if not source.training:
        return ("inference",)
    if name == AUTO:
        limits = None if framework is None else RUNTIMES.get(framework)
        return tuple(other for other in ANY_SCHEDULE if limits is None or limits.has(other))
    schedule_form(name)
    if name == "pipedream":
        raise ValueError(
            "schedule is 'pipedream', but must be one that updates the weights once a step, since several versions "
            "of the weights aren't priced; give 'auto', or another one"
        )
    if framework is not None:
        check_schedule_of(framework, name)
    return (name,)


def _chooser(
    choice: str | Strategy, schedule: str, space: SpaceRules, search: Slicer, objective: str
) -> Searched | ByStrategy:
    """Our own search, or a strategy in its place, which isn't asked for beside a choice that only our search has."""
    if choice == OURS:
        return Searched("any" if objective == "time" else "each")
    from alpa_dejavu.planning.rivals import ByStrategy, strategy

    chosen = strategy(choice)
    defaults = {**vars(SpaceRules()), "schedule": "1f1b", "slicing": slicer("dynamic"), "objective": "time"}
    options = {**vars(space), "schedule": schedule, "slicing": search, "objective": objective}
    other = next((name for name, value in options.items() if value != defaults[name]), None)
    if other is not None:
        value = slicer_name(search) if other == "slicing" else options[other]
        raise ValueError(
            f"{other} is {value!r}, but {chosen.name} has rules of its own and plans for the fastest 1F1B "
            f"step; leave {other} out, or choose the strategy 'dejavu'"
        )
    return ByStrategy(chosen)
