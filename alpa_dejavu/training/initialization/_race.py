"""The race in which all wait for each other at each rung: its result doesn't depend on the workers."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence

from alpa_dejavu.training.initialization._field import Field
from alpa_dejavu.training.initialization._task import Runner, Task


def race(field: Field, runner: Runner) -> tuple[int, ...]:
    """Trains all candidates from rung to rung (steps of judging), drops poor ones at each, and returns those at the
    last rung, the best first.

    Raises:
        RuntimeError: no candidate is left.
    """
    setting = field.setting
    rungs, number = setting.rungs, 0
    for wave, count in enumerate(wave_sizes(setting.num_candidates, setting.start.waves)):
        numbers = range(number, number + count)
        number += count
        field.begin(numbers, wave)
        train_to(field, runner, numbers, rungs[0])
        field.measure(each for each in numbers if field.candidates[each].is_living)
    for rung, step in enumerate(rungs):
        living = field.living()
        if not living:
            raise field.nobody_left()
        if rung == len(rungs) - 1:
            break
        _choose(field, living, rung, rungs[rung + 1] - step)
        train_to(field, runner, field.living(), rungs[rung + 1])
        field.measure(field.living())
    return finalists(field, living)


def train_to(field: Field, runner: Runner, numbers: Iterable[int], step: int) -> None:
    """Trains candidates until they have spent what so many of the dearest steps cost, from checkpoint to checkpoint."""
    queue = collections.deque(field.chunks(numbers))

    def next_task() -> Task | None:
        while queue:
            chunk = queue.popleft()
            living = [number for number in chunk if field.candidates[number].is_living]
            left = tuple(number for number in living if field.steps_left(number, step))
            if left:
                return field.task(left, step)
        return None

    for outcome in runner.outcomes(next_task):
        field.absorb(outcome)
        queue.appendleft(outcome.task.numbers)


def finalists(field: Field, numbers: Sequence[int]) -> tuple[int, ...]:
    """Returns the numbers of candidates in the judge's order by their last measures, the best first."""
    return field.setting.judge.order({number: field.candidates[number].reached[-1] for number in numbers})


def wave_sizes(num_candidates: int, fractions: Sequence[float]) -> list[int]:
    """Returns how many candidates begin in each wave, given the waves' fractions; empty waves are left out.

    >>> wave_sizes(5, (0.5, 0.5))
    [3, 2]
    """
    ends = [math.ceil(num_candidates * sum(fractions[: n + 1]) / sum(fractions) - 1e-9) for n in range(len(fractions))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False) if end > begin]


def _choose(field: Field, living: tuple[int, ...], rung: int, steps: int) -> None:
    """Asks the rule, drops who doesn't go on, and lets children begin, as far as the budget goes."""
    setting, step = field.setting, field.setting.rungs[rung]
    standing = field.standing(living)
    decision = setting.rule.decide(standing)
    if not decision.kept or not set(decision.kept) <= set(living):
        raise ValueError(
            f"{type(setting.rule).__name__} keeps {decision.kept} of the candidates {living} at step {step}; a "
            "rule must keep one of them at least, and no others"
        )
    affordable = _affordable(field, step, steps)
    kept, children = decision.kept[:affordable], decision.children[: max(0, affordable - len(decision.kept))]
    order = standing.best_first(rung, living)
    field.breed(children, rung)
    for place, number in enumerate(order):
        if number not in kept:
            why = "more would cost more than the budget" if number in decision.kept else decision.why
            field.drop(number, f"place {place + 1} of {len(order)} at step {step}: {why}")


def _affordable(field: Field, step: int, steps: int) -> int:
    """How many candidates may take some more steps, with one among them that isn't extra."""
    left = field.extra_left(step)
    return len(field.candidates) * 2 if math.isinf(left) else 1 + max(0, int(left // steps))
