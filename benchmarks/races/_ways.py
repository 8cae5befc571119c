"""Ways to train a network: one start, many in a race, many to the end, one with larger batches, one for longer."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.training.initialization import Initialized, parallel_initialize
from races._models import Task, batch

SMOOTHED_STEPS = 40
RULES = {"halving": ("halving", "last_loss"), "halving by trend": ("halving", "trend")}
"""Who goes on, and by what. All starts see the same batches, so last losses differ by what the starts are worth."""
STARTS = ("model", "sobol")
METHODS = "methods"
RACING_METHODS = ("model", "xavier", "kaiming", "sobol")
FACTORS = (0.5, 2.0, 4.0)
"""Learning rates of single starts, next to the task's."""
DATA_PARALLEL = "data parallel"
BUDGETS = ("small", "full")
LARGER_RATES = (0.0, 0.5, 1.0)
"""Powers of how much larger a batch is, by which the learning rate grows with it."""
LONGER = {"small": 1.25, "full": 2.0}
"""How many times the compute of one training is spent on the one that stands beside the races of a budget."""


@final
@dataclasses.dataclass(frozen=True)
class Way:
    """How a network is trained.

    Attributes:
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


def ways(workers: int) -> tuple[Way, ...]:
    """All that are compared, with as many starts as there are workers."""
    alone = [Way("one start"), *(Way(f"one start, {longer:g}x as long", longer=longer) for longer in LONGER.values())]
    rates = [workers**power for power in LARGER_RATES]
    alone += [Way(f"{DATA_PARALLEL}, rate x{rate:.2g}", larger=workers, faster=rate) for rate in rates]
    search = [Way(search_of(init), workers, init, pruned=False) for init in STARTS]
    races = [
        Way(race_of(rule, init, budget), workers, init, *RULES[rule], budget)
        for budget in BUDGETS for init in STARTS for rule in RULES
    ]  # fmt: skip
    return (*alone, *search, *races, *contests(workers))


def contests(workers: int) -> tuple[Way, ...]:
    """Races between methods; one start at other learning rates stands beside them."""
    methods = [Way(race_of("halving", METHODS, budget), workers, METHODS, budget=budget) for budget in BUDGETS]
    return (*methods, *(Way(f"one start, rate x{factor:g}", faster=factor) for factor in FACTORS))


def of_contests(workers: int) -> tuple[Way, ...]:
    """The contests and what they are judged by: one start, it for longer, and races from Sobol scales."""
    beside = {"one start", race_of("halving", "sobol", "small"), race_of("halving", "sobol", "full"),
              f"one start, {LONGER['full']:g}x as long"}  # fmt: skip
    return (*(way for way in ways(workers) if way.name in beside), *contests(workers))


def search_of(init: str) -> str:
    return f"search, {init}"


def race_of(rule: str, init: str, budget: str) -> str:
    return f"{rule}, {init}, {budget}"


def trained(task: Task, way: Way, seed: int, **more: Any) -> Initialized:
    """The result of `parallel_initialize`; all ways of a seed take their batches from the same order."""
    data, rows, steps = task.data(), task.rows * way.larger, round(task.steps * way.longer)
    chosen = task if way.faster == 1 else task.at(way.faster * task.rate)
    given: dict[str, Any] = {"rungs": None if way.pruned else (steps,), "lanes": way.starts, **more}
    return parallel_initialize(
        chosen.init_fn, chosen.train_step, lambda step: batch(data, rows, seed, step), num_candidates=way.starts,
        budget_steps=steps, init=RACING_METHODS if way.init == METHODS else way.init, keep=way.keep, judge=way.judge,
        budget=way.budget, seed=seed, **given,
    )  # fmt: skip


def loss_at(losses: NDArray[np.float64], step: int) -> float:
    """The mean over the steps before."""
    return float(losses[max(0, step - SMOOTHED_STEPS) : step].mean())


def steps_to(losses: NDArray[np.float64], target: float) -> int | None:
    """The first step, of a whole window, at which the mean is a target or less; None: there is none."""
    if len(losses) < SMOOTHED_STEPS:
        return None
    means = np.lib.stride_tricks.sliding_window_view(losses, SMOOTHED_STEPS).mean(axis=1)
    reached = np.flatnonzero(means <= target)
    return int(reached[0]) + SMOOTHED_STEPS if reached.size else None


def row(task: Task, way: Way, seed: int, target: float) -> dict[str, Any]:
    """The result of a way: steps per worker and total compute to a target, and where the training ended.

    Compute is in steps with the task's batch.
    """
    found: dict[str, Any] = {"seed": seed, "reached": None, "compute": None}
    try:
        result = trained(task, way, seed)
    except RuntimeError:
        # All starts diverged.
        return found | {"all_steps": round(task.steps * way.longer) * way.starts * way.larger}
    found |= {"all_steps": result.total_steps * way.larger, "accuracy": task.accuracy(result.state)}
    return found | (_trained_on(result, way, target) if way.pruned else _all_trained(result, target))


def _trained_on(result: Initialized, way: Way, target: float) -> dict[str, Any]:
    """When the one start, or the one that a race left, is at the target."""
    reached = steps_to(result.losses, target)
    if reached is None:
        return {}
    compute = sum(min(len(curve.losses), reached) for curve in result.curves)
    return {"reached": reached, "compute": compute * way.larger}


def _all_trained(result: Initialized, target: float) -> dict[str, Any]:
    """When the first start is at the target, which ends a search that drops nobody."""
    every = [steps_to(curve.losses, target) for curve in result.curves]
    first = min((steps for steps in every if steps is not None), default=None)
    return {"reached": first, "compute": None if first is None else len(every) * first}
