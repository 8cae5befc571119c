"""Times and notes the steps of the workers of an executable's stages, and sets the cores that they run on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, final

from alpa_dejavu._util.threads import pin
from alpa_dejavu.alpa import _probe
from alpa_dejavu.calibration.measurement import StageNotes, StepNotes


@final
class StageWorkers:
    """The workers of an executable's stages; the first of each stage is made to time its part of every step."""

    def __init__(self, executable: Any) -> None:
        self._meshes, self._uuid = list(executable.mesh_group), executable.exec_uuid
        self._watched = [mesh.workers[0] for mesh in self._meshes]
        self._ask(_probe.watch, self._uuid)

    def timed(self, step: Callable[[], Any]) -> tuple[Any, StepNotes]:
        """Runs a training step until every stage is done; returns its result, and notes of when each stage ran."""
        start = time.time()
        result = step()
        stages: list[StageNotes] = self._ask(_probe.last_step)
        return result, StepNotes(start, time.time(), tuple(stages))

    def noting(self, noting: bool) -> None:
        """Switches on or off that Alpa's workers note when each instruction of a training step begins and ends."""
        self._ask(_probe.note, self._uuid, noting)

    def release(self) -> None:
        """Has the workers take no more notes, and no longer wait for the end of each step by themselves."""
        self.noting(False)
        self._ask(_probe.unwatch, self._uuid)

    def call(self, function: Callable[..., Any], *args: Any) -> list[list[Any]]:
        """Calls an importable function in the process of each of Alpa's workers; returns a list for each stage."""
        return self._of_each(function, [args] * len(self._meshes))

    def pin(self, cores: Sequence[Sequence[int]]) -> list[list[Any]]:
        """Has the workers of each stage run on the given CPU cores, and returns those that each worker got."""
        return self._of_each(pin, [(of,) for of in cores])

    def _of_each(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """Returns a function's answers in each worker's process; each stage has its own arguments."""
        import ray

        calls = [
            [worker.__ray_call__.remote(_without_worker, function, *args) for worker in mesh.workers]
            for mesh, args in zip(self._meshes, arguments, strict=True)
        ]
        return [ray.get(called) for called in calls]

    def _ask(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        import ray

        answers: list[Any] = ray.get([worker.__ray_call__.remote(function, *args) for worker in self._watched])
        return answers


def _without_worker(_worker: Any, function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)
