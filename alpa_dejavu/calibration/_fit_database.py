"""Collectives fitted to a converted profiling database of Alpa's, for the links of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.calibration._calibration import Fit
from alpa_dejavu.calibration.database import Database, MeshProfile, Series
from alpa_dejavu.costs.communication.learned import Collectives, FittedCollectives
from alpa_dejavu.problem import Cluster

__all__ = ["fit_database"]

_LARGE_BYTES, _FAR = 2.0**20, 100.0
"""Messages whose bytes take longer than their launch, and how far they may be from what links do."""
_FEWEST = 12
"""Rows under which there is no fit of so many figures."""


def fit_database(
    database: Database, cluster: Cluster
) -> tuple[FittedCollectives | None, FittedCollectives | None, list[Fit]]:
    """Fits a model of collectives within hosts, and one of those across hosts, to Alpa's profiling database.

    Args:
        database: the measurements of collectives, from the cluster's kind of hosts.
        cluster: the cluster, whose links give the rates that the fitted rates are shares of.

    Returns:
        The model within hosts, the model across hosts, each None where there are too few measurements, and a record of
        each fit.

    Raises:
        ValueError: no mesh of the database has as many devices on a host as the cluster, or fewer; or its times are so
            far from what the cluster's links do that they must be in another unit, or another cluster's.
    """
    devices = cluster.hosts[0].num_devices
    meshes = [mesh for mesh in database.meshes if mesh.devices_per_host <= devices]
    if not meshes:
        there = sorted({mesh.devices_per_host for mesh in database.meshes})
        raise ValueError(
            f"the database {database.origin} is of hosts with {there} devices, but those of {cluster.name} have "
            f"{devices}; give the database of this cluster, or none"
        )
    found: list[FittedCollectives | None] = []
    fits: list[Fit] = []
    for where, across in (("within hosts", False), ("across hosts", True)):
        rows, seconds, groups = _rows(meshes, cluster, across)
        _check_scale(database.origin, where, rows, np.array(seconds))
        enough = len(seconds) >= _FEWEST and (not across or found[0] is not None)
        found.append(FittedCollectives().fit(rows, seconds, groups) if enough else None)
        if enough:
            fits.append(Fit(f"collectives {where}", f"Alpa's profiler: {database.origin}", len(seconds)))
    return found[0], found[1], fits


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


def _rows(meshes: Sequence[MeshProfile], cluster: Cluster, across: bool) -> tuple[Collectives, list[float], list[str]]:
    """Returns the measured collectives of at least two devices, their seconds, and the mesh that each was run on."""
    columns: list[tuple[str, float, int, int, int, float]] = []
    seconds: list[float] = []
    labels: list[str] = []
    for mesh in meshes:
        for one in mesh.series:
            if one.name == "dot" or len(one.groups[0]) < 2:
                continue
            hosts, sharing = _spans(one, mesh.devices_per_host)
            if (hosts > 1) != across or (across and len(cluster.hosts) < 2):
                continue
            link = cluster.links[0][1 if across else 0]
            size = len(one.groups[0])
            lanes = link.group_bytes_per_s(size)
            for num_bytes, took in zip(one.sizes, one.seconds, strict=True):
                if num_bytes > 0:
                    columns.append((one.name, num_bytes, size, hosts, sharing if across else 1, lanes))
                    seconds.append(took)
                    labels.append(f"{mesh.hosts}x{mesh.devices_per_host}")
    name = np.array([column[0] for column in columns], dtype=np.str_)
    numbers = np.array([column[1:] for column in columns], dtype=np.float64).reshape(-1, 5)
    return Collectives(name, *numbers.T), seconds, labels


def _spans(one: Series, devices_per_host: int) -> tuple[int, int]:
    """Returns how many hosts a group spans, and how many groups share the network of a host."""
    spans = [{device // devices_per_host for device in group} for group in one.groups]
    sharing = max(sum(host in span for span in spans) for host in set().union(*spans))
    return max(map(len, spans)), sharing
