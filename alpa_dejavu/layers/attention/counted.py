"""How much attention a traced step has, for a sentence to the reader of its plan. jax is needed to count it alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

from alpa_dejavu.problem import Model

if TYPE_CHECKING:
    from alpa_dejavu._util.jax_api import core
    from alpa_dejavu.layers._trace import TracedStep

__all__ = ["AttentionFound", "attention_of"]


@final
@dataclasses.dataclass(frozen=True)
class AttentionFound:
    """The number of attentions in a traced step's forward pass.

    Attributes:
        by_pattern: how many are written out, as a product, a softmax and a product.
        by_call: how many call a fused kernel.
        in_loops: how many of those that are written out are in loops, where they stay as they are.
    """

    by_pattern: int
    by_call: int
    in_loops: int = 0

    def note(self, attention: str, model: Model | None = None) -> str | None:
        """Returns a sentence on how attention is priced, for the notes of a plan; None if there is none.

        Args:
            attention: how attention that is written out is computed, "plain" or "fused".
            model: the model that was made so; it says how many could be fused. None: all of them.

        >>> AttentionFound(24, 0).note("plain")
        'attention: 24 found by pattern, priced as XLA compiles it, unfused; --attention fused prices fused kernels'
        >>> AttentionFound(0, 2).note("plain")
        'attention: 2 found by call, priced as the fused kernels that they call'
        """
        parts = []
        if self.by_call:
            parts.append(f"{self.by_call} found by call, priced as the fused kernels that they call")
        if self.by_pattern and attention == "plain":
            parts.append(
                f"{self.by_pattern} found by pattern, priced as XLA compiles it, unfused; --attention fused prices "
                "fused kernels"
            )
        elif self.by_pattern:
            most = self.by_pattern - self.in_loops
            fused = most if model is None else max(min(most, _num_fused(model) - self.by_call), 0)
            rest = self.by_pattern - fused
            apart = f", but for {rest} in loops, or of which no layer has all" if rest else ""
            parts.append(f"{self.by_pattern} found by pattern, priced as fused kernels{apart}")
        return f"attention: {'; '.join(parts)}" if parts else None


def _num_fused(model: Model) -> int:
    """How many kernels of fused attention a model's forward passes run."""
    records = (record for layer in model.layers for record in layer.forward.records)
    return round(sum(record.count for record in records if record.kind == "attention"))


def attention_of(traced: TracedStep) -> AttentionFound:
    """Returns how much attention a traced step has, and whether it is written out or calls a fused kernel."""
    from alpa_dejavu.layers.attention._equations import Equations
    from alpa_dejavu.layers.attention._pairs import pairs_of
    from alpa_dejavu.layers.attention.fused import is_marked
    from alpa_dejavu.layers.features.flatten import ATTENTION, Flattener, Value

    in_loops = _in_loops(traced.loss)
    equations = Equations([traced.loss], values=traced.constants)
    pairs = pairs_of(equations, 1)
    marked = sum(is_marked(equations, pair) for pair in pairs)
    by_pattern = len(pairs) - marked + in_loops
    flat = Flattener()
    flat.walk(traced.loss, [Value(var.aval) for var in traced.loss.invars])
    by_call = marked + sum(step.trips for step in flat.steps if step.primitive == ATTENTION)
    return AttentionFound(by_pattern, round(by_call), in_loops)


def _in_loops(jaxpr: core.Jaxpr) -> int:
    """How much attention there is in a jaxpr's loops and branches, counted in each trip."""
    from alpa_dejavu._util.jax_api import core
    from alpa_dejavu.layers.attention._equations import Equations
    from alpa_dejavu.layers.attention._pairs import pairs_of

    return sum(
        int(equation.params.get("length", 1)) * (len(pairs_of(Equations([inner]), 1)) + _in_loops(inner))
        for equation in Equations([jaxpr]).rows[0]
        if equation.primitive.name in ("scan", "while", "cond")
        for inner in core.jaxprs_in_params(equation.params)
    )
