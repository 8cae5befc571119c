"""The Ray cluster that this process is connected to: whether it has what workers need, actors, and calls on it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, final

from alpa_dejavu._util.extras import from_extra
from alpa_dejavu.problem import checks

_log = logging.getLogger("alpa_dejavu")
T = TypeVar("T")


@final
class Actors:
    """Actors of the connected Ray cluster, all of one class; one that dies is replaced by another."""

    def __init__(self, kind: type, arguments: Sequence[Any], options: Sequence[Mapping[str, Any]]) -> None:
        """Begins an actor of the class, made of the arguments, by each of Ray's options.

        Raises:
            RuntimeError, ValueError: as `connected`.
            TypeError: the arguments can't be sent.
        """
        self.ray = connected(options)
        try:
            self._arguments = [self.ray.put(argument) for argument in arguments]
        except TypeError as error:
            raise TypeError(f"functions and batches are sent to Ray's workers, but can't be: {error}; take what can't "
                            "be sent (locks, open files, generators) out of them") from None  # fmt: skip
        actor = self.ray.remote(kind).options
        self._kinds = [actor(max_restarts=0, max_task_retries=0, **mapping) for mapping in options]
        self._actors = [kind.remote(*self._arguments) for kind in self._kinds]

    def __len__(self) -> int:
        return len(self._actors)

    def __getitem__(self, place: int) -> Any:
        return self._actors[place]

    def replace(self, place: int) -> None:
        """Ends the actor in a place, and begins another one there."""
        self._kill(place)
        self._actors[place] = self._kinds[place].remote(*self._arguments)

    def answer(self, asked: Any, place: int, then: str) -> Any:
        """Returns the answer of the actor in a place to a call of `remote`; None if it has died, and another one has
        taken its place. The log tells what `then` becomes of its task. Raises RuntimeError where no actor can begin.
        """
        errors = self.ray.exceptions
        try:
            return self.ray.get(asked)
        except (errors.RayActorError, errors.ObjectLostError) as error:
            if getattr(error, "actor_init_failed", False):
                raise RuntimeError(f"a worker can't begin, and no other one could: {error}; see that what the given "
                                   "functions import can be imported on every host") from error  # fmt: skip
            why = str(error).splitlines() or [type(error).__name__]
            _log.warning("a worker died: %s; %s", why[0], then)
            self.replace(place)
            return None

    def stop(self) -> None:
        """Ends all actors."""
        for place in range(len(self)):
            self._kill(place)

    def _kill(self, place: int) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone, and the actors with it
            self.ray.kill(self._actors[place])


def connected(options: Sequence[Mapping[str, Any]]) -> Any:
    """Returns the module of Ray, once this process is connected to a cluster that has what so many workers need.

    Raises:
        RuntimeError: Ray isn't installed, or this process isn't connected to it.
        ValueError: the cluster hasn't what so many workers need; workers wait for what others use at the moment.
    """
    ray = _ray(len(options))
    resources = ray.cluster_resources()
    for resource, option in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
        needed = sum(float(mapping.get(option, 0)) for mapping in options)
        if needed > resources.get(resource, 0.0):
            raise ValueError(
                f"{len(options)} workers need {needed:g} {resource}, but the Ray cluster has "
                f"{resources.get(resource, 0.0):g}; ask for fewer workers, or give worker_options"
            )
        free = ray.available_resources().get(resource, 0.0)
        if needed > free:
            _log.warning("%d workers need %g %s, of which %g are free: they wait until others have ended", len(options),
                         needed, resource, free)  # fmt: skip
    return ray


def on_workers(calls: Sequence[Callable[[], T]], workers: int) -> list[T]:
    """Returns the results of calls, in their order, each run in a task of the connected Ray cluster, so many at a time.

    Raises:
        RuntimeError: Ray isn't installed, or this process isn't connected to it.
    """
    checks.count("resilience", "workers", workers)
    ray = _ray(workers)
    run = ray.remote(lambda call: call())
    left = list(enumerate(calls))[::-1]
    running: dict[Any, int] = {}
    results: dict[int, T] = {}
    while left or running:
        while left and len(running) < workers:
            number, call = left.pop()
            running[run.remote(call)] = number
        for done in ray.wait(list(running), num_returns=1)[0]:
            results[running.pop(done)] = ray.get(done)
    return [results[number] for number in range(len(calls))]


def _ray(workers: int) -> Any:
    ray = from_extra("ray", "ray")
    if not ray.is_initialized():
        raise RuntimeError(
            f"workers is {workers}, but this process isn't connected to Ray; call ray.init() first, or "
            "use alpa_dejavu.alpa.local_cluster.local_cluster"
        )
    return ray
