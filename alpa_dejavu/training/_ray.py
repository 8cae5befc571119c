"""The Ray cluster that this process is connected to, and whether it has what workers need."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["connected"]

_log = logging.getLogger("alpa_dejavu")


def connected(options: Sequence[Mapping[str, Any]]) -> Any:
    """Returns the module of Ray, once this process is connected to a cluster that has what workers need.

    Args:
        options: Ray's options of each worker.

    Raises:
        RuntimeError: Ray isn't installed, or this process isn't connected to it.
        ValueError: the cluster hasn't what so many workers need. What others use at the moment is waited for, and said
            so.
    """
    try:
        import ray
    except ImportError as error:
        raise RuntimeError('Ray is not installed: pip install "ray>=2.10,<2.61", or leave workers out') from error
    if not ray.is_initialized():
        raise RuntimeError(
            f"workers is {len(options)}, but this process isn't connected to Ray; call ray.init() first, or "
            "use alpa_dejavu.alpa.local_cluster.local_cluster"
        )
    there = ray.cluster_resources()
    for resource, option in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
        needed = sum(float(mapping.get(option, 0)) for mapping in options)
        if needed > there.get(resource, 0.0):
            raise ValueError(
                f"{len(options)} workers need {needed:g} {resource}, but the Ray cluster has "
                f"{there.get(resource, 0.0):g}; ask for fewer workers, or give worker_options"
            )
        free = ray.available_resources().get(resource, 0.0)
        if needed > free:
            _log.warning("%d workers need %g %s, of which %g are free: they wait until others have ended", len(options),
                         needed, resource, free)  # fmt: skip
    return ray
