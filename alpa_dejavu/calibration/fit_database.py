"""Collectives and products fitted to a converted profiling database of Alpa's, for a cluster's links and devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.calibration.database import DatabaseData, MeshData, SeriesData, sizes_of
from alpa_dejavu.calibration.fit_links import summary
from alpa_dejavu.calibration.parts import Fit
from alpa_dejavu.costs.communication.learned import Collectives, FittedCollectives, PredictedSeconds
from alpa_dejavu.costs.latency import ProductCurve
from alpa_dejavu.problem import Cluster, Device

_LARGE_BYTES, _FAR = 2.0**20, 100.0
"""Messages whose bytes take longer than their launch, and how far they may be from what links do."""
_FEWEST = 12
"""Rows under which there is no fit of so many figures."""
_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
_OF_LAUNCH, _FEWEST_SIZES = 10.0, 5
"""Products that take so many times as long as the shortest one are more than a launch, and how many a curve needs."""


def fit_database(
    database: DatabaseData, cluster: Cluster
) -> tuple[FittedCollectives | None, FittedCollectives | None, list[Fit]]:
    """Fits a model of collectives within hosts, and one across hosts, to Alpa's database, by shares of the cluster's
    links' rates; None for too few measurements. Returns both, and a record of each fit. Raises ValueError for no meshes
    of as many devices on a host or fewer, or times so far off that they must be in another unit.
    """
    devices, origin = cluster.hosts[0].num_devices, database["origin"]
    meshes = [mesh for mesh in database["meshes"] if mesh["mesh"][1] <= devices]
    if not meshes:
        counts = sorted({mesh["mesh"][1] for mesh in database["meshes"]})
        raise ValueError(
            f"the database {origin} is of hosts with {counts} devices, but those of {cluster.name} have {devices}; "
            "give the database of this cluster, or none"
        )
    models: list[FittedCollectives | None] = []
    fits: list[Fit] = []
    for where, across in (("within hosts", False), ("across hosts", True)):
        link = cluster.links[0][1 if across else 0] if len(cluster.hosts) > 1 or not across else None
        rows, seconds, groups = _rows(meshes, across, None if link is None else link.group_bytes_per_s)
        _check_scale(origin, where, rows, np.array(seconds))
        enough = len(seconds) >= _FEWEST and (not across or models[0] is not None)
        model = FittedCollectives().fit(rows, seconds, groups) if enough else None
        models.append(model)
        if model is not None:
            left_out = _what_is_left_out(groups)
            errors = errors_of(model.left_out_errors) if left_out else {}
            fits.append(Fit(f"collectives {where}", f"Alpa's profiler: {origin}", len(seconds), left_out, errors))
    return models[0], models[1], fits


def fit_products(database: DatabaseData, device: Device) -> tuple[dict[str, ProductCurve], list[Fit]]:
    """Fits curves of products to Alpa's database, measured on such a device; returns them by dtype, if there are enough
    sizes, and a record of each fit, with its errors on sizes left out in turn.
    """
    curves: dict[str, ProductCurve] = {}
    fits: list[Fit] = []
    for dtype, (flop, seconds) in products_of(database).items():
        ratio = seconds * device.rate(dtype) / flop
        curves[dtype] = ProductCurve.fit(flop, ratio)
        errors = errors_of(ProductCurve.left_out_errors(flop, ratio))
        fits.append(Fit(f"products in {dtype}", f"Alpa's profiler: {database['origin']}", len(flop), "size", errors))
    return curves, fits


def products_of(database: DatabaseData) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Returns operations and seconds of matrix products longer than a launch, by dtype, where there are enough."""
    products = {}
    every = [series for mesh in database["meshes"] for series in mesh["series"] if series["name"] == "dot"]
    for short, dtype in _DTYPES.items():
        alike = [series for series in every if series["dtype"] == short]
        flop = np.array([size for series in alike for size in series["flop"]], dtype=np.float64)
        seconds = np.array([took for series in alike for took in series["seconds"]], dtype=np.float64)
        long = (flop > 0) & (seconds >= _OF_LAUNCH * seconds.min(initial=np.inf))
        if len(np.unique(flop[long])) >= _FEWEST_SIZES:
            products[dtype] = flop[long], seconds[long]
    return products


@final
@dataclasses.dataclass(frozen=True, eq=False)
class FittedAlone:
    """Collectives fitted to a database alone, on links at the fastest one's rate; `left_out` in turn for its errors."""

    model: FittedCollectives
    lanes_bytes_per_s: float
    left_out: str

    def predict(self, series: SeriesData, devices_per_host: int, num_bytes: FloatArray) -> PredictedSeconds:
        """Predicts the seconds of the collective of a series, of so many bytes, on hosts with so many devices."""
        hosts, sharing = spans(series, devices_per_host)
        same = np.ones(len(num_bytes))
        rows = Collectives(
            np.full(len(same), series["name"]), num_bytes, len(series["groups"][0]) * same, hosts * same,
            (sharing if hosts > 1 else 1) * same, self.lanes_bytes_per_s * same,
        )  # fmt: skip
        return self.model.predict(rows)


def fit_alone(database: DatabaseData, across: bool) -> FittedAlone | None:
    """Fits a model to all measured collectives within hosts, or to those across hosts; None if there are too few."""
    rows, seconds, groups = _rows(database["meshes"], across, lambda _: 1.0)
    if len(seconds) < _FEWEST:
        return None
    fastest = float((rows.volume_s / np.array(seconds)).max())
    rows = dataclasses.replace(rows, lanes=np.full(len(rows), fastest))
    return FittedAlone(FittedCollectives().fit(rows, seconds, groups), fastest, _what_is_left_out(groups))


def errors_of(logs: FloatArray) -> dict[str, float]:
    """Returns the mean and the median absolute error, as fractions, from logarithms of measured over predicted."""
    return summary(np.abs(np.expm1(-logs)))


def _what_is_left_out(groups: Sequence[str]) -> str:
    return ("group size" if groups[0].isdecimal() else "mesh") if len(set(groups)) > 1 else ""


def _check_scale(origin: str, where: str, rows: Collectives, seconds: FloatArray) -> None:
    """Raises ValueError where large messages take a hundred times what the links need, or a hundredth."""
    large = np.flatnonzero(rows.num_bytes >= _LARGE_BYTES)
    if not len(large):
        return
    times = seconds[large] / rows.volume_s[large]
    middle = float(np.median(times))
    if 1 / _FAR <= middle <= _FAR:
        return
    row = large[int(np.abs(np.log(times / middle)).argmin())]
    raise ValueError(
        f"the database {origin}: collectives {where} take {middle:.2g} times what the links of the cluster need: "
        f"{rows.name[row]} of {units.exact_bytes(rows.num_bytes[row])} among {rows.size[row]:g} devices in "
        f"{units.seconds(seconds[row])}. Are its times in another unit? Convert them to seconds, or "
        "give the database of this cluster, or none"
    )


def _rows(
    meshes: Sequence[MeshData], across: bool, lanes_of: Callable[[int], float] | None
) -> tuple[Collectives, list[float], list[str]]:
    """Returns the measured collectives, their seconds, and meshes, by `lanes_of`, the bytes per second of a group."""
    columns: list[tuple[str, float, int, int, int, float]] = []
    seconds: list[float] = []
    labels: list[tuple[str, str]] = []
    for mesh in meshes:
        num_hosts, per_host = mesh["mesh"]
        for series in mesh["series"]:
            if series["name"] == "dot" or len(series["groups"][0]) < 2:
                continue
            hosts, sharing = spans(series, per_host)
            if (hosts > 1) != across or lanes_of is None:
                continue
            size = len(series["groups"][0])
            for num_bytes, took in zip(sizes_of(series), series["seconds"], strict=True):
                if num_bytes > 0:
                    columns.append((series["name"], num_bytes, size, hosts, sharing if across else 1, lanes_of(size)))
                    seconds.append(took)
                    labels.append((f"{num_hosts}x{per_host}", str(size)))
    name = np.array([column[0] for column in columns], dtype=np.str_)
    numbers = np.array([column[1:] for column in columns], dtype=np.float64).reshape(-1, 5)
    several = len({mesh for mesh, _ in labels}) > 1
    return Collectives(name, *numbers.T), seconds, [mesh if several else size for mesh, size in labels]


def spans(series: SeriesData, devices_per_host: int) -> tuple[int, int]:
    """Returns how many hosts a group of a series spans, and how many groups share the network of a host."""
    hosts = [{device // devices_per_host for device in group} for group in series["groups"]]
    sharing = max(sum(host in span for span in hosts) for host in set().union(*hosts))
    return max(map(len, hosts)), sharing
