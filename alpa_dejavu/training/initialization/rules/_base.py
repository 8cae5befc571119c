"""The interface of rules: who goes on."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping
from typing import final

from alpa_dejavu.training.initialization._judge import Judge
from alpa_dejavu.training.initialization._trend import Measure


@final
@dataclasses.dataclass(frozen=True)
class Standing:
    """How things stand when a rule is asked.

    Attributes:
        rungs: the steps at which candidates are judged, ascending.
        reached: by candidate, also those that were dropped, what it measured at each rung that it has reached.
        skipped: by candidate, the rungs that were over before it began, as a child's.
        waiting: the candidates that can go on: neither dropped, nor being trained, nor at the last rung.
        judge: says what is good.
        seed: for rules that take chances.
    """

    rungs: tuple[int, ...]
    reached: Mapping[int, tuple[Measure, ...]]
    skipped: Mapping[int, int]
    waiting: tuple[int, ...]
    judge: Judge
    seed: int

    def rung(self, number: int) -> int:
        """The last rung that a candidate has reached; -1: none."""
        return self.skipped.get(number, 0) + len(self.reached[number]) - 1

    def at(self, rung: int) -> tuple[int, ...]:
        """The candidates that have been measured at a rung, whatever became of them."""
        return tuple(n for n in sorted(self.reached) if self.skipped.get(n, 0) <= rung <= self.rung(n))

    @property
    def last_rung(self) -> int:
        """The last rung that any of those waiting has reached; -1: none, or nobody waits."""
        return max(map(self.rung, self.waiting), default=-1)

    def waiting_best_first(self) -> tuple[int, ...]:
        """Returns the waiting candidates, all of which must have reached the last rung, in the judge's order."""
        return self.best_first(self.last_rung, self.waiting)

    def best_first(self, rung: int, among: Iterable[int]) -> tuple[int, ...]:
        """Some candidates that were measured at a rung, in the judge's order."""
        return self.judge.order({n: self.reached[n][rung - self.skipped.get(n, 0)] for n in among})


@final
@dataclasses.dataclass(frozen=True)
class Child:
    """A candidate that begins where its parents are.

    Attributes:
        parents: one, whose weights are changed a little, or two, whose weights are crossed.
        strength: how far weights are moved at random, in standard deviations of each tensor.
    """

    parents: tuple[int, ...]
    strength: float = 0.0


@final
@dataclasses.dataclass(frozen=True)
class Decision:
    """A rule's decision: which candidates go on.

    Attributes:
        kept: of those waiting, the best first.
        children: who begins besides.
        why: how the rule chose, for people.
    """

    kept: tuple[int, ...]
    children: tuple[Child, ...] = ()
    why: str = ""


class Rule(abc.ABC):
    """Decides who goes on.

    Attributes:
        eta: about one in so many goes on from a rung; rungs are so many times farther each.
        waits: whether it is asked when all candidates have reached a rung, and who isn't kept is dropped. If not, it is
            asked whenever some have arrived, who isn't kept waits, and results depend on the order of arrival.
    """

    eta: int = 2
    waits: bool = True

    @abc.abstractmethod
    def decide(self, standing: Standing) -> Decision:
        """The same standing always gets the same decision."""


def at_least_two(owner: str, eta: int) -> None:
    """Raises ValueError unless candidates become fewer."""
    if not (isinstance(eta, int) and eta >= 2):
        raise ValueError(f"{owner}: eta is {eta!r}, but must be a whole number of at least 2: one in eta goes on")
