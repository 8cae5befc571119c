"""A calibration of the machine that a traced step of a plan ran on.

The rates of matrix products are those that the trace has, by their operations. Links are fitted to its exchanges. What
is left of the computing, the optimizer and the gaps in which the host prepares is divided by what the plan's estimate
has for them; so the estimate of the traced plan is the measured step, and others scale from it.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import final

import numpy as np

from alpa_dejavu.calibration import Calibration
from alpa_dejavu.calibration.bench import CollectiveProbe
from alpa_dejavu.calibration.fit_links import LinkModel
from alpa_dejavu.calibration.parts import Fit, MeasuredLink, TracedRuntime
from alpa_dejavu.calibration.traces import MeasuredStep, median_step, waiting_s
from alpa_dejavu.costs.communication import MEASURED
from alpa_dejavu.costs.latency import ProductCurve
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.problem import Cluster, Device, Plan
from alpa_dejavu.simulation.breakdown import breakdown, gradients_s

_DTYPES = {"float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16", "double": "float64"}
_LEAST_SHARE, _FEWEST_SIZES = 0.005, 3
"""Products that take a smaller share of all products' seconds, and fewer sizes than this, tell no curve."""
_ROUNDS = 3
_TWICE, _MOST_SCALE, _LEAST_START_S, _LEAST_FACTOR = 2.0, 100.0, 1e-7, 0.5


@final
@dataclasses.dataclass(frozen=True)
class TracedCalibration:
    """A calibration by a trace, with the step that was measured and the one that the plan's estimate has by it."""

    calibration: Calibration
    measured_s: float
    estimated_s: float
    events: Mapping[str, int]  # how many events each figure rests on


def calibration_of_trace(
    plan: Plan, steps: Sequence[MeasuredStep], cluster: Cluster, *, name: str, date: datetime.date
) -> TracedCalibration:
    """Returns a calibration of the cluster's one kind of device and its links, by the traced steps of a plan on it.

    Raises ValueError if the cluster has several kinds of devices, or the trace has no products with shapes.
    """
    kinds = {host.device for host in cluster.hosts}
    if len(kinds) != 1:
        names = ", ".join(sorted(device.name for device in kinds))
        raise ValueError(f"the cluster has devices of several kinds ({names}), but a trace calibrates one; trace each")
    ranks, (device,) = median_step(steps), kinds
    sizes = _sizes(steps)
    rates, curves, fits = _products(sizes)
    links, link_fits = _links(steps, cluster)
    measured_s = max(step.seconds for step in ranks)
    runtime = "" if plan.priced_by is None else plan.priced_by.runtime.partition("+")[0]
    device = dataclasses.replace(
        device, flop_per_s={**device.flop_per_s, **rates}, dispatch_s=0.0, step_s=0.0, origin=f"trace {name}"
    )
    spread = {f"flop_per_s[{dtype}]": _spread(sizes[dtype].values()) for dtype in rates}

    def calibrated(figures: _TraceFactors) -> Calibration:
        products = {dtype: _shifted(curve, figures.products) for dtype, curve in curves.items()}
        return Calibration(
            name=name, origin=f"a traced step of {plan.model} on {plan.cluster}", date=date.isoformat(),
            fits=(*fits, *link_fits), products={device.name: products}, devices={device.name: figures.on(device)},
            device_spread={device.name: spread}, links=links,
            traced=TracedRuntime(runtime, figures.step_s) if runtime else None,
        )  # fmt: skip

    def estimated(figures: _TraceFactors) -> Plan:
        return PlanEstimator(plan, cluster=cluster, calibration=calibrated(figures)).estimate(plan).plan

    figures = _closed(estimated, ranks)
    # What is left is what a step takes besides: gaps, data, and waiting for the slowest rank. Where the estimate is
    # longer, since it hides less or sends more messages than the run did, all that computes is shorter by as much.
    own = estimated(figures)
    left_s = measured_s - own.step_s
    shorter = max(1 + min(0.0, left_s) / _computing(own), _LEAST_FACTOR)
    figures = _TraceFactors(
        figures.products * shorter, figures.others * shorter, figures.starts * shorter, figures.parameters,
        max(0.0, left_s),
    )  # fmt: skip
    count = sum(operator.count for step in steps for operator in step.operators)
    events = {"operators": count, "exchanges": sum(len(step.exchanges) for step in steps)}
    return TracedCalibration(calibrated(figures), measured_s, estimated(figures).step_s, events)


@final
@dataclasses.dataclass(frozen=True)
class _TraceFactors:
    """Factors of the seconds of products, of other operators, of their starts and of the updates of parameters; and the
    seconds that a step takes besides.
    """

    products: float = 1.0
    others: float = 1.0
    starts: float = 1.0
    parameters: float = 1.0
    step_s: float = 0.0

    def on(self, device: Device) -> Device:
        """Returns the device whose other operators, and whose parameters, take so many times as long."""
        slower = device.slower(self.others)
        of_parameters = slower.memory_bytes_per_s / self.parameters
        # What one operator computes isn't told from what it reads and writes: memory bounds all of them.
        vector = max(device.vector_flop_per_s, slower.memory_bytes_per_s, of_parameters)
        return dataclasses.replace(
            slower, flop_per_s=device.flop_per_s, dispatch_s=device.dispatch_s, step_s=self.step_s,
            vector_flop_per_s=vector, uncached_bytes_per_s=of_parameters,
            kernel_s=max(device.kernel_s, _LEAST_START_S) * self.starts,
        )  # fmt: skip


def _closed(estimated: Callable[[_TraceFactors], Plan], ranks: Sequence[MeasuredStep]) -> _TraceFactors:
    """Returns the factors with which the estimate of the plan has the measured seconds of each."""

    def mean(*kinds: str) -> float:
        return statistics.fmean(sum(map(step.exposed_s, kinds)) for step in ranks)

    products_s, optimizer_s = mean("products", "grouped products", "attention"), mean("optimizer")
    starts_s = mean("dispatch") + statistics.fmean(step.gaps_s - step.longest_gap_s for step in ranks)
    others_s = statistics.fmean(step.computing_s for step in ranks) - products_s - mean("dispatch") - optimizer_s
    figures = _TraceFactors()
    for _ in range(_ROUNDS):
        computing = _computing(estimated(figures))

        def own(name: str, figures: _TraceFactors = figures, computing: float = computing) -> float:
            """The seconds that are as many times as long as a figure."""
            changed = {name: _TWICE * getattr(figures, name)}
            return _computing(estimated(dataclasses.replace(figures, **changed))) - computing

        figures = dataclasses.replace(
            figures,
            products=figures.products * _ratio(products_s, own("products")),
            others=figures.others * _ratio(others_s, own("others")),
            starts=figures.starts * _ratio(starts_s, own("starts")),
        )
        updates = _ratio(optimizer_s, _optimizer(estimated(figures)))
        figures = dataclasses.replace(figures, parameters=figures.parameters * updates)
    return figures


def _ratio(measured_s: float, estimated_s: float) -> float:
    if measured_s <= 0 or estimated_s <= 0:
        return 1.0
    return min(max(measured_s / estimated_s, 1 / _MOST_SCALE), _MOST_SCALE)


def _shifted(curve: ProductCurve, factor: float) -> ProductCurve:
    return dataclasses.replace(curve, level=curve.level + math.log(factor))


def _computing(plan: Plan) -> float:
    return breakdown(plan)["computing"]


def _optimizer(plan: Plan) -> float:
    """Returns the seconds of updates: what is done once a step, but for gradients' exchange and starts of programs."""
    return breakdown(plan)["once a step"] - gradients_s(plan)


def _products(
    by_dtype: Mapping[str, Mapping[float, Sequence[float]]],
) -> tuple[dict[str, float], dict[str, ProductCurve], list[Fit]]:
    """Returns the best rate of matrix products by dtype, how far products of a size stay below it, and the fits."""
    rates: dict[str, float] = {}
    curves: dict[str, ProductCurve] = {}
    fits: list[Fit] = []
    for dtype, sizes in by_dtype.items():
        seconds = {flop: math.fsum(own) / len(own) for flop, own in sizes.items()}
        rate = max(flop / mean_s for flop, mean_s in seconds.items())
        rates[dtype] = rate
        flop = np.array(sorted(seconds))
        ratio = np.array([seconds[size] * rate / size for size in flop.tolist()])
        if len(flop) >= _FEWEST_SIZES:
            curves[dtype] = ProductCurve.fit(flop, ratio)
        else:
            curves[dtype] = ProductCurve(float(np.log(ratio).mean()), 0.0, 0.0, float(flop[0]), float(flop[-1]))
        errors = np.abs(curves[dtype].factor(flop) / ratio - 1)
        fits.append(
            Fit(f"products in {dtype}", "matrix products of a traced step", sum(map(len, sizes.values())),
                figures={"sizes": float(len(flop)), "largest error": float(errors.max())})
        )  # fmt: skip
    if not rates:
        raise ValueError(
            "the trace has no matrix products whose shapes are known; record it with record_shapes=True, on torch"
        )
    return rates, curves, fits


def _sizes(steps: Iterable[MeasuredStep]) -> dict[str, dict[float, list[float]]]:
    """Returns for each dtype and number of operations the mean seconds of such products in each step."""
    sizes = collections.defaultdict[str, dict[float, list[float]]](lambda: collections.defaultdict(list))
    for step in steps:
        whole = math.fsum(operator.seconds for operator in step.operators if operator.flop)
        for operator in step.operators:
            if operator.flop and operator.seconds >= _LEAST_SHARE * whole and operator.dtype in _DTYPES:
                sizes[_DTYPES[operator.dtype]][operator.flop].append(operator.seconds / operator.count)
    return {dtype: dict(own) for dtype, own in sizes.items()}


def _spread(sizes: Iterable[Sequence[float]]) -> float:
    """Returns the standard deviation of the logarithm of products of one size, from step to step and from shape to
    shape.
    """
    logs = [np.log(own) for own in sizes if len(own) > 1]
    return float(np.sqrt(np.mean([np.var(own) for own in logs]))) if logs else 0.0


def _links(steps: Sequence[MeasuredStep], cluster: Cluster) -> tuple[tuple[MeasuredLink, ...], list[Fit]]:
    """Returns the link fitted to the exchanges of all steps, each by the rank that waits least for the others."""
    across = len(cluster.hosts) > 1
    prior, kind = cluster.links[0][1 if across else 0], cluster.hosts[0].device.name
    seconds = collections.defaultdict[CollectiveProbe, list[float]](list)
    for number in {step.number for step in steps}:
        ranks = [step for step in steps if step.number == number]
        waits = waiting_s(ranks)
        last = ranks[waits.index(min(waits))]
        for exchange in last.exchanges:
            if exchange.kind in MEASURED and exchange.num_bytes >= 1 and exchange.group_size > 1:
                probe = CollectiveProbe(exchange.kind, int(exchange.num_bytes), exchange.group_size, 1, across)
                seconds[probe].append(exchange.seconds)
    if not seconds:
        return (), []
    probes = list(seconds)
    fit = LinkModel(prior, probes, cluster.hosts[0].num_devices).fit(
        {n: statistics.median(seconds[probe]) for n, probe in enumerate(probes)}
    )
    rows = sum(map(len, seconds.values()))
    link = MeasuredLink((kind, kind), not across, fit.link, fit.spread)
    return (link,), [Fit("exchanges", "collectives of a traced step", rows, figures={"sizes": float(len(probes))})]
