"""The candidates of a run: their states, their curves, and the race in which the poor ones are dropped."""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu.training.initialization._judge import Judge, Measure, measured
from alpa_dejavu.training.initialization._layout import flat
from alpa_dejavu.training.initialization._store import StateStore
from alpa_dejavu.training.initialization._trainer import Runner, TaskOutcome, Trainer, TrainingTask, width_of
from alpa_dejavu.training.initialization.result_file import Curve
from alpa_dejavu.training.initialization.rules import RaceRule, Standing
from alpa_dejavu.training.initialization.starts import Ask, Start, name_of_start

if TYPE_CHECKING:
    from jaxtyping import Float

    from alpa_dejavu.training.initialization._layout import Leaves

_log = logging.getLogger("alpa_dejavu")


@final
@dataclasses.dataclass(frozen=True)
class RaceSetting:
    """The checked options of one run of `parallel_initialize`, as that takes them, and what follows from them: all but
    the chosen candidate may take `extra_steps` together, and so many lanes fit side by side.
    """

    num_candidates: int
    budget_steps: int
    rungs: tuple[int, ...]
    extra_steps: float
    start: Start
    rule: RaceRule
    judge: Judge
    seed: int
    lanes: int
    checkpoint_steps: int
    keep_weights: bool


@final
@dataclasses.dataclass(eq=False)
class RacingCandidate:
    """One of the initializations that are trained side by side, in its present state, with the attributes of a
    `Curve`; `reached` has its measures at the rungs (steps of judging) that it has reached.
    """

    number: int
    method: str = ""
    point: tuple[float, ...] = ()
    losses: list[float] = dataclasses.field(default_factory=list)
    relative_gradients: list[float] = dataclasses.field(default_factory=list)
    reached: list[Measure] = dataclasses.field(default_factory=list)
    dropped_step: int | None = None
    why: str = ""
    started: Float[np.ndarray, " D"] | None = None
    ended: Float[np.ndarray, " D"] | None = None

    @property
    def is_living(self) -> bool:
        return self.dropped_step is None

    @property
    def step(self) -> int:
        return len(self.losses)

    def measure(self, horizon: int) -> Measure:
        """Returns the measure of its curve, whose trend is followed to a step."""
        return measured(np.array(self.losses), np.array(self.relative_gradients), 0, horizon)

    def curve(self) -> Curve:
        values = {field.name: vars(self)[field.name] for field in dataclasses.fields(Curve)}
        return Curve(**values | {name: np.array(values[name]) for name in ("losses", "relative_gradients")})


@final
class Field:
    """The candidates of a run, with the operations that begin, train, measure and drop them.

    Its choices go by candidates' numbers, never by which arrives first.
    """

    def __init__(self, setting: RaceSetting, trainer: Trainer, store: StateStore, gives_gradient: bool) -> None:
        self.setting, self.layout, self.store = setting, trainer.layout, store
        self.candidates: dict[int, RacingCandidate] = {}
        self.diverged = self.lost = self.total_steps = self.padded_steps = 0
        self.on_change: Callable[[], None] = lambda: None
        self._trainer, self._gives_gradient = trainer, gives_gradient

    def begin(self) -> None:
        """Begins all candidates: gives each its number and its first weights."""
        setting, layout = self.setting, self.layout
        model_leaves: dict[int, Leaves] = {}

        def own_weights(number: int) -> Leaves:
            model_leaves[number] = self._trainer.start(setting.seed, number)
            return layout.weights(model_leaves[number])

        numbers = tuple(range(setting.num_candidates))
        begun = setting.start.start(Ask(layout.tensors, own_weights, numbers, setting.seed))
        for number, started in zip(numbers, begun, strict=True):
            method = setting.start.members[number % len(setting.start.members)]
            candidate = RacingCandidate(number, name_of_start(method), started.point)
            leaves = model_leaves.pop(number, None) or self._trainer.start(setting.seed, number)
            leaves = layout.with_weights(leaves, started.weights)
            if setting.keep_weights:
                candidate.started = flat(layout.weights(leaves), layout.tensors)
            self.candidates[number] = candidate
            self.store.put(number, leaves)

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

    def train_to(self, runner: Runner, numbers: Iterable[int], until: int) -> None:
        """Trains candidates, which are all at one step, to another one, from checkpoint to checkpoint."""
        lanes, ordered = self.setting.lanes, sorted(numbers)
        queue = collections.deque(tuple(ordered[n : n + lanes]) for n in range(0, len(ordered), lanes))

        def next_task() -> TrainingTask | None:
            while queue:
                left = tuple(number for number in queue.popleft() if self.candidates[number].is_living)
                step = self.candidates[left[0]].step if left else until
                if step < until:
                    steps = min(until - step, self.setting.checkpoint_steps)
                    return TrainingTask(left, width_of(len(left), lanes), step, steps)
            return None

        for outcome in runner.outcomes(next_task):
            self._absorb(outcome)
            queue.appendleft(outcome.task.numbers)

    def _absorb(self, outcome: TaskOutcome) -> None:
        """Records the outcome of a task: new states, losses and gradients; candidates that diverged are dropped."""
        task = outcome.task
        if outcome.lost:
            self.lost += len(task.numbers)
            for number in task.numbers:
                self.drop(number, outcome.lost)
            return
        self.total_steps += len(task.numbers) * task.num_steps
        self.padded_steps += (task.width - len(task.numbers)) * task.num_steps
        gradients = outcome.gradients if self._gives_gradient else outcome.losses
        is_number = np.isfinite(outcome.losses) & np.isfinite(outcome.weights) & np.isfinite(gradients)
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

    def best_so_far(self) -> int | None:
        """Returns which candidate the judge puts first of those that came farthest; None if none has begun."""
        living = [number for number in self.living() if number in self.store]
        if not living:
            return None
        most = max(self.candidates[number].step for number in living)
        first = [number for number in living if self.candidates[number].step == most]
        if not most:
            return first[0]
        horizon = self.setting.budget_steps
        return self.setting.judge.order({n: self.candidates[n].measure(horizon) for n in first})[0]


def race(field: Field, runner: Runner) -> tuple[int, ...]:
    """Trains the candidates S to each rung rₖ (step of judging), and goes on with those that the rule keeps, about
    |S|/η of them; returns those at the last rung, the best first; raises RuntimeError if none is left.

    All wait for each other at each rung, so that the result doesn't depend on workers.
    """
    field.begin()
    rungs = field.setting.rungs
    for rung, step in enumerate(rungs):
        field.train_to(runner, field.living(), step)
        living = field.living()
        if not living:
            whys = sorted({candidate.why for candidate in field.candidates.values()})
            raise RuntimeError(f"all {len(field.candidates)} candidates are dropped ({whys[0]}); take smaller steps, "
                               "or start from smaller weights (init=)")  # fmt: skip
        for number in living:
            candidate = field.candidates[number]
            candidate.reached.append(candidate.measure(field.setting.budget_steps))
        if step != rungs[-1]:
            _choose(field, living, step, rungs[rung + 1] - step)
    return field.setting.judge.order({number: field.candidates[number].reached[-1] for number in living})


def _choose(field: Field, living: Sequence[int], step: int, next_steps: int) -> None:
    """Asks the rule, and drops the candidates that don't go on, or can't as far as the budget goes."""
    setting = field.setting
    reached = {number: tuple(candidate.reached) for number, candidate in field.candidates.items()}
    standing = Standing(setting.rungs, reached, tuple(living), setting.judge, setting.seed)
    decision = setting.rule.decide(standing)
    if not decision.kept or not set(decision.kept) <= set(living):
        raise ValueError(
            f"{type(setting.rule).__name__} keeps {decision.kept} of the candidates {living} at step {step}; a "
            "rule must keep one of them at least, and no others"
        )
    kept = decision.kept
    if setting.extra_steps < math.inf:  # one among them isn't extra
        left = setting.extra_steps - (field.total_steps - step)
        kept = kept[: 1 + max(0, int(left // next_steps))]
    order = standing.waiting_best_first()
    for place, number in enumerate(order):
        if number not in kept:
            why = "more would cost more than the budget" if number in decision.kept else decision.why
            field.drop(number, f"place {place + 1} of {len(order)} at step {step}: {why}")
