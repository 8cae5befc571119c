"""What stages on some submesh of unlike hosts are priced by: its hosts' slowest device, smallest memory, and links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alpa_dejavu._kinds import kinds_of
from alpa_dejavu._ranges import FloatArray
from alpa_dejavu.memory_margin import MemoryMargin
from alpa_dejavu.pricing import Pricing
from alpa_dejavu.problem import Cluster, Device, Host, Model, SearchSpace

__all__ = ["memory_limits", "site_prices", "slowest_device"]


def slowest_device(hosts: Sequence[Host], dtype: str = "float32") -> Device:
    """The device that a stage on all of these hosts waits for: of the lowest rate."""
    return min((host.device for host in hosts), key=lambda device: device.rate(dtype))


def site_prices(pricing: Pricing, space: SearchSpace) -> tuple[Pricing, ...]:
    """For each submesh its prices, where its hosts are known.

    Submeshes on equal devices with equal links between them share theirs.
    """
    if space.hosts is None:
        return ()
    cluster, dtype = pricing.cluster, _usual_dtype(pricing.model)
    kinds = kinds_of(cluster)
    made: dict[tuple[object, ...], Pricing] = {}
    found = []
    for submesh, hosts in zip(space.submeshes, space.hosts, strict=True):
        device = slowest_device([cluster.hosts[host] for host in hosts], dtype)
        first = {kinds[host]: host for host in reversed(hosts)}
        order = tuple(list(first).index(kinds[host]) for host in hosts)
        several = {kind: [host for host in hosts if kinds[host] == kind][-1] for kind in first}
        ends = [(first[a], several[b] if a == b else first[b]) for a in first for b in first]
        within = tuple(cluster.links[host][host] for host in first.values())
        key = device, submesh, order, within, tuple(cluster.links[a][b] for a, b in ends)
        if key not in made:
            made[key] = pricing.on_hosts(device, hosts)
        found.append(made[key])
    return tuple(found)


def _usual_dtype(model: Model) -> str:
    """The dtype of most of the products' operations."""
    work: dict[str, float] = {"float32": 0.0}
    for layer in model.layers:
        operators = layer.forward
        flop = operators.flop * operators.count * operators.is_product
        for dtype in set(operators.dtype.tolist()):
            work[dtype] = work.get(dtype, 0.0) + float(flop[operators.dtype == dtype].sum())
    return max(work, key=lambda dtype: work[dtype])


def memory_limits(cluster: Cluster, space: SearchSpace, margin: MemoryMargin) -> tuple[FloatArray, FloatArray]:
    """Of each submesh, what its smallest device has, and what the margin leaves of one at least; each of shape (S,)."""
    every = range(len(cluster.hosts))
    used = [every] * len(space.submeshes) if space.hosts is None else space.hosts
    has, leaves = [host.device.memory_bytes for host in cluster.hosts], list(map(margin.usable_bytes, cluster.hosts))
    least = [(min(has[host] for host in hosts), min(leaves[host] for host in hosts)) for hosts in used]
    return np.array([has for has, _ in least]), np.array([leaves for _, leaves in least])
