"""A layer's forward pass, backward pass and update as one program of the engine, as Alpa's pass sees a stage.

The optimizer is left out but for one operator for each parameter, which ties the layouts of a parameter, of its
gradient and of its state to each other: optimizers compute element by element.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property
from typing import final

from alpa_dejavu.sharding._facts import Facts
from alpa_dejavu.sharding._operator import Operator


@final
@dataclasses.dataclass(frozen=True)
class Trained:
    """A parameter that is trained: operators by their place.

    Attributes:
        parameter, accumulator: what is kept of it.
        sums: the products and reductions that its gradient comes from.
        state_bytes: of its whole optimizer state.
    """

    parameter: int
    accumulator: int
    sums: tuple[int, ...]
    state_bytes: float


@final
@dataclasses.dataclass(frozen=True)
class Lifetime:
    """A value in memory: the operator by which it is cut, its whole bytes, and the steps in which it is there."""

    operator: int
    num_bytes: float
    first: int = 0
    last: int = 0


@final
@dataclasses.dataclass(frozen=True)
class LayerProgram:
    """One layer, or several as one; equal programs need to be solved once.

    Attributes:
        operators: the program.
        num_forward, num_backward: how many operators belong to the two passes; the rest to the update.
        parameters: the operators that are parameters of the model.
        trained: those that are trained.
        kept: what a micro-batch's forward pass makes that waits for the backward pass.
        inputs: of what the layer gets, what waits too.
        received, sent: operators whose results cross to the layers before, and after, in either pass.
        forward_records, backward_records: the operator behind each operator record of `features.layer_features`.
        update_records: for each operator record of the update, the parameter that it is about; -1 for none.
        forward_temporaries, backward_temporaries: what lives inside the passes.
        results: the operators of the forward jaxprs' results, -1 for constants.
        known_batch: operators whose batch dimension is known, each with it.
    """

    operators: tuple[Operator, ...]
    num_forward: int
    num_backward: int
    parameters: tuple[int, ...]
    trained: tuple[Trained, ...]
    kept: tuple[Lifetime, ...]
    inputs: tuple[Lifetime, ...]
    received: tuple[int, ...]
    sent: tuple[int, ...]
    forward_records: tuple[int, ...]
    backward_records: tuple[int, ...]
    update_records: tuple[int, ...]
    forward_temporaries: tuple[Lifetime, ...]
    backward_temporaries: tuple[Lifetime, ...]
    results: tuple[int, ...] = ()
    known_batch: tuple[tuple[int, int], ...] = ()

    @cached_property
    def smaller(self) -> frozenset[int]:
        """Returns the operators whose results cross a boundary, and are smaller than the largest that crosses it."""
        found: set[int] = set()
        for side in (self.received, self.sent):
            sizes = {place: math.prod(self.operators[place].shape) for place in side}
            found.update(place for place, size in sizes.items() if size < max(sizes.values()))
        return frozenset(found)

    @cached_property
    def facts(self) -> Facts:
        """Returns the facts about the program that the engine needs on every mesh."""
        return Facts.of(self.operators, thorough=True, known_batch=self.known_batch)

    def phase(self, operator: int) -> str:
        """The pass that an operator belongs to."""
        if operator < self.num_forward:
            return "forward"
        return "backward" if operator < self.num_forward + self.num_backward else "update"
