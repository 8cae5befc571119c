"""Counts the attention of a traced step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax import core

from alpa_dejavu.layers.attention._equations import Equations
from alpa_dejavu.layers.attention._pairs import pairs_of
from alpa_dejavu.layers.attention.counted import AttentionFound
from alpa_dejavu.layers.features.flatten import ATTENTION, Flattener, Value

if TYPE_CHECKING:
    from alpa_dejavu.layers._trace import TracedStep


def attention_of(traced: TracedStep) -> AttentionFound:
    """Returns how much attention a traced step has, and whether it is written out or calls a fused kernel."""
    in_loops = _in_loops(traced.loss)
    by_pattern = len(pairs_of(Equations([traced.loss], values=traced.constants), 1)) + in_loops
    flat = Flattener()
    flat.walk(traced.loss, [Value(var.aval) for var in traced.loss.invars])
    by_call = sum(step.trips for step in flat.steps if step.primitive == ATTENTION)
    return AttentionFound(by_pattern, round(by_call), in_loops)


def _in_loops(jaxpr: core.Jaxpr) -> int:
    """How much attention there is in a jaxpr's loops and branches, counted in each trip."""
    found = 0
    for equation in Equations([jaxpr]).rows[0]:
        if equation.primitive.name in ("scan", "while", "cond"):
            for inner in core.jaxprs_in_params(equation.params):
                times = int(equation.params.get("length", 1))
                found += times * (len(pairs_of(Equations([inner]), 1)) + _in_loops(inner))
    return found
