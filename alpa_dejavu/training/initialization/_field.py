"""The candidates of a run: their states, their curves, and the steps that they took."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.by_name import name_of
from alpa_dejavu.training.initialization._curve import RacingCandidate, cost_of
from alpa_dejavu.training.initialization._layout import Leaves, flat
from alpa_dejavu.training.initialization._setting import RaceSetting
from alpa_dejavu.training.initialization._store import StateStore
from alpa_dejavu.training.initialization._trainer import TaskOutcome, Trainer, TrainingTask, width_of
from alpa_dejavu.training.initialization.rules import Standing
from alpa_dejavu.training.initialization.starts import KNOWN
from alpa_dejavu.training.initialization.starts._base import Ask, Started, Tried

_log = logging.getLogger("alpa_dejavu")


@final
class Field:
    """The candidates of a run, with the operations that begin, train, measure and drop them.

    Its choices go by candidates' numbers, never by which arrives first.
    """

    def __init__(self, setting: RaceSetting, trainer: Trainer, store: StateStore, gives_gradient: bool) -> None:
        self.setting, self.layout, self.store = setting, trainer.layout, store
        self.candidates: dict[int, RacingCandidate] = {}
        self.diverged = self.lost = self._spent = self._padded = 0
        self.on_change: Callable[[], None] = lambda: None
        self._trainer, self._gives_gradient = trainer, gives_gradient
        self._started: dict[int, Started] = {}

    @property
    def total_steps(self) -> int:
        """Returns the steps of all candidates, to train and to be measured, each counted by its rows."""
        return math.ceil(self._spent / self.setting.unit)

    @property
    def padded_steps(self) -> int:
        """Returns the steps of programs' unused lanes, counted as those of candidates are."""
        return math.ceil(self._padded / self.setting.unit)

    def begin(self, numbers: Sequence[int], wave: int = 0) -> None:
        """Begins candidates that have no parents, in a wave counted from 0: gives each its number, its first weights,
        and what else it carries.
        """
        setting = self.setting
        own: dict[int, Leaves] = {}

        def own_weights(number: int) -> Leaves:
            own[number] = self._trainer.start(setting.seed, number)
            return self.layout.weights(own[number])

        ask = Ask(self.layout.tensors, own_weights, tuple(numbers), setting.seed, self._tried(), wave)
        begun = setting.start.start(ask)
        for number, started in zip(numbers, begun, strict=True):
            member, rate, rows = setting.carried(number)
            candidate = RacingCandidate(
                number, batch_rows=rows, rate=rate, method=name_of(member, KNOWN), point=started.point
            )
            leaves = own.pop(number, None) or self._trainer.start(setting.seed, number)
            if len(setting.start.waves) > 1:
                self._started[number] = started
            self._add(candidate, self.layout.with_weights(leaves, started.weights))

    def adopt(self, parents: tuple[int, ...], leaves: Leaves) -> int:
        """Adds a candidate that is the mean of others, its parents, and returns its number; it has the first parent's
        step, method, rate and size of batches.
        """
        first = self.candidates[parents[0]]
        number = len(self.candidates)
        carried = first.step, first.spent, first.batch_rows, first.rate, first.method
        self._add(RacingCandidate(number, *carried, parents), leaves)
        return number

    def living(self) -> tuple[int, ...]:
        return tuple(number for number, candidate in self.candidates.items() if candidate.is_living)

    def drop(self, number: int, why: str) -> None:
        """Drops a candidate: notes why, and removes its training state."""
        candidate = self.candidates[number]
        self.remember_end(number)
        candidate.dropped_step, candidate.why = candidate.step, why
        self.store.drop(number)
        _log.info("candidate %d is dropped at step %d: %s", number, candidate.step, why)

    def remember_end(self, number: int) -> None:
        """Notes a candidate's present weights as the last ones of its curve, if curves are to keep weights."""
        if self.setting.keep_weights and number in self.store:
            weights = self.layout.weights(self.store.get(number))
            self.candidates[number].ended = flat(weights, self.layout.tensors)

    def chunks(self, numbers: Iterable[int]) -> list[tuple[int, ...]]:
        """Splits candidates, given by number, into groups to train side by side on one device: neighbours by number
        that are at the same step and take batches of the same size.
        """
        groups: dict[tuple[int | None, int], list[int]] = {}
        for number in sorted(numbers):
            candidate = self.candidates[number]
            groups.setdefault((candidate.batch_rows, candidate.step), []).append(number)
        lanes = self.setting.lanes
        return [tuple(group[n : n + lanes]) for group in groups.values() for n in range(0, len(group), lanes)]

    def task(self, numbers: tuple[int, ...], until: int) -> TrainingTask:
        """Returns the task of training candidates, which are all at one step, until a rung or the next checkpoint."""
        first = self.candidates[numbers[0]]
        steps = min(self.steps_left(numbers[0], until), self.setting.checkpoint_steps)
        return TrainingTask(
            numbers, width_of(len(numbers), self.setting.lanes), first.step, steps, first.batch_rows,
            self.rates(numbers),
        )  # fmt: skip

    def rates(self, numbers: Iterable[int]) -> tuple[float, ...]:
        """Returns candidates' learning rates; (): they carry none."""
        return tuple(rate for number in numbers if (rate := self.candidates[number].rate) is not None)

    def steps_left(self, number: int, until: int) -> int:
        """Returns how many more steps a candidate takes until it has spent what so many of the dearest steps cost."""
        return self.candidates[number].steps_left(until * self.setting.unit)

    def at(self, number: int) -> float:
        """Returns what a candidate and its ancestors have spent, in the dearest steps."""
        return self.candidates[number].spent / self.setting.unit

    def absorb(self, outcome: TaskOutcome) -> None:
        """Records the outcome of a training task: new states, losses and gradients; candidates that diverged are
        dropped.
        """
        task = outcome.task
        if outcome.lost:
            self.lost += len(task.numbers)
            for number in task.numbers:
                self.drop(number, outcome.lost)
            return
        self.count(task)
        ways = outcome.gradients if self._gives_gradient else outcome.losses
        is_number = np.isfinite(outcome.losses) & np.isfinite(outcome.weights) & np.isfinite(ways)
        relative = outcome.gradients / np.maximum(outcome.weights, np.finfo(np.float32).tiny)
        for lane, number in enumerate(task.numbers):
            candidate = self.candidates[number]
            until = task.num_steps if is_number[lane].all() else int(is_number[lane].argmin())
            if until == task.num_steps:
                # First, so that a curve is never longer than the state says, should this fail.
                self.store.put(number, tuple(leaf[lane].copy() for leaf in outcome.states))
            candidate.losses += outcome.losses[lane, :until].tolist()
            candidate.relative_gradients += relative[lane, :until].tolist()
            if until < task.num_steps:
                self.diverged += 1
                self.drop(number, f"diverged in step {candidate.step}: its loss, gradient or weights are no number")
        self.on_change()

    def count(self, task: TrainingTask) -> None:
        """Adds the steps that a task's candidates take, to train or to be measured, to the run's total of steps. Steps
        of the program's unused lanes are counted apart.
        """
        cost = task.num_steps * cost_of(task.batch_rows)
        self._spent += len(task.numbers) * cost
        self._padded += (task.width - len(task.numbers)) * cost

    def extra_left(self, step: float) -> float:
        """Returns how many training steps the run's budget still allows, not counting those of one candidate up to a
        step.
        """
        return self.setting.extra_steps - (self._spent / self.setting.unit - step)

    def nobody_left(self) -> RuntimeError:
        """Returns the error that says that all candidates were dropped, and why one of them was."""
        whys = sorted({candidate.why for candidate in self.candidates.values()})
        return RuntimeError(
            f"all {len(self.candidates)} candidates are dropped ({whys[0]}); take smaller steps, or start "
            "from smaller weights (init=)"
        )

    def measure(self, numbers: Iterable[int]) -> None:
        """Measures the loss curves of candidates that have just reached a rung (step of judging), and records it."""
        for number in numbers:
            self.candidates[number].reached.append(self.candidates[number].measure(self.setting.limit))

    def standing(self, waiting: tuple[int, ...]) -> Standing:
        reached = {number: tuple(candidate.reached) for number, candidate in self.candidates.items()}
        return Standing(self.setting.rungs, reached, waiting, self.setting.judge, self.setting.seed)

    def best_so_far(self) -> int | None:
        """Returns the number of the candidate that the judge puts first among those that have spent the most; None if
        none has begun.
        """
        living = [number for number in self.living() if number in self.store]
        if not living:
            return None
        most = max(self.at(number) for number in living)
        first = [number for number in living if self.at(number) == most]
        if any(not self.candidates[number].losses for number in first):
            return first[0]
        return self.setting.judge.order({n: self.candidates[n].measure(self.setting.limit) for n in first})[0]

    def _add(self, candidate: RacingCandidate, leaves: Leaves) -> None:
        if self.setting.keep_weights:
            candidate.started = flat(self.layout.weights(leaves), self.layout.tensors)
        self.candidates[candidate.number] = candidate
        self.store.put(candidate.number, leaves)

    def _tried(self) -> tuple[Tried, ...]:
        """Returns how earlier candidates did at the first rung, the best first."""
        begun = {number: self.candidates[number].reached for number in self._started}
        known = {number: reached[0] for number, reached in begun.items() if reached}
        return tuple(Tried(self._started[n], known[n].promised, n) for n in self.setting.judge.order(known))
