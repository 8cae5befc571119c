"""The interface of rules: who goes on."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, final

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu._util.extras import quiet_optuna
from alpa_dejavu.training.initialization._judge import Judge, Measure

__all__ = ["Halving", "OptunaPruner", "RaceDecision", "RaceRule", "Standing", "rule"]


@final
@dataclasses.dataclass(frozen=True)
class Standing:
    """The state of a race between candidate initializations, by which a rule decides which of them go on.

    Attributes:
        reached: for each candidate, dropped ones too, its measures at the rungs that it has reached.
        waiting: the candidates that can go on; all have reached the same rung.
    """

    rungs: tuple[int, ...]
    reached: Mapping[int, tuple[Measure, ...]]
    waiting: tuple[int, ...]
    judge: Judge
    seed: int

    def waiting_best_first(self) -> tuple[int, ...]:
        """Returns the waiting candidates in the judge's order by their last measures."""
        return self.judge.order({number: self.reached[number][-1] for number in self.waiting})


@final
@dataclasses.dataclass(frozen=True)
class RaceDecision:
    """A rule's decision on which of the waiting candidates go on, the best first, and why, for people."""

    kept: tuple[int, ...]
    why: str = ""


class RaceRule(abc.ABC):
    """An interface of rules, which decide which candidates go on once all have reached a rung (step of judging); the
    others are dropped.

    Attributes:
        eta: about one candidate in so many goes on from a rung; each rung is so many times farther than the last.
    """

    eta: int = 2

    @abc.abstractmethod
    def decide(self, standing: Standing) -> RaceDecision:
        """Returns which of the waiting candidates go on; the same standing of a race always gets the same decision."""


def _at_least_two(owner: str, eta: int) -> None:
    if not (isinstance(eta, int) and eta >= 2):
        raise ValueError(f"{owner}: eta is {eta!r}, but must be a whole number of at least 2: one in eta goes on")


@final
@dataclasses.dataclass(frozen=True)
class Halving(RaceRule):
    """A rule of successive halving: the best one in `eta`, 2 at least, of the candidates goes on from each rung.

    References:
        Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016.
    """

    eta: int = 2

    def __post_init__(self) -> None:
        _at_least_two("halving", self.eta)

    def decide(self, standing: Standing) -> RaceDecision:
        order = standing.waiting_best_first()
        count = -(-len(order) // self.eta)
        return RaceDecision(order[:count], why=f"halving keeps {count} of {len(order)}")


@final
@dataclasses.dataclass(frozen=True)
class OptunaPruner(RaceRule):
    """A rule by which a pruner of Optuna decides at each rung whether each candidate goes on, as if all others were
    complete trials.

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
        _at_least_two("optuna", self.eta)

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
    for racing in [*others, number]:
        trial, is_pruned = study.ask(), False
        for step, measure in zip(standing.rungs, standing.reached[racing], strict=False):
            trial.report(measure.promised, step)
            is_pruned = trial.should_prune()
        if racing != number:
            study.tell(trial, standing.reached[racing][-1].promised)
    return bool(is_pruned)


KNOWN: dict[str, type[RaceRule]] = {"halving": Halving, "optuna": OptunaPruner}


def rule(choice: str | RaceRule) -> RaceRule:
    """Returns the rule (of which candidates go on) that a name in `KNOWN` stands for, or the given rule itself.

    >>> rule("halving")
    Halving(eta=2)
    """
    return resolve("rule", choice, KNOWN, RaceRule)  # type: ignore[type-abstract]
