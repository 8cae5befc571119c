"""The race: all wait for each other at each rung, so that its result doesn't depend on workers; or nobody waits."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence
from typing import final

from alpa_dejavu.training.initialization._field import Field
from alpa_dejavu.training.initialization._trainer import Runner, TrainingTask


def race(field: Field, runner: Runner) -> tuple[int, ...]:
    """Trains all candidates from rung to rung (steps of judging), drops poor ones at each, and returns those at the
    last rung, the best first; raises RuntimeError if none is left.
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

    def next_task() -> TrainingTask | None:
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
    """Asks the rule, and drops who doesn't go on, or can't as far as the budget goes."""
    setting, step = field.setting, field.setting.rungs[rung]
    standing = field.standing(living)
    decision = setting.rule.decide(standing)
    if not decision.kept or not set(decision.kept) <= set(living):
        raise ValueError(
            f"{type(setting.rule).__name__} keeps {decision.kept} of the candidates {living} at step {step}; a "
            "rule must keep one of them at least, and no others"
        )
    left = field.extra_left(step)
    # One among them isn't extra.
    kept = decision.kept if math.isinf(left) else decision.kept[: 1 + max(0, int(left // steps))]
    order = standing.best_first(rung, living)
    for place, number in enumerate(order):
        if number not in kept:
            why = "more would cost more than the budget" if number in decision.kept else decision.why
            field.drop(number, f"place {place + 1} of {len(order)} at step {step}: {why}")


def race_asynchronously(field: Field, runner: Runner) -> tuple[int, ...]:
    """Trains candidates from rung to rung (steps of judging) without waiting for all at each, and returns those that
    came farthest, the best first; raises RuntimeError if none is left.
    """
    order = _Order(field)
    for outcome in runner.outcomes(order.next_task):
        field.absorb(outcome)
        order.arrived(outcome.task.numbers)
    living = [number for number in field.living() if field.candidates[number].reached]
    if not living:
        raise field.nobody_left()
    most = max(len(field.candidates[number].reached) for number in living)
    first = finalists(field, [number for number in living if len(field.candidates[number].reached) == most])
    for number in field.living():
        if number not in first:
            reached = len(field.candidates[number].reached)
            message = f"step {field.setting.rungs[reached - 1]}, and wasn't promoted" if reached else "no rung: budget"
            field.drop(number, f"it reached {message}")
    return first


@final
class _Order:
    """The order in which candidates are trained."""

    def __init__(self, field: Field) -> None:
        self._field = field
        numbers = range(field.setting.num_candidates)
        field.begin(numbers)
        self._fresh = collections.deque(field.chunks(numbers))
        self._halfway: list[tuple[int, ...]] = []
        self._goal: dict[int, int] = {}

    def next_task(self) -> TrainingTask | None:
        field, rungs = self._field, self._field.setting.rungs
        if self._halfway:
            chunk = self._halfway.pop()
            return field.task(chunk, rungs[self._goal[chunk[0]]])
        for chunk, goal in (self._promoted(), (self._fresh[0] if self._fresh else (), 0)):
            if chunk and self._is_affordable(chunk, goal):
                if self._fresh and chunk == self._fresh[0]:
                    self._fresh.popleft()
                self._goal.update(dict.fromkeys(chunk, goal))
                return field.task(chunk, rungs[goal])
        return None

    def arrived(self, numbers: tuple[int, ...]) -> None:
        field = self._field
        left = tuple(number for number in numbers if field.candidates[number].is_living)
        if left and field.steps_left(left[0], field.setting.rungs[self._goal[left[0]]]):
            self._halfway.append(left)
            return
        for number in numbers:
            del self._goal[number]
        field.measure(left)

    def _promoted(self) -> tuple[tuple[int, ...], int]:
        field = self._field
        last = len(field.setting.rungs)
        idle = [number for number in field.living() if number not in self._goal]
        reached = {number: len(field.candidates[number].reached) for number in idle}
        waiting = tuple(number for number, count in reached.items() if 0 < count < last)
        kept = field.setting.rule.decide(field.standing(waiting)).kept
        if not kept:
            return (), 0
        goal = reached[kept[0]]
        return field.chunks(number for number in kept if reached[number] == goal)[0], goal

    def _is_affordable(self, chunk: tuple[int, ...], goal: int) -> bool:
        """Returns whether the budget allows this beside what is under way; the farthest candidate's steps are free."""
        field, rungs = self._field, self._field.setting.rungs
        under_way = sum(rungs[rung] - field.at(number) for number, rung in self._goal.items())
        asked = sum(rungs[goal] - field.at(number) for number in chunk)
        farthest = max([rungs[goal], *(rungs[rung] for rung in self._goal.values()), *map(field.at, field.candidates)])
        return under_way + asked <= field.extra_left(farthest)
