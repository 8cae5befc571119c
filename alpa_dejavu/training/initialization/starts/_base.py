"""The interface of starts, which say where candidates begin."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import final

from alpa_dejavu.training.initialization._layout import Leaves, Tensor


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Started:
    """The first weights of a candidate.

    Attributes:
        weights: the values of the parameters, in the order and shapes of the tensors that were asked for.
        point: the coordinates that the weights were made from, such as scales of tensors; (): none.
    """

    weights: Leaves
    point: tuple[float, ...] = ()


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """An earlier candidate: its first weights, the loss that its curve promises for the end of the training, and its
    number.
    """

    started: Started
    promised: float
    number: int = 0


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Ask:
    """A request for the first weights of candidates, with what is known of earlier candidates.

    Attributes:
        tensors: name, shape and dtype of the model's parameters.
        own: gives the weights with which the model itself begins, for a candidate's number.
        numbers: the candidates to begin, ascending.
        seed: the seed of the run.
        tried: the candidates of earlier waves, the best first; those that diverged aren't among them.
        wave: how many waves of candidates have begun before.
    """

    tensors: tuple[Tensor, ...]
    own: Callable[[int], Leaves]
    numbers: tuple[int, ...]
    seed: int
    tried: tuple[Tried, ...] = ()
    wave: int = 0


class Start(abc.ABC):
    """An interface of starts, which give candidates their first weights: initializations to be trained side by side.

    Attributes:
        waves: the fractions of all candidates that begin together. A start that learns from earlier candidates needs
            several: a wave begins when the one before has reached the first rung.
    """

    waves: tuple[float, ...] = (1.0,)

    @property
    def members(self) -> tuple[Start, ...]:
        """Returns the starts that candidates take in turn: this one alone, unless it is made of several."""
        return (self,)

    @abc.abstractmethod
    def start(self, ask: Ask) -> tuple[Started, ...]:
        """Returns the first weights of each candidate that was asked for; the same request always gets the same
        answer.
        """


@final
@dataclasses.dataclass(frozen=True)
class Own(Start):
    """A start that gives each candidate the weights with which the model begins by itself."""

    def start(self, ask: Ask) -> tuple[Started, ...]:
        return tuple(Started(ask.own(number)) for number in ask.numbers)


@final
@dataclasses.dataclass(frozen=True)
class Mixed(Start):
    """A start by which candidates begin by several starts in turn, so that these race against each other.

    Starts that learn from earlier candidates learn from their own ones alone; there are as many waves as the most
    patient of them needs.

    Attributes:
        starts: candidate n begins by `starts[n % len(starts)]`.

    Raises ValueError for no start, or for one that is made of several itself.
    """

    starts: tuple[Start, ...]
    waves: tuple[float, ...] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.starts or any(isinstance(each, Mixed) for each in self.starts):
            raise ValueError(f"init is {self.starts!r}, but must be one or more starts, none of them made of several")
        object.__setattr__(self, "waves", max((each.waves for each in self.starts), key=len))

    @property
    def members(self) -> tuple[Start, ...]:
        return self.starts

    def start(self, ask: Ask) -> tuple[Started, ...]:
        count = len(self.starts)
        begun: dict[int, Started] = {}
        for place, each in enumerate(self.starts):
            numbers = tuple(number for number in ask.numbers if number % count == place)
            if numbers:
                tried = tuple(one for one in ask.tried if one.number % count == place)
                asked = dataclasses.replace(ask, numbers=numbers, tried=tried)
                begun.update(zip(numbers, each.start(asked), strict=True))
        return tuple(begun[number] for number in ask.numbers)
