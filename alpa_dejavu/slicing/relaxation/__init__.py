"""Plans as probabilities: what `alpa_dejavu.slicing.Gradient` relaxes, anneals, recovers and polishes.

This package needs no JAX, but its modules do; `alpa_dejavu.slicing.relaxation.pipeline` has costs that JAX
differentiates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Cost", "RelaxedPlan"]


class RelaxedPlan(NamedTuple):
    """A plan as differentiable cost functions take it: arrays over K stages, of which the first `num_stages` exist.

    While plans are relaxed to probabilities the figures are means over plans. Once the anneal is over, and wherever
    whole plans are compared, they are those of one plan. All are JAX arrays.

    Attributes:
        forward_s, backward_s: shape (K,), seconds of one micro-batch; 0 beyond the last stage, as in all these arrays.
        once_s: shape (K,), the seconds that a stage takes once a step.
        crossing_s: shape (K,), the seconds of one micro-batch's transfers between a stage and the one before, there and
            back.
        devices: shape (K,), the share of all devices that a stage has.
        risk: shape (K,), by how many stages too many follow for the stage's memory.
    """

    forward_s: Any
    backward_s: Any
    once_s: Any
    crossing_s: Any
    devices: Any
    risk: Any
    num_stages: Any
    num_micro_batches: Any


Cost = Callable[[RelaxedPlan], Any]
"""A function from a relaxed plan to its seconds, of JAX operations that can be differentiated, batched and compiled."""
