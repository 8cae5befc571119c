"""Watches the workers of this process's meshes, and ends them all when one has died or failed.

Alpa sends its commands without looking at what becomes of them, so a dead worker would leave the driver waiting for
tiles that never come. Each worker has one call pending that returns when something fails; Ray breaks it when the
worker dies.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

__all__ = ["Monitor", "WorkerFault", "monitor"]

logger = logging.getLogger(__name__)

_WAIT_S = 0.5
_NEWS_TIMEOUT_S = 5.0


class WorkerFault(RayActorError, RuntimeError):
    """A worker has died or failed; all workers of this driver's meshes have been ended."""

    def __init__(self, message: str) -> None:
        RuntimeError.__init__(self, message)
        self._message = message

    def __str__(self) -> str:
        return self._message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._message,)


class Monitor:
    """The meshes that are watched, and the faults that were seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._watched: dict[Any, Any] = {}  # pending call -> mesh
        self._faults: dict[int, str] = {}  # id of a mesh that was ended -> why
        self._thread: threading.Thread | None = None
        self._stopped = False

    def watch(self, mesh: Any) -> None:
        """Watches a mesh from now on."""
        calls = {worker.wait_for_fault.remote(): mesh for worker in mesh.workers}
        with self._lock:
            self._faults.pop(id(mesh), None)
            self._watched.update(calls)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="alpa-worker-monitor", daemon=True)
                self._thread.start()

    def unwatch(self, mesh: Any) -> None:
        """Takes no more notice of a mesh."""
        with self._lock:
            self._watched = {call: other for call, other in self._watched.items() if other is not mesh}

    def check(self, mesh: Any) -> None:
        """Raises WorkerFault if the mesh was ended by a fault."""
        with self._lock:
            fault = self._faults.get(id(mesh))
        if fault is not None:
            raise WorkerFault(fault)

    def explain(self, mesh: Any, error: RayError) -> Exception:
        """The fault behind an error of a call to a mesh's worker, or the error itself if there is none."""
        timeout = _NEWS_TIMEOUT_S if isinstance(error, RayActorError) else _WAIT_S
        with self._news:
            self._news.wait_for(lambda: id(mesh) in self._faults, timeout)
            fault = self._faults.get(id(mesh))
        return error if fault is None else WorkerFault(fault)

    def end(self) -> None:
        """Ends all workers that are watched; for the end of the process."""
        with self._lock:
            self._stopped = True
            meshes, thread = list(dict.fromkeys(self._watched.values())), self._thread
            self._watched.clear()
        if thread is not None:
            thread.join(4 * _WAIT_S)
        if ray.is_initialized():
            _kill(meshes)

    def _run(self) -> None:
        while True:
            with self._lock:
                calls = list(self._watched)
                if self._stopped or not calls:
                    self._thread = None
                    return
            try:
                done, _ = ray.wait(calls, num_returns=1, timeout=_WAIT_S)
            except RayError:
                continue
            for call in done:
                self._look_at(call)

    def _look_at(self, call: Any) -> None:
        try:
            fault = ray.get(call)
        except RayError as error:
            fault = f"a worker has died: {error}"
        with self._lock:
            if fault is None:
                self._watched.pop(call, None)
            if call not in self._watched:
                return
            mesh = self._watched[call]
        self._fail(f"mesh {mesh.mesh_id} on {', '.join(mesh.node_ips)}: {fault}")

    def _fail(self, fault: str) -> None:
        with self._news:
            meshes = list(dict.fromkeys(self._watched.values()))
            self._watched.clear()
            self._faults.update({id(mesh): fault for mesh in meshes})
            self._news.notify_all()
        logger.error("%s; all workers are ended", fault)
        _kill(meshes)


def _kill(meshes: list[Any]) -> None:
    for mesh in meshes:
        for worker in mesh.workers or ():
            with contextlib.suppress(RayError, ValueError):
                ray.kill(worker)


monitor = Monitor()
atexit.register(monitor.end)
