"""Fused attention as one equation of a jaxpr: what its kernel computes, and the operations that it stands for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.problem import FusedAttention

attention_p = core.Primitive("attention")
"""Equations of it have the parameters `kernel`, an `AttentionKernel`, and `jaxpr`, the operations that they stand for,
on the same operands. These begin with queries, keys and values, each array once; in a backward pass the output, a
number for each row and the output's cotangent follow."""
attention_p.multiple_results = True
SIDES = ("queries", "keys", "values")
"""The operands of attention that have gradients, in the order in which a backward kernel returns these."""


@final
@dataclasses.dataclass(frozen=True)
class AttentionKernel:
    """A fused kernel of attention: its sizes, and which of attention's products it computes.

    Attributes:
        batch: how many sequences there are.
        tokens, key_tokens: the number of tokens of queries, and of keys and values.
        heads, key_heads: the number of heads of queries, and of keys and values.
        head, value_head: the numbers of elements of a head of queries and keys, and of values.
        causal: whether a token looks at itself and those before it alone.
        gradients: the gradients that a backward kernel returns, a part of `SIDES`; empty for a forward pass.
    """

    batch: int
    tokens: int
    key_tokens: int
    heads: int
    key_heads: int
    head: int
    value_head: int
    causal: bool
    gradients: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Returns the kernel as the text that an operator record has it by."""
        return FusedAttention(causal=self.causal, backward=bool(self.gradients)).text

    @property
    def flop(self) -> float:
        """Returns the floating-point operations of the products, half of them where scores are under a causal mask.

        A backward pass computes the scores again, then the gradient of the probabilities, then a product for each
        gradient: of all three, two and a half times as many operations as the forward pass.

        >>> AttentionKernel(1, 8, 8, 1, 1, 4, 4, False).flop, AttentionKernel(1, 8, 8, 1, 1, 4, 4, True, SIDES).flop
        (1024.0, 1280.0)
        """
        inner = float(self.head + self.value_head)
        inner += sum(self.value_head if side == "values" else self.head for side in self.gradients)
        return 2.0 * self.exponentials * inner

    @property
    def exponentials(self) -> float:
        """Returns how many exponentials the softmax takes: one for each score that isn't masked."""
        scores = float(self.batch * self.heads * self.tokens * self.key_tokens)
        return scores / 2 if self.causal else scores

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Returns the shapes of queries, keys and values, each (batch, tokens, heads, elements of a head)."""
        return (
            (self.batch, self.tokens, self.heads, self.head),
            (self.batch, self.key_tokens, self.key_heads, self.head),
            (self.batch, self.key_tokens, self.key_heads, self.value_head),
        )

    @property
    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Returns the shape of the output, or in a backward pass those of the gradients."""
        if self.gradients:
            return tuple(shape for side, shape in zip(SIDES, self.input_shapes, strict=True) if side in self.gradients)
        return ((self.batch, self.tokens, self.heads, self.value_head),)


def attention_equation(
    kernel: AttentionKernel, body: core.Jaxpr, operands: Sequence[core.Atom], results: Sequence[core.Var]
) -> core.JaxprEqn:
    """Makes the equation of a fused kernel from its sizes, the operations that it stands for, operands and results."""
    params = {"kernel": kernel, "jaxpr": body}
    return core.new_jaxpr_eqn(list(operands), list(results), attention_p, params, core.no_effects)
