"""How much is measured, and with which seeds."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any, final

from tqdm import tqdm

from races._models import TASKS, Task
from races._ways import Way, loss_at, race_of, trained, ways

TARGET_AT = 0.6

JUDGED = race_of("halving", "sobol", "full")
"""The way that is judged: with seeds from 2000 on it was as fast as any."""


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """How much.

    Attributes:
        models: their names.
        seeds: that are judged.
        target_seeds: of single starts that say what the target is.
        workers: so many starts.
        steps: of a training; None: the task's.
        pairs: of runs that are compared in seconds.
        seconds_steps: of these; None: their task's.
    """

    models: tuple[str, ...] = tuple(TASKS)
    seeds: tuple[int, ...] = tuple(range(10))
    target_seeds: tuple[int, ...] = tuple(range(1000, 1011))
    workers: int = 8
    steps: int | None = None
    pairs: int = 5
    seconds_steps: int | None = None

    def task(self, name: str) -> Task:
        task = TASKS[name]
        return task if self.steps is None else dataclasses.replace(task, steps=self.steps)

    def target(self, task: Task) -> float:
        """The median loss that single starts have at `TARGET_AT` of their steps."""
        steps, way = round(TARGET_AT * task.steps), Way("target", longer=TARGET_AT)
        losses = [trained(task, way, seed).losses for seed in tqdm(self.target_seeds, "target")]
        return statistics.median(loss_at(each, steps) for each in losses)

    def settings(self) -> dict[str, Any]:
        """What rows depend on."""
        tasks = {name: [task.optimizer, task.rate, task.rows, task.steps] for name, task in TASKS.items()}
        every = [list(dataclasses.astuple(way)) for way in ways(self.workers)]
        return {"seeds": list(self.seeds), "target_seeds": list(self.target_seeds),
                "workers": self.workers, "steps": self.steps, "tasks": tasks, "ways": every}  # fmt: skip


WHOLE = Plan()
QUICK = Plan(models=("mlp",), seeds=(0, 1), target_seeds=(1000,), steps=192, pairs=1, seconds_steps=80)
"""Its figures say nothing."""
