"""Problems: a model, its loss, and the data that it is trained on and judged by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

from numpy.typing import NDArray

__all__ = ["Problem"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A model and its data.

    Attributes:
        name: for people.
        init: makes the parameters, a pytree of float32 arrays, of a jax random key.
        loss: the mean loss, a scalar, of the parameters on a batch `(inputs, targets)`.
        accuracy: the share of a batch's targets that the parameters predict; None: there are no classes.
        train: inputs and targets that workers draw their batches from, first dimension the samples.
        held_out: inputs and targets by which the history's loss and accuracy are told.
        coordinates: returns for some inputs the indices of the parameters, flat, that each one's loss depends on, shape
            (samples, indices); None: all of them.
        chain: names of parts of the parameters in a row, each a kernel of shape (inputs, outputs) and a bias, where the
            outputs of one, such as filters, are the inputs of the next one, the last one's classes; units of all but
            the last one may be left out. Empty: none may.
        blocks: pairs of names of parts of the parameters, each pair a residual block: the outputs of the second part,
            whose inputs are the units of the first one, are added to what comes into the block. Units of the first part
            may be left out, or the whole block.
        narrowed: returns the problem with fewer units in these layers and then blocks, given their numbers, 0 for a
            block that isn't there; None: there is none.
        logits: returns what the model puts out for the parameters and some inputs, shape (*targets, classes); None:
            there are no classes.
    """

    name: str
    init: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any]
    accuracy: Callable[[Any, Any], Any] | None
    train: tuple[NDArray[Any], NDArray[Any]]
    held_out: tuple[NDArray[Any], NDArray[Any]]
    coordinates: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    chain: tuple[str, ...] = ()
    blocks: tuple[tuple[str, str], ...] = ()
    narrowed: Callable[[Sequence[int]], Problem] | None = None
    logits: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        for field in ("train", "held_out"):
            inputs, targets = getattr(self, field)
            if not 0 < len(inputs) == len(targets):
                raise ValueError(f"problem {self.name}: {field} is {len(inputs)} inputs and {len(targets)} targets, "
                                 "but must be as many of both; give each sample its target")  # fmt: skip
