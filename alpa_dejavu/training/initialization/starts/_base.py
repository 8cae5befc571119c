"""The interface of starts: where candidates begin."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import final

from alpa_dejavu.training.initialization._layout import Leaves, Tensor


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Started:
    """Where a candidate begins.

    Attributes:
        weights: its parameters, as the asked tensors.
        point: the coordinates that it was made of, where there are such.
    """

    weights: Leaves
    point: tuple[float, ...] = ()


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """Where an earlier candidate began, and the loss that its curve promises."""

    started: Started
    promised: float


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Ask:
    """What a start is asked for.

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
    """Says where candidates begin.

    Attributes:
        waves: the fractions of all candidates that begin together. Who learns from earlier candidates needs several:
            a wave begins when the one before has reached the first rung.
    """

    waves: tuple[float, ...] = (1.0,)

    @abc.abstractmethod
    def start(self, ask: Ask) -> tuple[Started, ...]:
        """One for each asked number; the same question always gets the same answer."""
