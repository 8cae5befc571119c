"""A traced step cut into layers: a forward, a backward and an update jaxpr each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

from jax import core

from alpa_dejavu.layers._trace import TracedStep


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayeredStep:
    """The layers' jaxprs; what one makes and another takes is the same variable in both.

    Attributes:
        forward: of each of the L layers, in order.
        backward: of each layer, in the order of the forward ones; empty for inference. No equations: nothing to do.
        updates: the optimizer's jaxpr of each layer, None where it has none; empty for inference.
        accumulators: operands of the backward layers that gradients are added to, and the results of that.
        data: operands that are part of the batch.
    """

    forward: tuple[core.Jaxpr, ...]
    backward: tuple[core.Jaxpr, ...]
    updates: tuple[core.Jaxpr | None, ...]
    accumulators: Mapping[core.Var, core.Var]
    data: frozenset[core.Var]


def cut_into_layers(traced: TracedStep, num_layers: int | str, *, remat: str = "none", eps: float = 0.5) -> LayeredStep:
    """Cuts the loss by the rule of Alpa's `AutoLayerOption`, and the rest of the step after it."""
    raise NotImplementedError("alpa_dejavu.layers.cut_into_layers is on its way")
