"""Ways to train a network: one start, many in a race, many to the end, one with larger batches, one for longer."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.initialization import Initialized, parallel_initialize
from races._data import batch
from races._models import Task

SMOOTHED_STEPS = 40
RULES = {
    "halving": ("halving", "last_loss"),
    "asha": ("asha", "last_loss"),
    "evolution": ("evolution", "last_loss"),
    "halving by trend": ("halving", "trend"),
}
"""Who goes on, and by what. All starts see the same batches, so last losses differ by what the starts are worth."""
STARTS = ("model", "sobol")
BUDGETS = ("small", "full")
RATES = (1.0, 2.0)
LONGER = {"small": 1.25, "full": 2.0}
"""Of how many trainings the compute of one is that stands beside the races of a budget."""


@final
@dataclasses.dataclass(frozen=True)
class Way:
    """How a network is trained.

    Attributes:
        name: in the table.
        starts: so many; each worker has one.
        init, keep, judge, budget: as `parallel_initialize` takes them.
        pruned: whether poor starts are dropped before the end.
        longer: steps next to those of the task.
        larger: batches next to those of the task.
        faster: learning rate next to the task's.
    """

    name: str
    starts: int = 1
    init: str = "model"
    keep: str = "halving"
    judge: str = "last_loss"
    budget: str = "full"
    pruned: bool = True
    longer: float = 1.0
    larger: int = 1
    faster: float = 1.0

    @property
    def is_race(self) -> bool:
        return self.starts > 1 and self.pruned

    @property
    def is_costly(self) -> bool:
        """Whether it takes as many trainings as there are workers."""
        return self.larger > 1 or not self.pruned


def ways(workers: int) -> tuple[Way, ...]:
    """All that are compared, with as many starts as there are workers."""
    alone = [Way("one start"), *(Way(f"one start, {longer:g}x as long", longer=longer) for longer in LONGER.values())]
    alone += [Way(data_parallel(rate), larger=workers, faster=rate) for rate in RATES]
    search = [Way(search_of(init), workers, init, pruned=False) for init in STARTS]
    races = [
        Way(race_of(rule, init, budget), workers, init, *RULES[rule], budget)
        for budget in BUDGETS for init in STARTS for rule in RULES
    ]  # fmt: skip
    return (*alone, *search, *races)


def data_parallel(rate: float) -> str:
    return f"data parallel, rate x{rate:g}"


def search_of(init: str) -> str:
    return f"search, {init}"


def race_of(rule: str, init: str, budget: str) -> str:
    return f"{rule}, {init}, {budget}"


def trained(task: Task, way: Way, seed: int, **more: Any) -> Initialized:
    """What `parallel_initialize` gives for it; all ways of a seed take their batches from the same order."""
    data, rows, steps = task.data(), task.rows * way.larger, round(task.steps * way.longer)
    chosen = task if way.faster == 1 else task.at(way.faster * task.rate)
    given: dict[str, Any] = {"rungs": None if way.pruned else (steps,), "lanes": way.starts, **more}
    return parallel_initialize(
        chosen.init_fn, chosen.train_step, lambda step: batch(data, rows, seed, step), num_candidates=way.starts,
        budget_steps=steps, init=way.init, keep=way.keep, judge=way.judge, budget=way.budget,
        seed=seed, **given,
    )  # fmt: skip


def loss_at(losses: NDArray[np.float64], step: int) -> float:
    """The mean over the steps before."""
    return float(losses[max(0, step - SMOOTHED_STEPS) : step].mean())


def steps_to(losses: NDArray[np.float64], target: float) -> int | None:
    """The first step, of a whole window, at which the mean is a target or less; None: there is none."""
    if len(losses) < SMOOTHED_STEPS:
        return None
    means = np.lib.stride_tricks.sliding_window_view(losses, SMOOTHED_STEPS).mean(axis=1)
    found = np.flatnonzero(means <= target)
    return int(found[0]) + SMOOTHED_STEPS if found.size else None


def row(task: Task, way: Way, seed: int, target: float) -> dict[str, Any]:
    """What came of a way: steps per worker and total compute to a target, and where the training ended.

    Compute is in steps with the task's batch. Steps that only measure means are in it, and every worker waits for them.
    Idle are lanes that have no start while others train: here they stand for workers, which have something else to do.
    """
    result = trained(task, way, seed)
    reached, measuring = steps_to(result.losses, target), _measuring(result)
    all_steps = result.total_steps * way.larger
    found: dict[str, Any] = {
        "seed": seed, "reached": None, "compute": None, "all_steps": all_steps, "idle_steps": result.padded_steps,
        "loss": loss_at(result.losses, result.steps), "accuracy": task.accuracy(result.state),
        "diverged": result.diverged, "seconds": result.seconds,
    }  # fmt: skip
    if reached is not None:
        after_race = reached >= result.rungs[-1]
        found["reached"] = reached + (measuring if after_race and way.is_race else 0)
        taken = sum(max(0, min(len(curve.losses), reached - curve.first_step)) for curve in result.curves)
        found["compute"] = (taken + (measuring if after_race else 0)) * way.larger
    if not way.pruned:
        found["each"] = [steps_to(curve.losses, target) for curve in result.curves]
    return found


def _measuring(result: Initialized) -> int:
    return result.total_steps - sum(len(curve.losses) for curve in result.curves)
