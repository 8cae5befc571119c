"""The race in which nobody waits: a free worker takes whom the rule promotes, else who hasn't begun."""

from __future__ import annotations

import collections
from typing import final

from alpa_dejavu.training.initialization._field import Field
from alpa_dejavu.training.initialization._race import finalists
from alpa_dejavu.training.initialization._task import Runner, Task


def race_asynchronously(field: Field, runner: Runner) -> tuple[int, ...]:
    """Runs the race, and returns the candidates that have come farthest, the best first.

    Raises:
        RuntimeError: none is left.
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
            said = f"step {field.setting.rungs[reached - 1]}, and wasn't promoted" if reached else "no rung: budget"
            field.drop(number, f"it reached {said}")
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

    def next_task(self) -> Task | None:
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
        if left and field.candidates[left[0]].step < field.setting.rungs[self._goal[left[0]]]:
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
        under_way = sum(rungs[rung] - field.candidates[number].step for number, rung in self._goal.items())
        asked = sum(rungs[goal] - field.candidates[number].step for number in chunk)
        farthest = max([rungs[goal], *(rungs[rung] for rung in self._goal.values()),
                        *(candidate.step for candidate in field.candidates.values())])  # fmt: skip
        return under_way + asked <= field.extra_left(farthest)
