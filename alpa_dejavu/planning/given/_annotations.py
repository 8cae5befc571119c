"""Annotations: sentences and figures that a chosen plan is given, each by a function."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.near_names import name_ranges, near
from alpa_dejavu._util.phases import phase
from alpa_dejavu._util.search_watch import current_watch, is_stopped
from alpa_dejavu._util.ties import first_least
from alpa_dejavu.clusters.gpus import gpu_of, known_gpus
from alpa_dejavu.costs.latency import KernelLatency
from alpa_dejavu.costs.memory_margin import with_memory_note
from alpa_dejavu.costs.runtime import with_overlap
from alpa_dejavu.planning.search._candidate import Candidate, host_names
from alpa_dejavu.planning.search._ranking import STEADIER, goes_by_expected
from alpa_dejavu.planning.search.given_stages import given_candidate, given_stages
from alpa_dejavu.planning.search.runtimes import limits_of
from alpa_dejavu.planning.task import Clock, Found, PlanningTask
from alpa_dejavu.problem import Device, Plan
from alpa_dejavu.problem.run import ALPA_SCHEDULES

_LEAST_SHARE = 0.01
_TRIED = 4
"""By the costs of so many candidates it is tried what all devices would take."""
_FEW_NUMBERS, _SMALL_BATCH = 4, 16
"""A batch is unhandy that may be cut into fewer numbers of micro-batches, unless it is smaller than that."""
_HALF = {"bfloat16": "bf16", "float16": "fp16"}
_MUCH_FASTER = 1.5
"""Another dtype's rate is named where it is so many times that of float32."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Chosen:
    """A chosen candidate plan for a planning task, along with the other candidates and the time that planning took."""

    task: PlanningTask
    outcome: Found  # all that the search found, with its notes
    candidates: Sequence[Candidate]  # all candidate plans, the chosen one first
    compared: Sequence[Candidate]  # the candidate plans that the chosen one had to be better than, itself first
    clock: Clock  # a stopwatch, which adds up the seconds of the planning


Annotation: TypeAlias = Callable[[Plan, Chosen], Plan]
"""Adds to a finished plan what isn't needed to run it."""


def with_confidence(plan: Plan, chosen: Chosen) -> Plan:
    """Returns the plan with how probably it is nearly the best, and how far its step, stages and layers spread; with a
    note where another has the shorter expected step, or on unlike hosts the shorter iteration time.
    """
    from alpa_dejavu.planning.search.uncertainty import (
        confidence_and_expected,
        drawn_stages,
        layer_draws,
        numbered_errors,
    )

    phase("confidence")
    best = chosen.compared[0]
    sure, expected_s = confidence_and_expected(chosen.compared, errors=chosen.outcome.errors)
    # These are the draws that the expected step is from: the seed and the errors are the same.
    errors = numbered_errors([best], chosen.outcome.errors)
    draws = layer_draws(best, errors, errors.drawn(sure.draws))
    factor = 1.0 if plan.correction is None else plan.correction.factor
    chosen.clock.lap("confidence")
    plan = dataclasses.replace(plan, confidence=sure.times(factor), stages=drawn_stages(plan.stages, draws, factor))
    steps_s = [candidate.step_s for candidate in chosen.compared]
    by_expected = goes_by_expected(chosen.task, chosen.outcome)
    figures_s = steps_s if by_expected else expected_s
    better = int(first_least(np.array(figures_s)))
    if figures_s[better] >= figures_s[0] * (1 - STEADIER):
        return plan
    other = chosen.compared[better]
    hosts = list(dict.fromkeys(name for names in host_names(other) for name in names))
    on = f" on {name_ranges(hosts)} alone" if len(hosts) < len(chosen.task.cluster.hosts) else ""
    own, other_s, its = (units.seconds(s * factor) for s in (expected_s[0], expected_s[better], steps_s[better]))
    what = (
        f"{units.counted(len(other.stages), 'stage')}{on}, "
        f"{units.counted(other.run.num_micro_batches, 'micro-batch', 'micro-batches')}, {other.run.schedule}"
    )
    why = (
        f"plans on unlike hosts are chosen by their expected step, here {own}; another plan ({what}) has a shorter "
        f"iteration time, {its}, but an expected step of {other_s}"
        if by_expected
        else f"another plan ({what}) has a shorter expected step, {other_s} instead of {own}, but a longer iteration "
        f"time, by which plans are ranked: {its}"
    )
    return _noted(plan, [why])


def _noted(plan: Plan, notes: Iterable[str]) -> Plan:
    return dataclasses.replace(plan, notes=(*plan.notes, *notes))


def with_unrated_dtypes(plan: Plan, chosen: Chosen) -> Plan:
    """Returns the plan with a note on each dtype that a device has no rate for, and what stands in for it."""
    used = {host for stage in plan.stages for host in stage.hosts}
    by_dtype = chosen.candidates[0].model.product_flop
    total = sum(by_dtype.values())
    devices = {host.device.name: host.device for host in chosen.task.cluster.hosts if host.name in used}
    return _noted(
        plan,
        (
            _unrated(device, dtype, flop / total)
            for device in devices.values()
            for dtype, flop in by_dtype.items()
            if not device.has_rate(dtype) and flop >= _LEAST_SHARE * total
        ),
    )


def _unrated(device: Device, dtype: str, share: float) -> str:
    single = device.flop_per_s["float32"]
    faster = {name: rate for name, rate in device.flop_per_s.items() if rate > _MUCH_FASTER * single}
    others = ", ".join(f"{units.flop_rate(rate)} in {name}" for name, rate in faster.items())
    half = next((name for name in _HALF if name in faster), "")
    remedy = f"; give the model in {half} (of a transformer's sizes: --precision {_HALF[half]})" if half else ""
    return (
        f"{device.name} has no rate for products in {dtype} ({share:.0%} of the model's), so they are priced as "
        f"float32, at {units.flop_rate(single)}{f'; it reaches {others}' if others else ''}{remedy}"
    )


def with_unknown_devices(plan: Plan, chosen: Chosen) -> Plan:
    """Returns the plan with a note on each device priced by a roofline among known GPUs, or nearly named as one."""
    prices = chosen.task.prices
    if prices.calibration is not None:
        return plan
    mixed = isinstance(prices.models.latency, KernelLatency)
    names = dict.fromkeys(host.device.name for host in prices.cluster.hosts)
    unknown = {name: near(name.upper(), known_gpus()) for name in names if gpu_of(name) is None}
    return _noted(
        plan,
        (
            f"{name} is no GPU with a data sheet here, so its seconds go by the peak rates of its machine file, which "
            f"kernels don't reach: they are too short next to those of known GPUs{meant}"
            for name, meant in unknown.items()
            if mixed or meant
        ),
    )


def with_unhandy_batch(plan: Plan, chosen: Chosen) -> Plan:
    """Returns the plan with a note where its batch can hardly be cut into micro-batches, and one near it that can."""
    batch, counts = chosen.task.batch, chosen.task.micro_batches
    if batch is None or batch < _SMALL_BATCH or not 1 < len(counts) < _FEW_NUMBERS:
        return plan
    even = 2 ** int(math.log2(batch / 4))
    note = (
        f"only {' or '.join(map(str, counts))} micro-batches of a power of two samples make a batch of {batch}; "
        f"one such as {round(batch / even) * even} leaves more to choose from, and may be faster"
    )
    return _noted(plan, [note])


def with_hidden_collectives(plan: Plan, chosen: Chosen) -> Plan:
    """Returns the plan with a note on its step where products are cut in pieces, if its framework can do that: a share
    of what tensor-parallel devices exchange then hides behind them.
    """
    prices, best = chosen.task.prices, chosen.candidates[0]
    models, limits = prices.models, limits_of(prices.models.runtime.name)
    hides = models.runtime.overlap.streams or models.runtime.overlap.hidden_tensor_share > 0
    if hides or limits is None or not limits.in_pieces or not any(stage.tensor_parallel > 1 for stage in plan.stages):
        return plan
    models = dataclasses.replace(models, runtime=with_overlap(models.runtime, "tensor"))
    task = dataclasses.replace(chosen.task, prices=dataclasses.replace(prices, models=models))
    step_s = given_candidate(task, best.model, best.run, given_stages(plan)).step_s
    if step_s >= best.step_s * (1 - _LEAST_SHARE):
        return plan
    took = units.seconds(step_s if plan.correction is None else step_s * plan.correction.factor)
    return _noted(plan, [f"--overlap tensor would take {took}, where products in pieces hide as much as is assumed"])


def with_unused_hosts(plan: Plan, chosen: Chosen) -> Plan:
    """Returns the plan with a note that names its unused hosts, and the best step found with all hosts used."""
    used = {host for stage in plan.stages for host in stage.hosts}
    unused = [host.name for host in chosen.task.cluster.hosts if host.name not in used]
    if not unused:
        return plan
    factor = 1.0 if plan.correction is None else plan.correction.factor
    num_devices, slicer = chosen.task.cluster.num_devices, chosen.task.slicer
    whole = [candidate for candidate in chosen.candidates if candidate.num_devices == num_devices]
    if not whole:  # the search saw that fewer devices are faster, and looked no further
        phase("plans on all devices")
        costs = {id(candidate.costs): candidate.costs for candidate in chosen.candidates}
        of_all = [own for own in costs.values() if own.cluster.num_devices == num_devices and not own.partial]
        sliced = (own.sliced(slicer, devices="exactly") for own in of_all if own.run.schedule in ALPA_SCHEDULES)
        whole = [candidate for candidate in itertools.islice(sliced, _TRIED) if candidate is not None]
    why = "no plan that uses all devices was found"
    if whole:
        steps_s, own_s, what = [candidate.step_s for candidate in whole], plan.step_s, ""
        if goes_by_expected(chosen.task, chosen.outcome):
            from alpa_dejavu.planning.search.uncertainty import expected_steps

            steps_s, own_s = expected_steps(whole, chosen.outcome.errors), plan.expected_s
            what = " by its expected step"
        best = units.seconds(min(steps_s) * factor)
        why = f"the best plan found that uses all devices takes {best}{what}, this one {units.seconds(own_s)}"
    names = ", ".join(unused) if len(unused) <= 8 else f"{', '.join(unused[:3])} ... ({len(unused)} hosts)"
    return _noted(plan, [f"{names} {'is' if len(unused) == 1 else 'are'} left unused: {why}"])


def with_plans_for_losses(plan: Plan, chosen: Chosen) -> Plan:
    """Returns the plan with those to take its place once a host is lost, if asked for and nobody stopped planning."""
    if not chosen.task.contingencies or is_stopped():
        return plan
    from alpa_dejavu.planning.changed._contingencies import with_contingencies

    phase("the loss of a host")
    ready = with_contingencies(plan, chosen.task, chosen.candidates)
    chosen.clock.lap("contingencies")
    return plan if is_stopped() else ready


def with_early_stop(plan: Plan, chosen: Chosen) -> Plan:
    """Returns the plan with a note on how much of the search was left when it was stopped, and on the bound."""
    search, candidate = current_watch(), chosen.candidates[0]
    if search is None or not search.is_stopped:
        return plan
    most = search.priced + sum(search.left)
    note = f"stopped early: {search.priced} of about {most} candidates priced"
    if not candidate.costs.exact:
        note += "; its seconds are scaled from those of another micro-batch"
    if plan.lower_bound_s > 0:
        shape = f"{plan.num_layers} layers and {units.counted(plan.num_micro_batches, 'micro-batch', 'micro-batches')}"
        note += f"; no plan of {shape} takes less than {units.seconds(plan.lower_bound_s)} a step"
    return _noted(plan, [note])


def with_memory_risk(plan: Plan, chosen: Chosen) -> Plan:
    """Returns the plan with a note on the memory that it leaves free, and the risk that it runs out all the same."""
    task, own = (
        chosen.task,
        [n for n, stage in enumerate(chosen.candidates[0].stages) if stage in chosen.outcome.measured],
    )
    plan = with_memory_note(plan, chosen.outcome.margin or task.margin, task.cluster, own)
    chosen.clock.lap("memory")
    return plan


def with_notes_of_model(plan: Plan, chosen: Chosen) -> Plan:
    """Returns the plan with what was found in its train step: loops, no gradient, data of a fixed size."""
    return _noted(plan, chosen.task.source.notes)


ANNOTATIONS: tuple[Annotation, ...] = (
    with_notes_of_model, with_early_stop, with_confidence, with_unrated_dtypes, with_unknown_devices,
    with_unhandy_batch, with_hidden_collectives, with_unused_hosts, with_plans_for_losses, with_memory_risk,
)  # fmt: skip
"""In the order in which a plan's notes are to be read."""
