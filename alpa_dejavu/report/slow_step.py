"""Says why a measured step takes as long as it does: what a plan predicted beside what traces have, and the causes.

A cause is claimed only by what the traces have; what it would save is the step's time without it, all else the same.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import final

from alpa_dejavu._util import units
from alpa_dejavu.calibration.traces import MeasuredStep, TracedExchange, TracedOperator, median_step, waiting_s
from alpa_dejavu.costs.communication import MEASURED, RING_PASSES
from alpa_dejavu.problem import Cluster, Plan
from alpa_dejavu.simulation.breakdown import breakdown, gradients_s

_LEAST = 0.02
"""What would save less of a step is no cause."""
_SLOW, _UNLIKE = 1.15, 1.1
"""A rank is slow that computes so many times as long as the others; its work is unlike that has so many operations."""
_THROTTLED = 0.5
"""A link is throttled that reaches less of its rate."""
_LARGE_BYTES = 2**20
"""Smaller exchanges don't tell a link's rate."""
_HIDEABLE = 0.5
"""Exchanges don't hide of which a larger share is exposed."""
_FUSED = 0.5
"""The share of the rate of a step's other products that a fused attention is taken to reach: an estimate."""
_PREPARING = 0.15
"""The host bounds a step of which it prepares a larger share with nothing beside it."""


@final
@dataclasses.dataclass(frozen=True)
class StepPart:
    """A part of a step: the seconds that the plan predicts, None where it tells none, and those that were measured."""

    name: str
    predicted_s: float | None
    measured_s: float


@final
@dataclasses.dataclass(frozen=True)
class Cause:
    """A cause of lost time: what the traces show of it, what it usually means, and the seconds that it costs a step."""

    name: str
    evidence: str
    usually: str
    saves_s: float


@final
@dataclasses.dataclass(frozen=True)
class SlowStep:
    """A measured step explained.

    Attributes:
        ranks: the step of each rank, of the same number.
        parts: of the average rank, in the order of the kinds of work.
        untold: the share of the step in work that no name tells apart.
    """

    ranks: tuple[MeasuredStep, ...]
    parts: tuple[StepPart, ...]
    causes: tuple[Cause, ...]
    untold: float

    @property
    def step_s(self) -> float:
        """Returns the seconds of the slowest rank's step."""
        return max(step.seconds for step in self.ranks)


def why_slow(steps: Sequence[MeasuredStep], plan: Plan | None = None, cluster: Cluster | None = None) -> SlowStep:
    """Returns why a step takes as long as it does, by the traces of its ranks; beside a plan's prediction, if given.

    Links are judged by the cluster's rates, and single precision by its devices' rates. Raises ValueError if the ranks
    have no step in common.
    """
    ranks = median_step(steps)
    waited = waiting_s(ranks)
    parts = _parts(ranks, waited, plan)
    causes: list[Cause] = []
    for tell in (_data, _unlike_ranks, _unfused, _in_single_precision, _bound_by_host):
        causes.extend(tell(ranks, cluster))
    causes.extend(_exchanges(ranks, waited, plan, cluster))
    step_s = max(step.seconds for step in ranks)
    causes = sorted((own for own in causes if own.saves_s >= _LEAST * step_s), key=lambda own: -own.saves_s)
    untold = max(step.exposed_s("untold") / step.seconds for step in ranks)
    return SlowStep(ranks, parts, tuple(causes), untold)


def _parts(ranks: Sequence[MeasuredStep], waited: Sequence[float], plan: Plan | None) -> tuple[StepPart, ...]:
    def mean(of: Callable[[MeasuredStep], float]) -> float:
        return statistics.fmean(map(of, ranks))

    exposed = [step.exposed_s("exchanges") for step in ranks]
    waits = [min(own, wait) for own, wait in zip(exposed, waited, strict=True)]
    kinds = ("products", "grouped products", "attention", "norms and softmax", "element-wise", "copies", "dispatch")
    measured = {
        "computing": mean(lambda step: step.computing_s - step.exposed_s("optimizer")),
        **{f"  {kind}": mean(lambda step, kind=kind: step.exposed_s(kind)) for kind in (*kinds, "untold")},  # type: ignore[misc]
        "optimizer": mean(lambda step: step.exposed_s("optimizer")),
        "exchanges that nothing hides": statistics.fmean(exposed) - statistics.fmean(waits),
        "waiting for other ranks": statistics.fmean(waits) + mean(lambda step: step.exposed_s("waiting")),
        "loading data": mean(lambda step: step.exposed_s("data")),
        "gaps in which the host prepares": mean(lambda step: step.gaps_s),
    }
    predicted: dict[str, float] = {}
    if plan is not None:
        of_step, gradients = breakdown(plan), gradients_s(plan)
        predicted = {
            "computing": of_step["computing"],
            "optimizer": of_step["once a step"] - gradients,
            "exchanges that nothing hides": of_step["collectives"] + of_step["transfers"] + gradients,
            "waiting for other ranks": of_step["idle"],
        }
    rows = [StepPart(name, predicted.get(name), seconds) for name, seconds in measured.items()]
    return tuple(row for row in rows if row.measured_s > 0 or row.predicted_s)


def _data(ranks: Sequence[MeasuredStep], cluster: Cluster | None) -> Iterator[Cause]:
    waited = max(ranks, key=lambda step: step.exposed_s("data"))
    if (seconds := waited.exposed_s("data")) > 0:
        yield Cause(
            "loading data", f"rank {waited.rank} loads samples for {units.seconds(seconds)} with nothing beside it",
            "the loader has too few workers, or reads each sample from a slow file system; load ahead of the step",
            seconds,
        )  # fmt: skip
        return
    idle = min(ranks, key=lambda step: step.longest_gap_s)
    yield Cause(
        "a gap in which nothing runs",
        f"for {units.seconds(idle.longest_gap_s)} in one piece no rank does anything that the trace has",
        "a loader that sleeps, a checkpoint, logging or evaluation between steps, or garbage collection",
        idle.longest_gap_s,
    )


def _operations(step: MeasuredStep) -> float:
    return math.fsum(operator.flop * operator.count for operator in step.operators)


def _unlike_ranks(ranks: Sequence[MeasuredStep], cluster: Cluster | None) -> Iterator[Cause]:
    if len(ranks) < 2:
        return
    slow = max(ranks, key=lambda step: step.computing_s)
    others = [step for step in ranks if step is not slow]
    usual = statistics.median(step.computing_s for step in others)
    if slow.computing_s < _SLOW * usual:
        return
    own, of_others = _operations(slow), statistics.fmean(map(_operations, others))
    computes = f"rank {slow.rank} computes for {units.seconds(slow.computing_s)}, the others {units.seconds(usual)}"
    if of_others and own > _UNLIKE * of_others:
        mean_s = statistics.fmean(step.computing_s for step in ranks)
        yield Cause(
            "imbalance", f"{computes}: it has {own / of_others:.2f} times the operations in matrix products",
            "experts that get more tokens, stages with more layers, or sequences of unlike length",
            slow.computing_s - mean_s,
        )  # fmt: skip
        return
    yield Cause(
        "one slow rank", f"{computes}, with as many operations" if own else computes,
        "a device that is throttled by heat or power, shared with another job, or broken",
        slow.computing_s - usual,
    )  # fmt: skip


def _scores(operator: TracedOperator) -> bool:
    """Returns whether an operator reads the scores of an attention: heads, queries and as many keys."""
    return any(len(shape) >= 3 and shape[-1] == shape[-2] >= 64 for shape in operator.shapes)


def _unfused(ranks: Sequence[MeasuredStep], cluster: Cluster | None) -> Iterator[Cause]:
    step = max(ranks, key=lambda step: step.computing_s)
    softmax = [o for o in step.operators if "softmax" in o.name.lower() and _scores(o)]
    if not softmax:
        return
    lengths = {shape[-1] for o in softmax for shape in o.shapes if len(shape) >= 3 and shape[-1] == shape[-2]}
    of_scores = [o for o in step.operators if any(len(s) >= 3 and s[-1] == s[-2] in lengths for s in o.shapes)]
    products = [o for o in step.operators if o.flop and o not in of_scores]
    rate = math.fsum(o.flop * o.count for o in products) / max(math.fsum(o.seconds for o in products), 1e-12)
    seconds = math.fsum(o.seconds for o in of_scores)
    # A fused kernel reads and writes no scores: its products are left, and those that it computes again.
    left = math.fsum(o.flop * o.count for o in of_scores) / (_FUSED * rate) if rate else 0.0
    yield Cause(
        "attention that isn't fused",
        f"{sum(o.count for o in of_scores)} operators on scores of {max(lengths)} x {max(lengths)} take "
        f"{units.seconds(seconds)}, a softmax of them among these",
        "attention is written out, or a mask or a dropout keeps the framework from its fused kernel",
        seconds - left,
    )


def _in_single_precision(ranks: Sequence[MeasuredStep], cluster: Cluster | None) -> Iterator[Cause]:
    step = max(ranks, key=lambda step: step.computing_s)
    products = [o for o in step.operators if o.kind in ("products", "grouped products")]
    single = [o for o in products if o.dtype == "float" or "sgemm" in o.name.lower()]
    seconds = math.fsum(o.seconds for o in single)
    if not single or cluster is None:
        return
    device = cluster.hosts[0].device
    half = next((dtype for dtype in ("bfloat16", "float16") if device.has_rate(dtype)), None)
    if half is None or device.rate(half) <= device.rate("float32"):
        return
    yield Cause(
        "products in single precision",
        f"products of float32 take {units.seconds(seconds)}; in {half} {device.name} has "
        f"{device.rate(half) / device.rate('float32'):.1f} times the rate",
        "a module outside autocast, or a model that was never cast",
        seconds * (1 - device.rate("float32") / device.rate(half)),
    )


def _bound_by_host(ranks: Sequence[MeasuredStep], cluster: Cluster | None) -> Iterator[Cause]:
    # Gaps of other ranks may be waiting that the trace doesn't have.
    step = min(ranks, key=lambda step: step.gaps_s + step.exposed_s("dispatch"))
    count = sum(time.events for time in step.times.values())
    lost = step.gaps_s - step.longest_gap_s + step.exposed_s("dispatch")
    if not count or lost < _PREPARING * step.seconds:
        return
    yield Cause(
        "small kernels, bound by the host",
        f"between {units.many(count)} operators of {units.seconds(step.computing_s / count)} on average the host "
        f"prepares for {units.seconds(lost)}",
        "operators too small for their launches: compile the model, fuse the optimizer, or enlarge the micro-batch",
        lost,
    )


def _exchanges(
    ranks: Sequence[MeasuredStep], waited: Sequence[float], plan: Plan | None, cluster: Cluster | None
) -> Iterator[Cause]:
    step, waits = min(zip(ranks, waited, strict=True), key=lambda pair: pair[1])
    exposed = max(0.0, step.exposed_s("exchanges") - waits)
    busy = math.fsum(exchange.seconds for exchange in step.exchanges)
    if not exposed or not busy:
        return
    throttled = None if cluster is None else _throttled(ranks, cluster)
    if throttled is not None:
        kind, rate, usual = throttled
        yield Cause(
            "a slow link", f"{kind} goes at {units.by_name('bytes_per_s', rate)} over a link of "
            f"{units.by_name('bytes_per_s', usual)}",
            "the network falls back to TCP, a cable or a card runs at a lower rate, or others share it",
            exposed * (1 - rate / usual),
        )  # fmt: skip
        exposed *= rate / usual
    if exposed > _HIDEABLE * busy:
        parts = {} if plan is None else breakdown(plan)
        predicted = parts.get("collectives", 0.0) + parts.get("transfers", 0.0)
        yield Cause(
            "exchanges that don't hide",
            f"of {units.seconds(busy)} of exchanges {units.seconds(exposed)} have nothing computed beside them",
            "gradients are exchanged after the backward pass, buckets are too large, or a wait comes too early",
            min(exposed - predicted, step.computing_s),
        )


def _throttled(ranks: Sequence[MeasuredStep], cluster: Cluster) -> tuple[str, float, float] | None:
    """Returns the kind of exchange, the rate and the usual rate where large exchanges stay far below their link."""
    num_hosts = len(cluster.hosts)
    usual = (cluster.links[0][1] if num_hosts > 1 else cluster.links[0][0]).bytes_per_s
    by_kind: dict[str, list[tuple[float, float]]] = {}
    for n, exchange in enumerate(ranks[0].exchanges):
        if exchange.kind in MEASURED and exchange.num_bytes >= _LARGE_BYTES and exchange.group_size > 1:
            seconds = min(_nth(step, n, exchange).seconds for step in ranks)
            moved = RING_PASSES.get(exchange.kind, 1) * exchange.num_bytes * (1 - 1 / exchange.group_size)
            by_kind.setdefault(exchange.kind, []).append((moved, seconds))
    rates = {kind: math.fsum(m for m, _ in own) / math.fsum(s for _, s in own) for kind, own in by_kind.items()}
    if not rates:
        return None
    kind = min(rates, key=lambda kind: rates[kind])
    return (kind, rates[kind], usual) if rates[kind] < _THROTTLED * usual else None


def _nth(step: MeasuredStep, n: int, default: TracedExchange) -> TracedExchange:
    return step.exchanges[n] if n < len(step.exchanges) else default
