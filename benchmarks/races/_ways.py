"""Ways to train a network: one start, many in a race, many to the end, one with larger batches, one for longer."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.training.initialization import Curve, Initialized, parallel_initialize
from alpa_dejavu.training.initialization.starts import CoarseToFine, Sobol, start
from races._models import Task, batch

SMOOTHED_STEPS = 40
RULES = {
    "halving": ("halving", "last_loss"),
    "asha": ("asha", "last_loss"),
    "halving by trend": ("halving", "trend"),
}
"""Who goes on, and by what. All starts see the same batches, so last losses differ by what the starts are worth."""
STARTS = ("model", "sobol")
METHODS = "methods"
COARSE_TO_FINE = {
    "coarse to fine, 2 waves": CoarseToFine(Sobol()),
    "coarse to fine, 3 shrinking waves": CoarseToFine(Sobol(), waves=(0.5, 0.25, 0.25)),
    "coarse to fine, moved points": CoarseToFine(Sobol(), "pca"),
}
INITS: dict[str, Any] = {METHODS: ("model", "xavier", "kaiming", "sobol"), **COARSE_TO_FINE}
"""Starts that aren't known by one name."""
FACTORS = (0.5, 1.0, 2.0, 4.0)
"""Learning rates that candidates carry, next to the task's."""
PARTS = (1.0, 0.5)
"""Rows of a batch that candidates take, next to the task's."""
DATA_PARALLEL = "data parallel"
BUDGETS = ("small", "full")
LARGER_RATES = (0.0, 0.5, 1.0)
"""Powers of how much larger a batch is, by which the learning rate grows with it."""
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
        factors: learning rates next to the task's, which candidates carry.
        parts: rows next to the task's, which candidates take.
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
    factors: tuple[float, ...] = ()
    parts: tuple[float, ...] = ()

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
    """Races between methods, from coarse to fine, and between candidates that carry a rate and rows of their own.

    One start at each of these rates stands beside them.
    """
    methods = [Way(race_of("halving", METHODS, budget), workers, METHODS, budget=budget) for budget in BUDGETS]
    waves = [Way(name, workers, name) for name in COARSE_TO_FINE]
    by_rate = [Way(f"halving, {init}, rates", workers, init, factors=FACTORS) for init in STARTS]
    by_rows = Way("halving, model, rates and rows", workers, judge="trend", factors=FACTORS, parts=PARTS)
    alone = [Way(f"one start, rate x{factor:g}", faster=factor) for factor in FACTORS if factor != 1]
    return (*methods, *waves, *by_rate, by_rows, *alone)


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
    """What `parallel_initialize` gives for it; all ways of a seed take their batches from the same order."""
    data, rows, steps = task.data(), task.rows * way.larger, round(task.steps * way.longer)
    chosen = task if way.faster == 1 else task.at(way.faster * task.rate)
    given: dict[str, Any] = {"rungs": None if way.pruned else (steps,), "lanes": way.starts, **more}
    return parallel_initialize(
        chosen.init_fn, chosen.train_step, lambda step: batch(data, rows, seed, step), num_candidates=way.starts,
        budget_steps=steps, init=INITS.get(way.init, way.init), keep=way.keep, judge=way.judge, budget=way.budget,
        seed=seed, rates=way.factors, batch_rows=[round(rows * part) for part in way.parts], **given,
    )  # fmt: skip


def loss_at(losses: NDArray[np.float64], step: int) -> float:
    """The mean over the steps before."""
    return float(losses[max(0, step - SMOOTHED_STEPS) : step].mean())


def steps_to(losses: NDArray[np.float64], target: float, each: int = 1) -> int | None:
    """The first step, of a whole window, at which the mean is a target or less; None: there is none.

    Args:
        losses: `each` of them for a step.
        target: the loss to be reached.
        each: so many losses have a step.
    """
    window = SMOOTHED_STEPS * each
    if len(losses) < window:
        return None
    means = np.lib.stride_tricks.sliding_window_view(losses, window).mean(axis=1)
    found = np.flatnonzero(means <= target)
    return -(-(int(found[0]) + window) // each) if found.size else None


def losses_by_rows(result: Initialized) -> tuple[NDArray[np.float64], int]:
    """The chosen candidate's losses, one for each so many rows that it and its forebears took, and how many of these a
    step with the most rows has. Where all take whole batches these are its losses, and 1.
    """
    sizes = [curve.batch_rows for curve in result.curves if curve.batch_rows is not None]
    if not sizes:
        return result.losses, 1
    quantum, by_number = math.gcd(*sizes), {curve.number: curve for curve in result.curves}
    pieces: list[NDArray[np.float64]] = []
    curve, end = by_number[result.chosen], result.steps
    while True:
        pieces.append(np.repeat(curve.losses[: end - curve.first_step], (curve.batch_rows or 0) // quantum))
        if not curve.parents:
            return np.concatenate(pieces[::-1]), max(sizes) // quantum
        curve, end = by_number[curve.parents[0]], curve.first_step


def row(task: Task, way: Way, seed: int, target: float) -> dict[str, Any]:
    """What came of a way: steps per worker and total compute to a target, and where the training ended.

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
    """When the one start, or the one that a race left, is at the target.

    Steps that only measure means count: every worker waits for them. So do the first steps of earlier waves.
    """
    losses, each = losses_by_rows(result)
    reached = steps_to(losses, target, each)
    if reached is None:
        return {}
    taken = [max(0, min(_spent(result, curve), reached - curve.began_at)) for curve in result.curves]
    measuring = _measuring(result) if reached >= result.rungs[-1] else 0
    waves = len(start(INITS.get(way.init, way.init)).waves)
    waited = (measuring if way.is_race else 0) + (waves - 1) * min(reached, result.rungs[0])
    return {"reached": reached + waited, "compute": (sum(taken) + measuring) * way.larger}


def _all_trained(result: Initialized, target: float) -> dict[str, Any]:
    """When the first start is at the target, which ends a search that drops nobody."""
    every = [steps_to(curve.losses, target) for curve in result.curves]
    first = min((steps for steps in every if steps is not None), default=None)
    return {"reached": first, "compute": None if first is None else len(every) * first}


def _measuring(result: Initialized) -> float:
    return result.total_steps - sum(_spent(result, curve) for curve in result.curves)


def _spent(result: Initialized, curve: Curve) -> float:
    """A candidate's own compute, in steps with the most rows."""
    most = max((each.batch_rows or 1 for each in result.curves), default=1)
    return len(curve.losses) * (curve.batch_rows or 1) / most
