"""Tasks done by Ray actors, over devices and hosts. A worker that dies is replaced, and its task begins again."""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from alpa_dejavu.initialization._layout import Leaves
from alpa_dejavu.initialization._model import Model
from alpa_dejavu.initialization._store import Store
from alpa_dejavu.initialization._task import Outcome, Runner, Task
from alpa_dejavu.initialization._trainer import Trainer

_log = logging.getLogger("alpa_dejavu")
MOST_TRIES = 3
"""A task whose worker dies so often isn't tried again: its candidates are taken for what kills workers."""


@contextlib.contextmanager
def ray_workers(model: Model, workers: int, options: Mapping[str, Any], store: Store) -> Iterator[Runner]:
    """So many actors of the connected Ray cluster, gone at the end of the block.

    Args:
        model: is sent to each of them, by Ray.
        workers: how many.
        options: of the actors, as `num_gpus`; a CPU each unless they say otherwise.
        store: where the last checkpoint of each candidate is.

    Raises:
        RuntimeError: this process isn't connected to Ray.
        ValueError: the cluster hasn't what so many workers need.
        TypeError: the model can't be sent to workers.
    """
    runner = _RayRunner(model, workers, {"num_cpus": 1, **options}, store)
    try:
        yield runner
    finally:
        runner.stop()


@final
class _Worker:
    """What runs in an actor."""

    def __init__(self, model: Model) -> None:
        self._trainer = Trainer(model)

    def train(self, task: Task, states: Leaves) -> Outcome:
        return self._trainer.train(task, states)


@final
class _RayRunner(Runner):
    def __init__(self, model: Model, workers: int, options: Mapping[str, Any], store: Store) -> None:
        self._ray = _connected(workers, options)
        self._store = store
        try:
            self._model = self._ray.put(model)
        except TypeError as error:
            raise TypeError(f"init_fn, train_step and batches are sent to Ray's workers, but can't be: {error}; take "
                            "what can't be sent (locks, open files, generators) out of them") from None  # fmt: skip
        self._actor = self._ray.remote(_Worker).options(max_restarts=0, max_task_retries=0, **options)
        self._idle = [self._actor.remote(self._model) for _ in range(workers)]
        self._running: dict[Any, tuple[Any, Task]] = {}

    def outcomes(self, next_task: Callable[[], Task | None]) -> Iterator[Outcome]:
        deaths: collections.Counter[Task] = collections.Counter()
        again: list[Task] = []
        while True:
            while self._idle and (task := again.pop() if again else next_task()) is not None:
                actor = self._idle.pop()
                self._running[actor.train.remote(task, self._store.side_by_side(task.numbers))] = (actor, task)
            if not self._running:
                return
            done = self._ray.wait(list(self._running), num_returns=1)[0][0]
            actor, task = self._running.pop(done)
            outcome = self._got(done, actor)
            if outcome is not None:
                yield outcome
                continue
            deaths[task] += 1
            if deaths[task] < MOST_TRIES:
                self.restarts += 1
                again.append(task)
            else:
                yield Outcome.of_nothing(task, f"its worker died {MOST_TRIES} times in steps {task.first_step} to "
                                      f"{task.first_step + task.num_steps - 1}")  # fmt: skip

    def stop(self) -> None:
        for actor in [*self._idle, *(actor for actor, _ in self._running.values())]:
            with contextlib.suppress(Exception):  # the cluster may be gone, and the actors with it
                self._ray.kill(actor)

    def _got(self, done: Any, actor: Any) -> Outcome | None:
        """None: the worker has died; another one takes its place."""
        errors = self._ray.exceptions
        self._idle.append(actor)
        try:
            outcome: Outcome = self._ray.get(done)
        except (errors.RayActorError, errors.ObjectLostError) as error:
            said = str(error).splitlines() or [type(error).__name__]
            _log.warning("a worker died: %s; its candidates begin again at their last checkpoint", said[0])
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
            self._idle[-1] = self._actor.remote(self._model)
            return None
        return outcome


def _connected(workers: int, options: Mapping[str, Any]) -> Any:
    try:
        import ray
    except ImportError as error:
        raise RuntimeError('Ray is not installed: pip install "ray>=2.10,<2.61", or leave workers out') from error
    if not ray.is_initialized():
        raise RuntimeError(
            f"workers is {workers}, but this process isn't connected to Ray; call ray.init() first, or "
            "use alpa_dejavu.local_cluster.local_cluster"
        )
    there = ray.cluster_resources()
    for resource, option in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
        needed = workers * float(options.get(option, 0))
        if needed > there.get(resource, 0.0):
            raise ValueError(
                f"{workers} workers need {needed:g} {resource}, but the Ray cluster has "
                f"{there.get(resource, 0.0):g}; ask for fewer workers, or give worker_options"
            )
    return ray
