"""A device of the pipeline: an actor that does its list of tasks, and takes in what its neighbours send meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import ray

from alpa_dejavu._util import units
from alpa_dejavu.schedules import Task

ENVIRONMENT = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
}
"""Of the processes: each computes in one thread, and finds this package."""
_PATIENCE_S = 60.0
_RATE = 0.01


class Note(NamedTuple):
    """When a task began and ended, of which the end of it was handing its result to a neighbour, if it did."""

    kind: str
    stage: int
    micro_batch: int
    start_s: float
    end_s: float
    posted_s: float


class Came(NamedTuple):
    """When something that a stage sent was posted, and when its receiver had it."""

    kind: str
    source: int
    sent_s: float
    came_s: float


@final
class Worker:
    """Runs a schedule's tasks on some chunks of the model. `receive` and `run` go side by side, in threads."""

    def __init__(self, core: int | None) -> None:
        if core is not None:
            for thread in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(thread), [core])
        self._arrived: dict[tuple[str, int, int], np.ndarray] = {}
        self._came: list[Came] = []
        self._weights_of: dict[str, dict[int, Any]] = {}
        self._neighbours_of: dict[str, tuple[dict[int, Any], int]] = {}
        self._more = threading.Condition()

    def prepare(
        self, schedule: str, chunks: dict[int, np.ndarray], neighbours: dict[int, Any], last: int, samples: Any
    ) -> int:
        """Takes, for runs by a schedule, the weights of its own stages, the actors of all stages, the number of the
        last stage, and the data; returns the number of its process.
        """
        import jax

        self._weights_of[schedule] = {stage: jax.device_put(own) for stage, own in chunks.items()}
        self._neighbours_of[schedule] = neighbours, last
        self._inputs, self._targets = samples
        return os.getpid()

    def receive(self, kind: str, stage: int, batch: int, source: int, sent_s: float, value: np.ndarray) -> None:
        """Takes in what a stage needs for a pass."""
        with self._more:
            self._arrived[kind, stage, batch] = value
            self._came.append(Came(kind, source, sent_s, time.perf_counter()))
            self._more.notify_all()

    def run(
        self, schedule: str, tasks: Sequence[str], gradients_too: bool
    ) -> tuple[list[Note], list[Came], dict[int, np.ndarray]]:
        """Does the tasks and updates the weights; returns notes of them, of what came, and the gradients if asked."""
        import jax

        from executor import _model as model

        self._weights, (self._neighbours, self._last) = self._weights_of[schedule], self._neighbours_of[schedule]
        gradients = {stage: np.zeros_like(own) for stage, own in self._weights.items()}
        kept: dict[tuple[int, int], Any] = {}
        inner: dict[tuple[int, int], Any] = {}
        notes = []
        for task in map(Task.of, tasks):
            kind, stage, batch = task
            here, given, result = (stage, batch), self._given(task), None
            start_s = time.perf_counter()
            if kind == "F":
                kept[here] = model.forward(self._weights[stage], given)
                result = kept[here].results[-1]
                if stage == self._last:
                    result = model.loss_gradient(result, self._targets[batch])
            elif kind == "B":
                weights = self._weights[stage]
                result, gradients[stage] = model.backward(weights, gradients[stage], kept.pop(here), given)
            elif kind == "I":
                result, inner[here] = model.by_input(self._weights[stage], kept[here], given)
            else:
                gradients[stage] = model.by_weight(gradients[stage], kept.pop(here), inner.pop(here))
            jax.block_until_ready((result, gradients[stage]))
            end_s = time.perf_counter()
            self._send(task, result)
            notes.append(Note(kind, stage, batch, start_s, end_s, time.perf_counter()))
        start_s = time.perf_counter()
        for stage, own in gradients.items():
            self._weights[stage] = jax.block_until_ready(model.updated(self._weights[stage], own, _RATE))
        end_s = time.perf_counter()
        notes.append(Note("update", -1, -1, start_s, end_s, end_s))
        came, self._came = self._came, []
        return notes, came, {stage: np.asarray(own) for stage, own in gradients.items()} if gradients_too else {}

    def _given(self, task: Task) -> Any:
        """What a task works on, once it is there."""
        kind, stage, batch = task
        if kind == "W":
            return None
        if kind == "F" and stage == 0:
            return self._inputs[batch]
        wanted = "F" if kind == "F" else "B", stage, batch
        with self._more:
            if not self._more.wait_for(lambda: wanted in self._arrived, _PATIENCE_S):
                raise TimeoutError(f"{task} waits for what hasn't come in {units.seconds(_PATIENCE_S)}")
            return self._arrived.pop(wanted)

    def _send(self, task: Task, result: Any) -> None:
        """Hands a result to the stage that needs it."""
        kind, stage, batch = task
        if kind == "W" or (kind != "F" and stage == 0):
            return
        target = stage if kind == "F" and stage == self._last else stage + (1 if kind == "F" else -1)
        way = "B" if kind != "F" or stage == self._last else "F"
        if target in self._weights:
            with self._more:
                self._arrived[way, target, batch] = result
            return
        self._neighbours[target].receive.remote(way, target, batch, stage, time.perf_counter(), np.asarray(result))


def started(num_devices: int, pinned: bool) -> list[Any]:
    """Starts an actor for each device, with a core of its own if they are to be pinned."""
    cores = sorted(os.sched_getaffinity(0))
    actor = ray.remote(num_cpus=0, max_concurrency=2)(Worker)
    return [actor.remote(cores[n % len(cores)] if pinned else None) for n in range(num_devices)]
