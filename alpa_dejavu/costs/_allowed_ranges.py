"""The ranges of layers that may be a stage on a submesh, by Alpa's rules."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import range_sum
from alpa_dejavu.costs.stage_devices import slowest_device
from alpa_dejavu.problem import Cluster, Model, SearchSpace, Submesh

__all__ = ["allowed_ranges"]


def allowed_ranges(
    model: Model, submesh: Submesh, cluster: Cluster, space: SearchSpace, place: int
) -> NDArray[np.bool_]:
    """Returns which ranges of layers i..j may be a stage on a submesh by Alpa's rules, as booleans of shape (L, L) for
    L layers, False below the diagonal.

    A submesh of all devices may only have all layers. Layers are cut by the search space's `cuts`. A range's share of
    the matrix products' operations may differ from the submesh's share of the computing rate by `allowed_imbalance` of
    the search space plus one, as a factor.

    Args:
        model: the model with the layers.
        submesh: the submesh that a stage would run on.
        cluster: the cluster that the submesh is a part of.
        space: the search space that the submesh belongs to.
        place: the index of the submesh in the search space.
    """
    num_layers, imbalance = model.num_layers, space.allowed_imbalance
    allowed = np.triu(np.ones((num_layers, num_layers), dtype=np.bool_))
    allowed &= space.cuts.allowed(num_layers, cluster.num_devices // submesh.num_devices)
    if submesh.num_devices == cluster.num_devices:
        allowed[:] = False
        allowed[0, num_layers - 1] = True
    if np.isfinite(imbalance):
        work = range_sum([layer.forward.product_flop + layer.backward.product_flop for layer in model.layers])
        share = work / max(work[0, -1], 1.0)
        devices = _rate(cluster, space, place)
        allowed &= (devices <= share * (1 + imbalance)) & (devices >= share / (1 + imbalance))
    return allowed


def _rate(cluster: Cluster, space: SearchSpace, submesh: int) -> float:
    """Returns a submesh's share of the computing rate of all hosts: its share of the devices, if hosts are alike."""
    devices = space.submeshes[submesh].num_devices
    if space.hosts is None:
        return devices / cluster.num_devices
    whole = sum(host.num_devices * host.device.rate("float32") for host in cluster.hosts)
    return devices * slowest_device([cluster.hosts[host] for host in space.hosts[submesh]]).rate("float32") / whole
