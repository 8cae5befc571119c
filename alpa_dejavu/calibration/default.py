"""The calibration that prices plans where none is chosen: a bundled one, if it knows the cluster's devices."""

from __future__ import annotations

import functools
import json

from alpa_dejavu.calibration._bundled import FOLDER, JOINT, bundled, bundled_names, is_bundled
from alpa_dejavu.calibration._calibration import Calibration
from alpa_dejavu.problem import Cluster, PricedBy

__all__ = ["NONE", "as_priced", "bundled_for"]

NONE = "none"
"""The choice of no calibration: data sheets, though a bundled calibration knows the devices."""


def bundled_for(cluster: Cluster) -> Calibration | None:
    """Returns the bundled calibration that knows all kinds of devices of a cluster, joined of several ones if they are
    unlike; None: a device is known to none of them.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> bundled_for(named_cluster("p3.16xlarge")).name
    'v100'
    """
    of_devices = _bundles_of_devices()
    present = {host.device.name for host in cluster.hosts}
    if not present <= of_devices.keys():
        return None
    return bundled(JOINT.join(sorted({of_devices[name] for name in present})))


@functools.cache
def _bundles_of_devices() -> dict[str, str]:
    """The name of the bundled calibration that has each device's data sheet."""
    files = {name: FOLDER / f"{name}.json" for name in bundled_names()}
    return {device: name for name, path in files.items() for device in json.loads(path.read_text("utf-8"))["sheets"]}


def as_priced(by: PricedBy | None) -> str | None:
    """Returns the choice of a calibration by which a plan was priced: the name of a bundled one, or "none" for data
    sheets; None: it isn't known, or it is in a file.

    >>> as_priced(PricedBy(latency="analytic")), as_priced(PricedBy(calibration="v100")), as_priced(None)
    ('none', 'v100', None)
    """
    if by is None:
        return None
    if is_bundled(by.calibration):
        return by.calibration
    return NONE if not by.calibration and by.latency == "analytic" else None
