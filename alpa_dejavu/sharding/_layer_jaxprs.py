"""A layer's jaxprs, with what each of their operands and results is for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

from jax import core


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerJaxprs:
    """One layer of a train step; the three jaxprs share variables.

    Attributes:
        forward: of one micro-batch.
        backward: of one micro-batch; None in inference, and where nothing is trained.
        update: the optimizer's; None where there is none.
        parameters: the operands of forward and backward that are parameters.
        accumulators: operands of the backward jaxpr that gradients are added to, with the results of that.
        gradients: trained parameters, with their gradients (accumulated ones, where they are accumulated): results of
            the backward jaxpr.
        states: for trained parameters the update's operands that are their optimizer state.
    """

    forward: core.Jaxpr
    backward: core.Jaxpr | None = None
    update: core.Jaxpr | None = None
    parameters: frozenset[core.Var] = frozenset()
    accumulators: Mapping[core.Var, core.Var] = dataclasses.field(default_factory=dict)
    gradients: Mapping[core.Var, core.Var] = dataclasses.field(default_factory=dict)
    states: Mapping[core.Var, tuple[core.Var, ...]] = dataclasses.field(default_factory=dict)


def layers_of(
    forward: Sequence[core.Jaxpr],
    backward: Sequence[core.Jaxpr] = (),
    updates: Sequence[core.Jaxpr | None] = (),
    accumulators: Mapping[core.Var, core.Var] | None = None,
    micro_batch: int | None = None,
) -> list[LayerJaxprs]:
    """The layers of a step, from what `alpa_dejavu.features.describe` takes: see there."""
    raise NotImplementedError
