"""The figures of a relaxed plan that a cost gets to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class RelaxedPlan(NamedTuple):
    """A plan as cost functions take it: K places for stages, of which the first `num_stages` are taken; figures are
    means.

    Once the anneal is over, and wherever whole plans are compared, the means are those of one plan. All are JAX arrays.

    Attributes:
        forward_s, backward_s: shape (K,), of one micro-batch; 0 beyond the last stage, as are all others.
        once_s: shape (K,), what a stage costs once a step.
        crossing_s: shape (K,), what comes to a stage from the one before, there and back, of one micro-batch.
        devices: shape (K,), the share of all devices.
        risk: shape (K,), by how many stages too many follow for the stage's memory.
        num_stages: how many stages there are.
        num_micro_batches: B.
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
