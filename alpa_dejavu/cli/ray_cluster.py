"""The cluster that a command measures, or plans for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from alpa_dejavu.cli.interrupts import interrupts_raised

if TYPE_CHECKING:
    from alpa_dejavu.problem import Cluster


@contextlib.contextmanager
def ray_cluster(local: int | None, hosts: int = 1) -> Iterator[None]:
    """Starts a cluster of CPU devices for a `with` block, or none with `local` None, as one is running."""
    with interrupts_raised(), contextlib.ExitStack() as stack:
        if local is not None:
            # Before anything looks for devices: the cluster's are the CPU's, whatever else the machine has.
            os.environ["JAX_PLATFORMS"] = "cpu"
            from alpa_dejavu.alpa.local_cluster import local_cluster

            stack.enter_context(local_cluster(devices=local, hosts=hosts))
        yield


def connected() -> Cluster:
    """Returns the cluster that Ray has."""
    from alpa_dejavu.alpa.ray_cluster import connected_cluster

    with interrupts_raised():
        return connected_cluster()
