"""Tasks done here, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

from alpa_dejavu.training.initialization._memory import fitting_lanes
from alpa_dejavu.training.initialization._store import Store
from alpa_dejavu.training.initialization._task import Outcome, Runner, Task
from alpa_dejavu.training.initialization._trainer import Trainer


@final
class LocalRunner(Runner):
    """The null model of runners: this process, its default device, no worker."""

    def __init__(self, trainer: Trainer, store: Store) -> None:
        self._trainer, self._store = trainer, store

    def fitting(self, lanes: int, memory_bytes: float | None) -> tuple[int, str]:
        return fitting_lanes(self._trainer, lanes, memory_bytes)

    def outcomes(self, next_task: Callable[[], Task | None]) -> Iterator[Outcome]:
        while (task := next_task()) is not None:
            yield self._trainer.train(task, self._store.side_by_side(task.numbers))
