"""Has tasks done by Ray actors, over devices and hosts. A worker that dies is replaced, its task begins again."""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from alpa_dejavu._util import units
from alpa_dejavu.training._ray import Actors
from alpa_dejavu.training.initialization._layout import RacedModel
from alpa_dejavu.training.initialization._store import StateStore
from alpa_dejavu.training.initialization._trainer import (
    DoesNotFitError,
    Runner,
    TaskOutcome,
    Trainer,
    TrainingTask,
    fitting_lanes,
)

if TYPE_CHECKING:
    from alpa_dejavu.training.initialization._layout import Leaves

_log = logging.getLogger("alpa_dejavu")
PATIENCE_S = 30.0
"""If workers haven't begun after that, it is said."""
MOST_TRIES = 3
"""A task whose worker dies so often isn't tried again: its candidates are taken for what kills workers."""


@contextlib.contextmanager
def ray_workers(
    model: RacedModel, workers: int, options: Mapping[str, Any] | Sequence[Mapping[str, Any]], store: StateStore
) -> Iterator[Runner]:
    """Yields a runner that trains candidates in actors of the connected Ray cluster, which are gone at the end of the
    block.

    Raises:
        RuntimeError, ValueError, TypeError: as `Actors`; ValueError also for more or fewer options than workers.
    """
    mappings = [options] * workers if isinstance(options, Mapping) else list(options)
    if len(mappings) != workers:
        raise ValueError(f"worker_options has {len(mappings)} mappings for {workers} workers; give one for each, or "
                         "one")  # fmt: skip
    runner = _RayRunner(model, [{"num_cpus": 1, **mapping} for mapping in mappings], store)
    try:
        yield runner
    finally:
        runner.actors.stop()


@final
class _TrainingWorker:
    """A worker in a Ray actor, which trains candidates and keeps the states of its last task."""

    def __init__(self, model: RacedModel) -> None:
        self._trainer = Trainer(model)
        self._left: Leaves = ()

    def train(self, task: TrainingTask, states: Leaves | None) -> TaskOutcome:
        """Trains a task's candidates from given states, or else from those in which this worker's last task ended."""
        outcome = self._trainer.train(task, self._left if states is None else states)
        self._left = outcome.states
        return outcome

    def fitting(self, lanes: int, memory_bytes: float | None) -> tuple[int, str]:
        """Returns how many candidates fit here, and a note; 0, and why, if none does: Ray adds lines to errors."""
        try:
            return fitting_lanes(self._trainer, lanes, memory_bytes)
        except DoesNotFitError as error:
            return 0, str(error)


@final
class _RayRunner(Runner):
    def __init__(self, model: RacedModel, options: Sequence[Mapping[str, Any]], store: StateStore) -> None:
        self.actors = Actors(_TrainingWorker, [model], options)
        self._store = store
        self._idle = list(range(len(options)))
        self._running: dict[Any, tuple[int, TrainingTask]] = {}
        self._left: dict[int, tuple[tuple[int, ...], int]] = {}
        """Whose states each worker still has from its last task, and at which step: these needn't be sent again."""

    def fitting(self, lanes: int, memory_bytes: float | None) -> tuple[int, str]:
        """Returns how many candidates fit on the worker with the least room, and a note; all are asked at once."""
        asked = [self.actors[place].fitting.remote(lanes, memory_bytes) for place in range(len(self.actors))]
        late = self.actors.ray.wait(asked, num_returns=len(asked), timeout=PATIENCE_S)[1]
        if late:
            _log.warning(
                "%d of %d workers haven't begun after %s; they are waited for: see that a host has what one of them "
                "needs, or ask for fewer", len(late), len(asked), units.seconds(PATIENCE_S),
            )  # fmt: skip
        least, note = min(self._fitting(call, place, lanes, memory_bytes) for place, call in enumerate(asked))
        if not least:
            raise ValueError(note)
        return least, note

    def outcomes(self, next_task: Callable[[], TrainingTask | None]) -> Iterator[TaskOutcome]:
        deaths: collections.Counter[TrainingTask] = collections.Counter()
        again: list[TrainingTask] = []
        while True:
            while self._idle and (task := again.pop() if again else next_task()) is not None:
                held_task = task.numbers, task.first_step
                place = next((place for place in self._idle if self._left.get(place) == held_task), self._idle[-1])
                self._idle.remove(place)
                states = None if self._left.get(place) == held_task else self._store.side_by_side(task.numbers)
                self._running[self.actors[place].train.remote(task, states)] = (place, task)
            if not self._running:
                return
            done = self.actors.ray.wait(list(self._running), num_returns=1)[0][0]
            place, task = self._running.pop(done)
            self._idle.append(place)
            outcome: TaskOutcome | None = self._answer(
                done, place, "its candidates begin again at their last checkpoint"
            )
            if outcome is not None:
                self._left[place] = task.numbers, task.first_step + task.num_steps
                yield outcome
                continue
            deaths[task] += 1
            if deaths[task] < MOST_TRIES:
                self.restarts += 1
                again.append(task)
            else:
                yield TaskOutcome.of_nothing(task, f"its worker died {MOST_TRIES} times in steps {task.first_step} to "
                                      f"{task.first_step + task.num_steps - 1}")  # fmt: skip

    def _fitting(self, asked: Any, place: int, lanes: int, memory_bytes: float | None) -> tuple[int, str]:
        for left in range(MOST_TRIES - 1, -1, -1):
            answer: tuple[int, str] | None = self._answer(asked, place, "another one is asked for its memory")
            if answer is not None:
                return answer
            asked = self.actors[place].fitting.remote(lanes, memory_bytes) if left else None
        raise RuntimeError(f"a worker died {MOST_TRIES} times when it was asked how much memory its device has; see "
                           "Ray's logs, or give worker_options that leave it out")  # fmt: skip

    def _answer(self, asked: Any, place: int, then: str) -> Any:
        answer = self.actors.answer(asked, place, then)
        if answer is None:
            self._left.pop(place, None)
        return answer
