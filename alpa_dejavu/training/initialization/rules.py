"""The interface of rules: who goes on."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, final

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu._util.extras import quiet_optuna
from alpa_dejavu.training.initialization._judge import Judge, Measure

__all__ = ["Asha", "Halving", "OptunaPruner", "RaceDecision", "RaceRule", "Standing", "rule"]


@final
@dataclasses.dataclass(frozen=True)
class Standing:
    """The state of a race between candidate initializations, by which a rule decides which of them go on.

    Attributes:
        rungs: the steps at which candidates are judged, ascending.
        reached: for each candidate, dropped ones too, its measures at the rungs that it has reached.
        waiting: the candidates that can go on: neither dropped, nor being trained, nor at the last rung.
        judge: the judge that orders candidates by their measures.
        seed: the seed for rules that draw random numbers.
    """

    rungs: tuple[int, ...]
    reached: Mapping[int, tuple[Measure, ...]]
    waiting: tuple[int, ...]
    judge: Judge
    seed: int

    def rung(self, number: int) -> int:
        """Returns the index of the last rung that a candidate has reached; -1: none."""
        return len(self.reached[number]) - 1

    def at(self, rung: int) -> tuple[int, ...]:
        """Returns the candidates that were measured at a rung, those dropped since included."""
        return tuple(number for number in sorted(self.reached) if rung <= self.rung(number))

    @property
    def last_rung(self) -> int:
        """Returns the index of the last rung that any waiting candidate has reached; -1: none, or nobody waits."""
        return max(map(self.rung, self.waiting), default=-1)

    def waiting_best_first(self) -> tuple[int, ...]:
        """Returns the waiting candidates in the judge's order; all must have reached the same last rung."""
        return self.best_first(self.last_rung, self.waiting)

    def best_first(self, rung: int, among: Iterable[int]) -> tuple[int, ...]:
        """Returns some candidates that were measured at a rung in the judge's order, the best first."""
        return self.judge.order({number: self.reached[number][rung] for number in among})


@final
@dataclasses.dataclass(frozen=True)
class RaceDecision:
    """A rule's decision on which of the waiting candidates go on.

    Attributes:
        kept: the waiting candidates that go on, the best first.
        why: how the rule chose, for people.
    """

    kept: tuple[int, ...]
    why: str = ""


class RaceRule(abc.ABC):
    """An interface of rules, which decide at each rung (step of judging) which candidates go on.

    Attributes:
        eta: about one candidate in so many goes on from a rung; each rung is so many times farther than the last.
        waits: whether the rule is asked when all candidates have reached a rung, and those not kept are dropped.
            If not, it is asked whenever some have arrived, the others wait, and results depend on the order of arrival.
    """

    eta: int = 2
    waits: bool = True

    @abc.abstractmethod
    def decide(self, standing: Standing) -> RaceDecision:
        """Returns which of the waiting candidates go on; the same standing of a race always gets the same decision."""


def at_least_two(owner: str, eta: int) -> None:
    """Raises ValueError unless eta is a whole number of at least 2, so that one candidate in eta goes on."""
    if not (isinstance(eta, int) and eta >= 2):
        raise ValueError(f"{owner}: eta is {eta!r}, but must be a whole number of at least 2: one in eta goes on")


@final
@dataclasses.dataclass(frozen=True)
class Halving(RaceRule):
    """A rule of successive halving: it waits until all candidates (initializations in training) have reached a rung, a
    step of judging, and lets the best one in `eta` go on from it.

    Results are the same however many workers there are.

    Attributes:
        eta: one candidate in so many goes on from a rung.

    Raises ValueError for an eta below 2.

    References:
        Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016.
    """

    eta: int = 2

    def __post_init__(self) -> None:
        at_least_two("halving", self.eta)

    def decide(self, standing: Standing) -> RaceDecision:
        order = standing.waiting_best_first()
        count = -(-len(order) // self.eta)
        return RaceDecision(order[:count], why=f"halving keeps {count} of {len(order)}")


@final
@dataclasses.dataclass(frozen=True)
class Asha(RaceRule):
    """A rule of asynchronous successive halving: a candidate (an initialization in training) goes on once it is among
    the best one in `eta` of those that have arrived at its rung, a step of judging, so far.

    No worker is ever idle, but who goes on depends on who arrived first: with several workers a run can't be repeated
    exactly, and its result isn't that of another number of workers.

    Attributes:
        eta: one candidate in so many goes on from a rung.

    Raises ValueError for an eta below 2.

    References:
        Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020.
    """

    eta: int = 2
    waits = False

    def __post_init__(self) -> None:
        at_least_two("asha", self.eta)

    def decide(self, standing: Standing) -> RaceDecision:
        for rung in range(len(standing.rungs) - 2, -1, -1):
            arrived = standing.at(rung)
            best = standing.best_first(rung, arrived)[: len(arrived) // self.eta]
            kept = tuple(number for number in best if number in standing.waiting and standing.rung(number) == rung)
            if kept:
                return RaceDecision(kept, why=f"asha promotes from step {standing.rungs[rung]}")
        return RaceDecision((), why="asha hasn't promoted it")


@final
@dataclasses.dataclass(frozen=True)
class OptunaPruner(RaceRule):
    """A rule by which a pruner of Optuna decides at each rung, a step of judging, whether each candidate
    (initialization in training) goes on, as if all others were complete trials.

    The pruner is told the losses that candidates' trends promise. It is told all of them again each time, so it need
    not remember; if it would prune all candidates, the judge's best one stays.

    Attributes:
        pruner: the pruner, such as `optuna.pruners.MedianPruner()`; None: that one, with no trials to warm up.
        eta: each rung is at so many times the step of the one before.

    Raises ValueError for an eta below 2.

    References:
        Akiba et al., Optuna: A Next-generation Hyperparameter Optimization Framework, KDD 2019.
    """

    pruner: Any = None
    eta: int = 2

    def __post_init__(self) -> None:
        at_least_two("optuna", self.eta)

    def decide(self, standing: Standing) -> RaceDecision:
        order = standing.waiting_best_first()
        with quiet_optuna() as optuna:
            pruner = self.pruner or optuna.pruners.MedianPruner(n_startup_trials=0, n_warmup_steps=0)
            kept = tuple(number for number in order if not _is_pruned(optuna, pruner, standing, number)) or order[:1]
        return RaceDecision(kept, why=f"{type(pruner).__name__} keeps {len(kept)} of {len(order)}")


def _is_pruned(optuna: Any, pruner: Any, standing: Standing, number: int) -> bool:
    """Whether the pruner gives a candidate up at the last rung that it has reached, all others being complete."""
    # Some pruners draw by the study's name, which Optuna makes at random where there is none.
    name, sampler = f"seed {standing.seed}", optuna.samplers.RandomSampler(seed=standing.seed)
    study = optuna.create_study(study_name=name, pruner=pruner, sampler=sampler)
    others = [other for other in sorted(standing.reached) if other != number and standing.reached[other]]
    for each in [*others, number]:
        trial, is_pruned = study.ask(), False
        for step, measure in zip(standing.rungs, standing.reached[each], strict=False):
            trial.report(measure.promised, step)
            is_pruned = trial.should_prune()
        if each != number:
            study.tell(trial, standing.reached[each][-1].promised)
    return bool(is_pruned)


KNOWN: dict[str, type[RaceRule]] = {
    "asha": Asha,
    "halving": Halving,
    "optuna": OptunaPruner,
}


def rule(choice: str | RaceRule) -> RaceRule:
    """Returns the rule (of which candidates go on) that a name in `KNOWN` stands for, or the given rule itself.

    >>> rule("halving")
    Halving(eta=2)
    """
    return resolve("rule", choice, KNOWN, RaceRule)  # type: ignore[type-abstract]
