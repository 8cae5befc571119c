"""Measuring a cluster within a budget, and making a calibration of what was found.

Pipelines, links and the memory of hosts come first, since they are few; most of what is left of the budget goes to the
devices, and the rest to stages of pipelines, by which the devices' fitted figures are judged. Each place gets a share
of what is left, and what it doesn't need goes to the next ones.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu.calibration._calibration import Calibration, Fit, MeasuredLink
from alpa_dejavu.calibration._fit_database import fit_database, fit_products
from alpa_dejavu.calibration._fit_host_memory import found_host_memory
from alpa_dejavu.calibration._fit_links import fit_sends
from alpa_dejavu.calibration._judged import Judged
from alpa_dejavu.calibration._log_fit import next_measurement
from alpa_dejavu.calibration._places import Part, devices_of, parts_of
from alpa_dejavu.calibration.bench import BETWEEN, HOST_MEMORY, WITHIN, Bench, MeasurementError, Pipeline, Place, Probe
from alpa_dejavu.calibration.database import Database
from alpa_dejavu.calibration.measurements import Measurement, Measurements
from alpa_dejavu.calibration.operators import Program
from alpa_dejavu.costs.latency.product_curve import ProductCurve
from alpa_dejavu.problem import Cluster, Device

__all__ = ["calibrate", "identity"]

_log = logging.getLogger(__name__)
_SHARES = {"pipelines": 0.4, "collectives": 0.4, HOST_MEMORY: 0.3, "programs": 0.75, "stages": 1.0}
"""The share of what is left of the budget when a place's turn comes; the places of its kind that are left split it."""
_UNMEASURED, _KNOWN = {"stages": "fitted figures weren't judged by any"}, "what was known before stands"
_LEAST_SPREAD = 0.05
_MOST_FAILURES = 3


def identity(cluster: Cluster) -> dict[str, Any]:
    """Returns the data by which a cluster is recognised when measurements are used again: its numbers of hosts and
    devices, and its kinds of devices.
    """
    return {
        "hosts": len(cluster.hosts),
        "devices_per_host": [host.num_devices for host in cluster.hosts],
        "devices": sorted(devices_of(cluster)),
    }


def calibrate(
    cluster: Cluster,
    bench: Bench,
    measurements: Measurements,
    budget_s: float,
    name: str,
    progress: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    database: Database | None = None,
    folder: str = "",
) -> Calibration:
    """Measures a cluster until all predictions are sure or the time is over; returns the calibration that is fitted to
    the measurements.

    Args:
        cluster: the cluster with the figures that are known before measuring; its hosts have equally many devices.
        bench: the bench that measures probes (programs, collectives, pipelines, memory) on the cluster.
        measurements: the measurements that there are already; new ones are added to them.
        budget_s: seconds that measuring may take; a measurement that was begun is finished.
        name: the calibration's name.
        progress: a function that is called with a text on what is measured next.
        clock: a function that returns the seconds that have passed.
        database: what Alpa's profiler measured of such a cluster before; collectives and matrix products are then
            fitted to it.
        folder: the folder of a host whose drives are measured; empty: the system's for temporary files.

    Raises:
        ValueError: the budget isn't above zero, or the database is of other hosts.
    """
    if not budget_s > 0:
        enough = f"{units.seconds(150)} are enough for a small cluster"
        raise ValueError(f"the budget is {units.seconds(budget_s)}, but must be above 0; {enough}")
    within, across, given = (None, None, []) if database is None else fit_database(database, cluster)
    end = clock() + budget_s
    progress("looking at what can be measured")
    places = parts_of(cluster, measurements, folder)
    for n, part in enumerate(places):
        alike = sum(later.place.what == part.place.what for later in places[n:])
        share = _SHARES[part.place.what] / alike * max(end - clock(), 0.0)
        _measure(part, bench, measurements, functools.partial(_is_over, clock, clock() + share), progress)
    devices, spread, fits, refused = _found_devices(cluster, places, measurements)
    links, more = _found_links(cluster, places, measurements)
    products, of_products = _found_products(cluster, devices, database)
    host_memory, of_memory, lacking = found_host_memory(cluster, measurements, folder)
    return Calibration(
        name=name,
        origin=f"alpa-dejavu calibrate on {cluster.name}: {len(measurements)} measurements",
        date=datetime.date.today().isoformat(),
        fits=(*fits, *more, *of_memory, *given, *of_products),
        missing=(*refused, *lacking, *_missing(places, measurements)),
        devices=devices,
        device_spread=spread,
        links=links,
        within=within,
        across=across,
        products=products,
        host_memory=host_memory,
    )


def _found_products(
    cluster: Cluster, devices: Mapping[str, Device], database: Database | None
) -> tuple[dict[str, Mapping[str, ProductCurve]], list[Fit]]:
    """The products of a database are of the first host's devices, if their rates were measured."""
    device = devices.get(cluster.hosts[0].device.name)
    if database is None or device is None:
        return {}, []
    curves, fits = fit_products(database, device)
    return ({device.name: curves} if curves else {}), fits


def _measure(
    part: Part, bench: Bench, measurements: Measurements, over: Callable[[], bool], progress: Callable[[str], None]
) -> None:
    """Measures at one place what is least sure, until all is sure or its time is over.

    Workers are started when the first measurement is due, and anew after one that failed. Others of its family are not
    tried then.
    """
    failed: set[object] = set()
    run: Callable[[Probe], Mapping[str, float]] | None = None
    with ExitStack() as stack:
        while not over() and len(failed) < _MOST_FAILURES:
            spread, known = part.unsure(measurements), measurements.at(part.place)
            done = [n for n, probe in enumerate(part.probes) if probe in known or _family(probe) in failed]
            chosen = next_measurement(spread, done)
            if chosen is None:
                return
            probe = part.probes[chosen]
            progress(f"{part.place}: {probe}, unsure by {100 * spread[chosen]:.0f} %")
            try:
                run = run or stack.enter_context(bench.open(part.place))
                measurements.add(Measurement(part.place, probe, _checked(run(probe))))
            except MeasurementError as error:
                failed.add(_family(probe))
                _log.warning("%s: %s failed: %s", part.place, probe, error)
                measurements.add(Measurement(part.place, probe, {}, str(error) or "unknown"))
                stack.close()
                run = None


def _family(probe: Probe) -> object:
    return getattr(probe, "name", probe)


def _is_over(clock: Callable[[], float], end: float) -> bool:
    return clock() >= end


def _checked(seconds: Mapping[str, float]) -> Mapping[str, float]:
    wrong = {what: value for what, value in seconds.items() if not (np.isfinite(value) and value > 0)}
    if wrong:
        took = ", ".join(f"{units.seconds(value)} for {what}" for what, value in wrong.items())
        raise MeasurementError(f"it took {took}")
    return seconds


def _found_devices(
    cluster: Cluster, places: Sequence[Part], measurements: Measurements
) -> tuple[dict[str, Device], dict[str, Mapping[str, float]], list[Fit], list[str]]:
    runtime, refused, fits = _runtime(measurements), list[str](), list[Fit]()
    devices: dict[str, Device] = {}
    spread: dict[str, Mapping[str, float]] = {}
    for part in places:
        if part.devices is None:
            continue
        kind, found = part.place.where, part.devices.finish(part.seconds(measurements))
        rows = len(measurements.at(part.place))
        origin = f"alpa-dejavu calibrate: {rows} programs on all devices of a host at a time"
        changed: dict[str, Any] = {name: value for name, (value, _) in runtime.items()}
        changed |= {"origin": origin} if rows and not found.refused else {}
        devices[kind] = dataclasses.replace(found.figures, **changed)
        spread[kind] = {**found.spread, **{name: sure for name, (_, sure) in runtime.items()}}
        left_out = "program" if found.held_out else ""
        fits.append(Fit(f"programs on {kind}", origin, rows, left_out, found.held_out))
        stages = _stages(kind, measurements)
        judged = Judged(part.devices.prior, devices[kind], stages)
        if stages:
            errors = {"mape": judged.before if judged.refused else judged.fitted}
            fits.append(Fit(f"stages on {kind}", "alpa-dejavu calibrate: pipelines", len(stages), "stage", errors))
        if judged.refused:
            devices[kind] = part.devices.prior
            spread[kind] = {name: max(sure, judged.before) for name, sure in spread[kind].items()}
        refused += [f"{part.place}: {why}" for why in (found.refused, judged.refused) if why]
    return devices, spread, fits, refused


def _stages(kind: str, measurements: Measurements) -> dict[Program, float]:
    """Returns the seconds of each program that was measured as a stage of a pipeline."""
    found = measurements.at(Place("stages", kind))
    return {probe: took["run_s"] for probe, took in found.items() if isinstance(probe, Program)}


def _found_links(
    cluster: Cluster, places: Sequence[Part], measurements: Measurements
) -> tuple[tuple[MeasuredLink, ...], list[Fit]]:
    links: list[MeasuredLink] = []
    fits: list[Fit] = []
    for part in places:
        if part.links is None:
            continue
        where, seconds = part.place.where, part.seconds(measurements)
        sent = measurements.at(Place("pipelines", where))
        if not sent and not seconds:
            continue
        found = part.links.finish(seconds)
        sizes = [probe.num_bytes for probe in sent if isinstance(probe, Pipeline)]
        link, sending = fit_sends(found.figures, sizes, [took["send_s"] for took in sent.values()])
        ends = cluster.hosts[0].device.name, cluster.hosts[0 if where == WITHIN else 1].device.name
        links.append(MeasuredLink(ends, where == WITHIN, link, {**found.spread, **sending}))
        left_out = "collective" if found.held_out else ""
        fits.append(Fit(f"collectives {where}", "alpa-dejavu calibrate", len(seconds), left_out, found.held_out))
        fits.append(Fit(f"sends {where}", "alpa-dejavu calibrate: pipelines of two stages", len(sent)))
    return tuple(links), fits


def _runtime(measurements: Measurements) -> dict[str, tuple[float, float]]:
    """Returns by name the seconds that a computation and a step cost besides their operators, each with its spread.

    The seconds are those of the pipelines that pass on least; the spread is that of all pipelines.
    """
    found = [
        (probe.num_bytes, seconds)
        for where in (WITHIN, BETWEEN)
        for probe, seconds in measurements.at(Place("pipelines", where)).items()
        if isinstance(probe, Pipeline)
    ]
    if not found:
        return {}
    least = min(num_bytes for num_bytes, _ in found)
    values: dict[str, tuple[float, float]] = {}
    for name in ("dispatch_s", "step_s"):
        logs = np.log([seconds[name] for _, seconds in found])
        smallest = [seconds[name] for num_bytes, seconds in found if num_bytes == least]
        spread = max(float(logs.std()), _LEAST_SPREAD) if len(logs) > 1 else 1.0
        values[name] = statistics.geometric_mean(smallest), spread
    return values


def _missing(places: Sequence[Part], measurements: Measurements) -> list[str]:
    said = [
        f"{part.place}: nothing was measured, so {_UNMEASURED.get(part.place.what, _KNOWN)}; go on with --resume"
        for part in places
        if not measurements.at(part.place)
    ]
    return said + [
        f"{part.place}: {probe} can't be measured: {error}"
        for part in places
        for probe, error in measurements.failed_at(part.place).items()
    ]
