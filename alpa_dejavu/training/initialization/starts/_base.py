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
    """The weights with which a candidate begins.

    Attributes:
        weights: its parameters, in the order and shapes of the tensors that were asked for.
        point: the coordinates that these were made of, where there are such.
    """

    weights: Leaves
    point: tuple[float, ...] = ()


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """An earlier candidate: where it began, and the loss that its curve promises."""

    started: Started
    promised: float


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Ask:
    """The question to a start: which candidates are to begin, and what is known of earlier ones.

    Attributes:
        tensors: the model's parameters.
        own: gives the weights with which the model itself begins, for a candidate's number.
        numbers: the candidates to begin, ascending.
        seed: of the run.
        tried: the candidates of earlier waves, the best first; those that diverged aren't among them.
    """

    tensors: tuple[Tensor, ...]
    own: Callable[[int], Leaves]
    numbers: tuple[int, ...]
    seed: int
    tried: tuple[Tried, ...] = ()


class Start(abc.ABC):
    """A start, which says where candidates begin.

    Attributes:
        waves: the fractions of all candidates that begin together. Who learns from earlier candidates needs several:
            a wave begins when the one before has reached the first rung.
    """

    waves: tuple[float, ...] = (1.0,)

    @abc.abstractmethod
    def start(self, ask: Ask) -> tuple[Started, ...]:
        """Returns the weights of each asked candidate; the same question always gets the same answer."""


@final
@dataclasses.dataclass(frozen=True)
class Own(Start):
    """A start with the weights with which the model begins by itself."""

    def start(self, ask: Ask) -> tuple[Started, ...]:
        return tuple(Started(ask.own(number)) for number in ask.numbers)
