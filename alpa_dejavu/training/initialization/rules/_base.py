"""The interface of rules: who goes on."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping
from typing import final

import numpy as np

from alpa_dejavu.training.initialization._judge import Judge
from alpa_dejavu.training.initialization._trend import Measure


@final
@dataclasses.dataclass(frozen=True)
class Standing:
    """The state of a race between candidate initializations, by which a rule decides which of them go on.

    Attributes:
        rungs: the steps at which candidates are judged, ascending.
        reached: for each candidate, dropped ones too, its measures at the rungs that it has reached.
        skipped: for each candidate, how many rungs were over before it began, as for a child.
        waiting: the candidates that can go on: neither dropped, nor being trained, nor at the last rung.
        judge: the judge that orders candidates by their measures.
        seed: the seed for rules that draw random numbers.
    """

    rungs: tuple[int, ...]
    reached: Mapping[int, tuple[Measure, ...]]
    skipped: Mapping[int, int]
    waiting: tuple[int, ...]
    judge: Judge
    seed: int

    def rung(self, number: int) -> int:
        """Returns the index of the last rung (step of judging) that a candidate has reached; -1: none."""
        return self.skipped.get(number, 0) + len(self.reached[number]) - 1

    def at(self, rung: int) -> tuple[int, ...]:
        """Returns the numbers of the candidates that were measured at a rung (step of judging), those dropped since
        included.
        """
        return tuple(n for n in sorted(self.reached) if self.skipped.get(n, 0) <= rung <= self.rung(n))

    @property
    def last_rung(self) -> int:
        """Returns the index of the last rung (step of judging) that any waiting candidate has reached; -1: none, or
        nobody waits.
        """
        return max(map(self.rung, self.waiting), default=-1)

    def waiting_best_first(self) -> tuple[int, ...]:
        """Returns the waiting candidates in the judge's order, the best first; all must have reached the same last
        rung.
        """
        return self.best_first(self.last_rung, self.waiting)

    def best_first(self, rung: int, among: Iterable[int]) -> tuple[int, ...]:
        """Returns some candidates, which were measured at a rung (step of judging), in the judge's order, the best
        first.
        """
        return self.judge.order({n: self.reached[n][rung - self.skipped.get(n, 0)] for n in among})


@final
@dataclasses.dataclass(frozen=True)
class Child:
    """A new candidate that begins at its parents' step, with weights made from theirs.

    Attributes:
        parents: one number of a candidate, whose weights are changed a little, or two, whose weights are crossed.
        strength: how far weights are moved at random, in standard deviations of each tensor.
        rate_factor: its learning rate next to its first parent's, where candidates carry one.
        rows_places: by how many places its batch is larger (or smaller) than its first parent's among those of the run,
            where candidates' batches have rows of their own.
    """

    parents: tuple[int, ...]
    strength: float = 0.0
    rate_factor: float = 1.0
    rows_places: int = 0


@final
@dataclasses.dataclass(frozen=True)
class Decision:
    """A rule's decision on which of the waiting candidates go on.

    Attributes:
        kept: the waiting candidates that go on, the best first.
        children: the new candidates that begin besides.
        why: how the rule chose, for people.
    """

    kept: tuple[int, ...]
    children: tuple[Child, ...] = ()
    why: str = ""


class Rule(abc.ABC):
    """An interface of rules, which decide at each rung (step of judging) which candidates go on.

    Attributes:
        eta: about one candidate in so many goes on from a rung; each rung is so many times farther than the last.
        waits: whether the rule is asked when all candidates have reached a rung, and those not kept are dropped.
            If not, it is asked whenever some have arrived, the others wait, and results depend on the order of arrival.
    """

    eta: int = 2
    waits: bool = True

    @abc.abstractmethod
    def decide(self, standing: Standing) -> Decision:
        """Returns which of the waiting candidates go on; the same standing of a race always gets the same decision."""


def explored(parents: tuple[int, ...], strength: float, factor: float, generator: np.random.Generator) -> Child:
    """Returns a child whose learning rate is multiplied or divided by a factor, and whose batch is one size smaller or
    larger, or as it was.
    """
    is_faster, places = bool(generator.random() < 0.5), int(generator.integers(-1, 2))
    return Child(parents, strength, factor if is_faster else 1 / factor, places)


def at_least_two(owner: str, eta: int) -> None:
    """Raises ValueError unless eta is a whole number of at least 2, so that one candidate in eta goes on."""
    if not (isinstance(eta, int) and eta >= 2):
        raise ValueError(f"{owner}: eta is {eta!r}, but must be a whole number of at least 2: one in eta goes on")
