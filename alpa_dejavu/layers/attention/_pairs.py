"""All attention in a step's passes: each found in the forward pass with what belongs to it in the backward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import final

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers.attention._equations import Equations
from alpa_dejavu.layers.attention._pattern import AttentionPattern, attention_from, backward_of
from alpa_dejavu.layers.attention._score_region import MixedError


@final
@dataclasses.dataclass(frozen=True, eq=False)
class AttentionPair:
    """The forward products of an attention, and its backward products, which may be in one region with those; None if
    there are none. A backward pass that computes its forward pass again has forward products, too.
    """

    ahead: AttentionPattern
    back: AttentionPattern | None


def pairs_of(equations: Equations, num_layers: int) -> list[AttentionPair]:
    """Returns all attention in a step's passes that a fused kernel could compute. The equations are those of the
    layers' forward passes, then of their backward passes in the order in which these run, if there are any.
    """
    pairs: list[AttentionPair] = []
    for n in range(num_layers):
        mate = len(equations.rows) - 1 - n
        mate = mate if mate >= num_layers else -1
        ahead = list(_attentions(equations, n, mate))
        back = list(_attentions(equations, mate, -1)) if mate >= 0 else []
        pairs += [AttentionPair(both, both) for both in back if both.output is not None and both.cotangent is not None]
        again = [pattern for pattern in back if pattern.output is None]
        # A backward pass that computes the forward pass again takes what that gives, not what was kept before.
        alone = [pattern for pattern in back if pattern.cotangent is None]
        paired = (_paired(equations, pattern, mate, again) for pattern in (*reversed(alone), *reversed(ahead)))
        pairs += [pair for pair in paired if pair is not None]
    return pairs


def _attentions(equations: Equations, number: int, mate: int) -> Iterator[AttentionPattern]:
    """The attention of a pass, in order."""
    for n, equation in enumerate(equations.rows[number]):
        if equation.primitive.name == "dot_general":
            pattern = attention_from(equations, (number, n), mate)
            if pattern is not None and (mate >= 0 or _stays(pattern)):
                yield pattern


def _stays(pattern: AttentionPattern) -> bool:
    """Whether a pass keeps nothing of scores for another one."""
    try:
        return not pattern.region.passed()
    except MixedError:
        return False


def _paired(
    equations: Equations, ahead: AttentionPattern, mate: int, again: list[AttentionPattern]
) -> AttentionPair | None:
    """Forward products and their backward products, taken out of `again`; None if scores have other uses."""
    if ahead.output is None or ahead.cotangent is not None:
        return None
    try:
        kept = sorted(ahead.region.passed(), key=lambda var: equations.makers[var])
    except MixedError:
        return None
    if not kept:
        back = next((pattern for pattern in again if pattern.kernel == ahead.kernel), None)
        if back is not None:
            again.remove(back)
        return AttentionPair(ahead, back)
    back = backward_of(equations, ahead, mate, kept) if mate >= 0 else None
    return None if back is None or not _are_in(equations, kept, back) else AttentionPair(ahead, back)


def _are_in(equations: Equations, kept: Sequence[core.Var], back: AttentionPattern) -> bool:
    """Whether all that takes kept values in other passes than their own is in the region of the backward products."""
    region = back.region
    inside = {*region.inside, *region.leaves, *region.sums}
    return all(
        taker in inside or taker[0] == equations.makers[var][0] for var in kept for taker in equations.takers[var]
    )
