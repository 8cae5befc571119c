"""Alpa's slicing of the cluster into submeshes, by a plan's hosts where there is a plan of ours.

Alpa gives hosts to stages by their size alone, from the first host on, the last of equal stages first, and asks that
the stages take every device. Here each stage gets the hosts that its plan names, in the plan's order: the order of a
mesh's devices is that of its hosts, so it says who is whose neighbour in a collective group. What no stage takes stays
unused.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from alpa_dejavu.alpa.ray_cluster import alpa_hosts

PARAMETERS = ("virtual_mesh", "submesh_shapes")

Places = Sequence[Sequence[int]]
"""For each stage the numbers of its hosts, in the order of `alpa_hosts`."""

_places: contextvars.ContextVar[Places | None] = contextvars.ContextVar("places", default=None)


def slicing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Alpa's `get_sliced_virtual_submeshes`, wrapped so that stages get the hosts that a plan names, within a
    `with on_hosts(...)` block; elsewhere Alpa's own function is called.
    """

    @functools.wraps(original)
    def get_sliced_virtual_submeshes(virtual_mesh: Any, submesh_shapes: Sequence[Sequence[int]]) -> Any:
        places = _places.get()
        if places is None:
            return original(virtual_mesh, submesh_shapes)
        return _sliced(virtual_mesh, submesh_shapes, places)

    return get_sliced_virtual_submeshes


@contextlib.contextmanager
def on_hosts(places: Places) -> Iterator[None]:
    """Has Alpa put each stage's submesh on given hosts for the time of a `with` block.

    Args:
        places: for each stage the numbers of its hosts, in the order of Alpa's hosts.
    """
    token = _places.set(places)
    try:
        yield
    finally:
        _places.reset(token)


def _sliced(virtual_mesh: Any, shapes: Sequence[Sequence[int]], places: Places) -> list[Any]:
    """Within a host the largest submeshes take the first devices, so that those that are powers of two are aligned.

    Of equal ones the last stage does, as in Alpa.
    """
    hosts = alpa_hosts(virtual_mesh)
    used = [0] * len(hosts)
    submeshes: list[Any] = [None] * len(shapes)
    for n in sorted(range(len(shapes)), key=lambda n: (shapes[n][1], n), reverse=True):
        devices = shapes[n][1]
        own = [tuple(range(used[host], used[host] + devices)) for host in places[n]]
        for host in places[n]:
            used[host] += devices
        # Not by `slice_2d`: it looks a host's devices up by the host's place in the slice.
        submeshes[n] = type(virtual_mesh)(
            host_ids=[hosts[host].host_id for host in places[n]],
            host_info=[hosts[host].info for host in places[n]],
            num_devices_per_host=devices,
            parent=virtual_mesh,
            devices=own,
        )
    return submeshes
