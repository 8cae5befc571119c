"""Measuring a cluster within a budget, and making a calibration of what was found.

Pipelines come first, since they are few, then collectives, then the memory of hosts. Each place gets a share of what is
left of the budget, and what it doesn't need goes to the next ones. The rates of devices aren't fitted: fits to programs
that run alone predicted stages worse than data sheets do.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu.calibration._calibration import Calibration
from alpa_dejavu.calibration._fit_host_memory import found_host_memory, host_places, host_probes
from alpa_dejavu.calibration.bench import (
    BETWEEN,
    HOST_MEMORY,
    WITHIN,
    CollectiveProbe,
    MeasurementError,
    PipelineProbe,
    Probe,
    ProbeBench,
    ProbePlace,
)  # fmt: skip
from alpa_dejavu.calibration.database import DatabaseData
from alpa_dejavu.calibration.fit_database import fit_database, fit_products
from alpa_dejavu.calibration.fit_links import LinkModel, fit_sends, next_measurement, predicted_s
from alpa_dejavu.calibration.measurements import Measurement, Measurements
from alpa_dejavu.calibration.parts import Fit, MeasuredLink
from alpa_dejavu.costs.communication import MEASURED
from alpa_dejavu.costs.latency import ProductCurve
from alpa_dejavu.problem import Cluster, Device, Link

_log = logging.getLogger(__name__)
_SHARES = {"pipelines": 0.4, "collectives": 0.6, HOST_MEMORY: 1.0}
"""The share of what is left of the budget when a place's turn comes; the places of its kind that are left split it."""
_LEAST_SPREAD = 0.05
_MOST_FAILURES = 3
_SENT_BYTES = (1 << 12, 1 << 18, 1 << 22)
_COLLECTIVE_BYTES = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 25, 1 << 28)
_LONGEST_S = 0.02


def identity(cluster: Cluster) -> dict[str, Any]:
    """Returns the data by which a cluster is recognised when measurements are used again."""
    return {
        "hosts": len(cluster.hosts),
        "devices_per_host": [host.num_devices for host in cluster.hosts],
        "devices": sorted({host.device.name for host in cluster.hosts}),
    }


def calibrate(
    cluster: Cluster,
    bench: ProbeBench,
    measurements: Measurements,
    budget_s: float,
    name: str,
    progress: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    database: DatabaseData | None = None,
    folder: str = "",
) -> Calibration:
    """Measures a cluster until all predictions are sure or the time is over; returns the calibration fitted to that,
    and to a `database` of Alpa's. ValueError if the budget isn't above zero, or the database is of other hosts.

    Hosts have equally many devices, with the figures known before; `progress` is told what is measured next; the drives
    of `folder` are measured, or of the system's if it is empty.
    """
    if not budget_s > 0:
        enough = f"{units.seconds(150)} are enough for a small cluster"
        raise ValueError(f"the budget is {units.seconds(budget_s)}, but must be above 0; {enough}")
    within, across, of_database = (None, None, []) if database is None else fit_database(database, cluster)
    end = clock() + budget_s
    progress("looking at what can be measured")
    parts = _parts_of(cluster, measurements, folder)
    for n, part in enumerate(parts):
        alike = sum(later.place.what == part.place.what for later in parts[n:])
        until = clock() + _SHARES[part.place.what] / alike * max(end - clock(), 0.0)
        _measure(part, bench, measurements, clock, until, progress)
    starts = _starts(measurements)
    figures: dict[str, Any] = {figure: value for figure, (value, _) in starts.items()}
    devices = {host.device.name: dataclasses.replace(host.device, **figures) for host in cluster.hosts}
    links, of_links = _fitted_links(cluster, parts, measurements)
    products, of_products = _fitted_products(cluster, devices, database)
    host_memory, of_memory, lacking = found_host_memory(cluster, measurements, folder)
    return Calibration(
        name=name,
        origin=f"alpa-dejavu calibrate on {cluster.name}: {len(measurements)} measurements",
        date=datetime.date.today().isoformat(),
        fits=(*of_links, *of_memory, *of_database, *of_products),
        missing=(*lacking, *_missing(parts, measurements)),
        devices=devices,
        device_spread={kind: {figure: spread for figure, (_, spread) in starts.items()} for kind in devices},
        links=links,
        within=within,
        across=across,
        products=products,
        host_memory=host_memory,
    )


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """A place of a cluster with its probes, and of collectives the fitted model; of others all are measured."""

    place: ProbePlace
    probes: Sequence[Probe]
    links: LinkModel | None = None

    def unsure(self, measurements: Measurements) -> np.ndarray[Any, Any]:
        """Returns the standard deviation of the logarithm of each probe's predicted seconds, shape (N,)."""
        return np.ones(len(self.probes)) if self.links is None else self.links.fit(self.seconds(measurements)).unsure

    def seconds(self, measurements: Measurements) -> dict[int, float]:
        """Returns the seconds of the collectives that were measured, by the index of the probe."""
        measured = measurements.at(self.place)
        return {n: measured[probe]["run_s"] for n, probe in enumerate(self.probes) if probe in measured}


def _parts_of(cluster: Cluster, measurements: Measurements, folder: str) -> list[_Part]:
    """Returns the places of a cluster with the probes to measure, in order, earlier collectives among them."""
    devices = cluster.hosts[0].num_devices
    links = ([WITHIN] if devices > 1 else []) + ([BETWEEN] if len(cluster.hosts) > 1 else [])
    parts = [_Part(ProbePlace("pipelines", where), [PipelineProbe(size) for size in _SENT_BYTES]) for where in links]
    for where in links:
        place, prior = ProbePlace("collectives", where), cluster.links[0][0 if where == WITHIN else 1]
        before = [probe for probe in measurements.at(place) if isinstance(probe, CollectiveProbe)]
        probes = list(dict.fromkeys((*_collectives(prior, devices, where == BETWEEN), *before)))
        parts.append(_Part(place, probes, LinkModel(prior, probes, devices)))
    memory = [_Part(place, host_probes(num_devices, folder)) for place, num_devices in host_places(cluster).items()]
    return parts + memory


def _collectives(prior: Link, devices: int, across: bool) -> list[CollectiveProbe]:
    """Returns collectives of all devices and of pairs, without sizes too long for the link by what is known of it."""
    whole = 2 * devices if across else devices
    groups = sorted({(whole, 1), (2, whole // 2)}) if whole % 2 == 0 else [(whole, 1)]
    listed = [
        CollectiveProbe(name, size, members, concurrent, across)
        for members, concurrent in groups
        for name in MEASURED
        for size in _COLLECTIVE_BYTES
    ]
    return [collective for collective in listed if predicted_s(collective, prior, devices) <= _LONGEST_S]


def _measure(
    part: _Part,
    bench: ProbeBench,
    measurements: Measurements,
    clock: Callable[[], float],
    until: float,
    progress: Callable[[str], None],
) -> None:
    """Measures what is least sure at a place, until all is sure or its time is over. Workers are started when they are
    first needed, and anew after a failure, whose family isn't tried again then.
    """
    failed: set[object] = set()
    run: Callable[[Probe], Mapping[str, float]] | None = None
    with ExitStack() as stack:
        while clock() < until and len(failed) < _MOST_FAILURES:
            spread, measured = part.unsure(measurements), measurements.at(part.place)
            families = [getattr(probe, "name", probe) for probe in part.probes]
            done = [n for n, probe in enumerate(part.probes) if probe in measured or families[n] in failed]
            chosen = next_measurement(spread, done)
            if chosen is None:
                return
            probe = part.probes[chosen]
            progress(f"{part.place}: {probe}, unsure by {100 * spread[chosen]:.0f} %")
            try:
                run = run or stack.enter_context(bench.open(part.place))
                measurements.add(Measurement(part.place, probe, _checked(run(probe))))
            except MeasurementError as error:
                failed.add(families[chosen])
                _log.warning("%s: %s failed: %s", part.place, probe, error)
                measurements.add(Measurement(part.place, probe, {}, str(error) or "unknown"))
                stack.close()
                run = None


def _checked(seconds: Mapping[str, float]) -> Mapping[str, float]:
    wrong = {what: value for what, value in seconds.items() if not (np.isfinite(value) and value > 0)}
    if wrong:
        took = ", ".join(f"{units.seconds(value)} for {what}" for what, value in wrong.items())
        raise MeasurementError(f"it took {took}")
    return seconds


def _starts(measurements: Measurements) -> dict[str, tuple[float, float]]:
    """Returns the seconds of a computation's and a step's start, of pipelines that pass on least, and their spread."""
    pipelines = [
        (probe.num_bytes, seconds)
        for where in (WITHIN, BETWEEN)
        for probe, seconds in measurements.at(ProbePlace("pipelines", where)).items()
        if isinstance(probe, PipelineProbe)
    ]
    values: dict[str, tuple[float, float]] = {}
    for name in ("dispatch_s", "step_s") if pipelines else ():
        logs = np.log([seconds[name] for _, seconds in pipelines])
        least = min(num_bytes for num_bytes, _ in pipelines)
        smallest = [seconds[name] for num_bytes, seconds in pipelines if num_bytes == least]
        spread = max(float(logs.std()), _LEAST_SPREAD) if len(logs) > 1 else 1.0
        values[name] = statistics.geometric_mean(smallest), spread
    return values


def _fitted_links(
    cluster: Cluster, parts: Sequence[_Part], measurements: Measurements
) -> tuple[tuple[MeasuredLink, ...], list[Fit]]:
    links: list[MeasuredLink] = []
    fits: list[Fit] = []
    for part in parts:
        if part.links is None:
            continue
        where, seconds = part.place.where, part.seconds(measurements)
        sent = measurements.at(ProbePlace("pipelines", where))
        if not sent and not seconds:
            continue
        fit, errors = part.links.fit(seconds), part.links.left_out_errors(seconds)
        sizes = [probe.num_bytes for probe in sent if isinstance(probe, PipelineProbe)]
        link, sending = fit_sends(fit.link, sizes, [took["send_s"] for took in sent.values()])
        ends = cluster.hosts[0].device.name, cluster.hosts[0 if where == WITHIN else 1].device.name
        links.append(MeasuredLink(ends, where == WITHIN, link, {**fit.spread, **sending}))
        left_out = "collective" if errors else ""
        fits.append(Fit(f"collectives {where}", "alpa-dejavu calibrate", len(seconds), left_out, errors))
        fits.append(Fit(f"sends {where}", "alpa-dejavu calibrate: pipelines of two stages", len(sent)))
    return tuple(links), fits


def _fitted_products(
    cluster: Cluster, devices: Mapping[str, Device], database: DatabaseData | None
) -> tuple[dict[str, Mapping[str, ProductCurve]], list[Fit]]:
    """Fits the products of a database, which are of the first host's devices."""
    if database is None:
        return {}, []
    device = devices[cluster.hosts[0].device.name]
    curves, fits = fit_products(database, device)
    return ({device.name: curves} if curves else {}), fits


def _missing(parts: Sequence[_Part], measurements: Measurements) -> list[str]:
    unmeasured = [
        f"{part.place}: nothing was measured, so earlier figures stay; go on with --resume"
        for part in parts
        if not measurements.at(part.place)
    ]
    return unmeasured + [
        f"{part.place}: {probe} can't be measured: {error}"
        for part in parts
        for probe, error in measurements.failed_at(part.place).items()
    ]
