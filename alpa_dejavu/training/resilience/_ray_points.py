"""Has calls done by tasks of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from alpa_dejavu.problem import checks

__all__ = ["on_workers"]

T = TypeVar("T")


def on_workers(calls: Sequence[Callable[[], T]], workers: int) -> list[T]:
    """Returns what calls return, in their order, each run in a task of the connected Ray cluster.

    Args:
        calls: functions, which are sent to workers with all that they hold.
        workers: so many tasks at most are under way at a time.

    Raises:
        RuntimeError: Ray isn't installed, or this process isn't connected to it.
    """
    checks.count("resilience", "workers", workers)
    try:
        import ray
    except ImportError as error:
        raise RuntimeError('Ray is not installed: pip install "ray>=2.10,<2.61", or leave workers out') from error
    if not ray.is_initialized():
        raise RuntimeError(f"workers is {workers}, but this process isn't connected to Ray; call ray.init() first, or "
                           "use alpa_dejavu.alpa.local_cluster.local_cluster")  # fmt: skip
    run = ray.remote(lambda call: call())
    left = list(enumerate(calls))[::-1]
    running: dict[Any, int] = {}
    found: dict[int, T] = {}
    while left or running:
        while left and len(running) < workers:
            number, call = left.pop()
            running[run.remote(call)] = number
        for done in ray.wait(list(running), num_returns=1)[0]:
            found[running.pop(done)] = ray.get(done)
    return [found[number] for number in range(len(calls))]
