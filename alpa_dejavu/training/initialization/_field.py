"""The candidates of a run: their states, their curves, and the steps that they took."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import final

import numpy as np

from alpa_dejavu.training.initialization._breed import crossed, mutated
from alpa_dejavu.training.initialization._curve import Curve
from alpa_dejavu.training.initialization._layout import FloatArray, Leaves
from alpa_dejavu.training.initialization._setting import Setting
from alpa_dejavu.training.initialization._store import Store
from alpa_dejavu.training.initialization._task import Outcome, Task
from alpa_dejavu.training.initialization._trainer import Trainer, width_of
from alpa_dejavu.training.initialization._trend import Measure, measured
from alpa_dejavu.training.initialization.rules import Child, Standing
from alpa_dejavu.training.initialization.starts._base import Ask, Started, Tried
from alpa_dejavu.training.initialization.starts._picture import flat


@final
@dataclasses.dataclass(eq=False)
class Candidate:
    """One of the initializations that are trained side by side, in its present state, with the attributes of a
    `Curve`.

    `reached` has its measures at the rungs (steps of judging) that it has reached, all but the first `skipped`; `roots`
    are its ancestors that began by themselves.
    """

    number: int
    first_step: int = 0
    batch_rows: int | None = None
    parents: tuple[int, ...] = ()
    roots: frozenset[int] = frozenset()
    skipped: int = 0
    point: tuple[float, ...] = ()
    losses: list[float] = dataclasses.field(default_factory=list)
    relative_gradients: list[float] = dataclasses.field(default_factory=list)
    reached: list[Measure] = dataclasses.field(default_factory=list)
    dropped_step: int | None = None
    why: str = ""
    started: FloatArray | None = None
    ended: FloatArray | None = None

    @property
    def is_living(self) -> bool:
        return self.dropped_step is None

    @property
    def step(self) -> int:
        return self.first_step + len(self.losses)

    def measure(self, horizon: int) -> Measure:
        return measured(np.array(self.losses), np.array(self.relative_gradients), self.first_step, horizon)

    def curve(self) -> Curve:
        return Curve(
            self.number,
            self.parents,
            self.batch_rows,
            self.first_step,
            np.array(self.losses),
            np.array(self.relative_gradients),
            self.dropped_step,
            self.why,
            self.point,
            self.started,
            self.ended,
        )


_log = logging.getLogger("alpa_dejavu")
_SALT = 0xC41D


@final
class Field:
    """The candidates (initializations in training) of a run, with the operations that begin, train, measure and drop
    them.

    Its choices go by candidates' numbers, never by which arrives first.
    """

    def __init__(self, setting: Setting, trainer: Trainer, store: Store, gives_gradient: bool) -> None:
        self.setting, self.layout, self.store = setting, trainer.layout, store
        self.candidates: dict[int, Candidate] = {}
        self.total_steps = self.padded_steps = self.diverged = self.lost = 0
        self.on_change: Callable[[], None] = lambda: None
        self._trainer, self._gives_gradient = trainer, gives_gradient
        self._started: dict[int, Started] = {}

    def begin(self, numbers: Sequence[int]) -> None:
        """Begins candidates that have no parents: gives each its number and its first weights."""
        setting = self.setting
        own: dict[int, Leaves] = {}

        def own_weights(number: int) -> Leaves:
            own[number] = self._trainer.start(setting.seed, number)
            return self.layout.weights(own[number])

        begun = setting.start.start(Ask(self.layout.tensors, own_weights, tuple(numbers), setting.seed, self._tried()))
        for number, started in zip(numbers, begun, strict=True):
            rows = setting.batch_rows[number % len(setting.batch_rows)] if setting.batch_rows else None
            candidate = Candidate(number, batch_rows=rows, roots=frozenset([number]), point=started.point)
            leaves = own.pop(number, None) or self._trainer.start(setting.seed, number)
            if len(setting.start.waves) > 1:
                self._started[number] = started
            self._add(candidate, self.layout.with_weights(leaves, started.weights))

    def breed(self, children: Iterable[Child], rung: int) -> None:
        """Adds child candidates to parents that have just reached a rung (step of judging); they begin there, with
        crossed or mutated weights.
        """
        for child in children:
            number = len(self.candidates)
            generator = np.random.default_rng([self.setting.seed, number, _SALT])
            first, *others = child.parents
            leaves = self.store.get(first)
            if others:
                leaves = crossed(leaves, self.store.get(others[0]), self.layout, generator)
            if child.strength:
                leaves = mutated(leaves, self.layout, child.strength, generator)
            self.adopt(child.parents, leaves, rung + 1)

    def adopt(self, parents: tuple[int, ...], leaves: Leaves, skipped: int) -> int:
        """Adds a candidate made of other candidates, its parents, and returns its number.

        It has the first parent's step and size of batches.

        Args:
            parents: the parents' numbers.
            leaves: the arrays of its training state.
            skipped: how many rungs (steps of judging) were over before it began.
        """
        first = self.candidates[parents[0]]
        roots = frozenset().union(*(self.candidates[parent].roots for parent in parents))
        candidate = Candidate(len(self.candidates), first.step, first.batch_rows, parents, roots, skipped)
        self._add(candidate, leaves)
        return candidate.number

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
        that take batches of the same size.
        """
        groups: dict[int | None, list[int]] = {}
        for number in sorted(numbers):
            groups.setdefault(self.candidates[number].batch_rows, []).append(number)
        lanes = self.setting.lanes
        return [tuple(group[n : n + lanes]) for group in groups.values() for n in range(0, len(group), lanes)]

    def task(self, numbers: tuple[int, ...], until: int) -> Task:
        """Returns the task of training candidates, which are all at one step, until another step or the next
        checkpoint.
        """
        candidate = self.candidates[numbers[0]]
        steps = min(until - candidate.step, self.setting.checkpoint_steps)
        return Task(numbers, width_of(len(numbers), self.setting.lanes), candidate.step, steps, candidate.batch_rows)

    def absorb(self, outcome: Outcome) -> None:
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

    def count(self, task: Task) -> None:
        """Adds the steps that a task's candidates take, to train or to be measured, to the run's total of steps. Steps
        of the program's unused lanes are counted apart.
        """
        self.total_steps += len(task.numbers) * task.num_steps
        self.padded_steps += (task.width - len(task.numbers)) * task.num_steps

    def extra_left(self, step: int) -> float:
        """Returns how many training steps the run's budget still allows, not counting those of one candidate up to a
        step.
        """
        return self.setting.extra_steps - (self.total_steps - step)

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
            self.candidates[number].reached.append(self.candidates[number].measure(self.setting.budget_steps))

    def standing(self, waiting: tuple[int, ...]) -> Standing:
        reached = {number: tuple(candidate.reached) for number, candidate in self.candidates.items()}
        skipped = {number: candidate.skipped for number, candidate in self.candidates.items() if candidate.skipped}
        return Standing(self.setting.rungs, reached, skipped, waiting, self.setting.judge, self.setting.seed)

    def best_so_far(self) -> int | None:
        """Returns the number of the candidate that the judge puts first among those with the most steps; None if none
        has begun.
        """
        living = [number for number in self.living() if number in self.store]
        if not living:
            return None
        most = max(self.candidates[number].step for number in living)
        first = [number for number in living if self.candidates[number].step == most]
        if any(not self.candidates[number].losses for number in first):
            return first[0]
        return self.setting.judge.order({n: self.candidates[n].measure(self.setting.budget_steps) for n in first})[0]

    def _add(self, candidate: Candidate, leaves: Leaves) -> None:
        if self.setting.keep_weights:
            candidate.started = flat(self.layout.weights(leaves), self.layout.tensors)
        self.candidates[candidate.number] = candidate
        self.store.put(candidate.number, leaves)

    def _tried(self) -> tuple[Tried, ...]:
        """Returns how earlier candidates did at the first rung, the best first."""
        begun = {number: self.candidates[number].reached for number in self._started}
        known = {number: reached[0] for number, reached in begun.items() if reached}
        return tuple(Tried(self._started[n], known[n].promised) for n in self.setting.judge.order(known))
