"""A mixture of experts in place of a feed-forward layer: the two best experts of each token, with limited places.

References:
    Lepikhin et al., GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding, ICLR 2021,
    algorithm 1 (without its auxiliary loss and random routing, as in Alpa's evaluation).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from alpa_dejavu.layers.models._optimizers import Group, Shapes
from alpa_dejavu.layers.models._sizes import MoE


def expert_shapes(size: MoE, width: int) -> Shapes:
    """The parameters of all experts and of the gate."""
    hidden, experts_ = size.hidden, size.num_experts
    return {"gate": (hidden, experts_), "enter": (experts_, hidden, width), "leave": (experts_, width, hidden)}


def experts(weights: Group, x: jax.Array, group: int) -> jax.Array:
    """Sends each token to its experts and adds up what they answer.

    Args:
        weights: those of `expert_shapes`.
        x: (batch, sequence, hidden).
        group: how many tokens share the experts' places; as many as there are, where there are fewer.
    """
    tokens = x.shape[0] * x.shape[1]
    groups = x.reshape(-1, min(group, tokens), x.shape[-1])
    gates = jax.nn.softmax(jnp.einsum("gsm,me->gse", groups, weights["gate"]))
    combine = _two_best(gates)
    dispatch = (combine > 0).astype(x.dtype)
    entering = jnp.einsum("gsec,gsm->egcm", dispatch, groups)
    inside = jax.nn.relu(jnp.einsum("egcm,emh->egch", entering, weights["enter"]))
    leaving = jnp.einsum("egch,ehm->gecm", inside, weights["leave"])
    return jnp.einsum("gsec,gecm->gsm", combine, leaving).reshape(x.shape)


def _two_best(gates: jax.Array) -> jax.Array:
    """The weight of each token at each place of each expert, (group, token, expert, place)."""
    num_tokens, num_experts = gates.shape[1:]
    places = max(2 * num_tokens // num_experts, 1)
    first = jax.nn.one_hot(jnp.argmax(gates, -1), num_experts, dtype=jnp.int32)
    second = jax.nn.one_hot(jnp.argmax(gates * (1 - first), -1), num_experts, dtype=jnp.int32)
    first_place = jnp.cumsum(first, axis=1) - first
    second_place = jnp.cumsum(second, axis=1) - second + first.sum(axis=1, keepdims=True)
    first, second = first * (first_place < places), second * (second_place < places)
    first_gate, second_gate = (gates * first).sum(-1), (gates * second).sum(-1)
    total = first_gate + second_gate
    total = jnp.where(total > 0, total, 1)
    return _placed(first_gate / total, first, first_place, places) + _placed(
        second_gate / total, second, second_place, places
    )


def _placed(gate: jax.Array, chosen: jax.Array, place: jax.Array, places: int) -> jax.Array:
    weight = gate[..., None] * chosen.astype(gate.dtype)
    position = jax.nn.one_hot((place * chosen).sum(-1), places, dtype=gate.dtype)
    return jnp.einsum("gse,gsc->gsec", weight, position)
