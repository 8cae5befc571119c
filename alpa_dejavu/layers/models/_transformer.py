"""GPT and its mixture-of-experts variant in half precision, with single-precision master copies.

Blocks normalise after their residual connection, as BERT's do, and embeddings are looked up by products with one-hot
vectors: that is what Alpa's evaluation ran. A block is a jitted function, so blocks that are alike are traced once.

References:
    Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
    Zheng et al., Alpa, OSDI 2022, section 8.1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from alpa_dejavu.layers.models._optimizers import (
    Group,
    Shapes,
    Trained,
    abstract_state,
    adafactor,
    adamw,
    apply_gradients,
    updating,
)
from alpa_dejavu.layers.models._sizes import GPT, MoE

_DTYPE = jnp.float16


def transformer_step(size: GPT | MoE, batch_size: int) -> Any:
    """Returns the train step of a GPT or MoE language model, and its abstract arguments: state, tokens and labels."""
    optimizer = adafactor() if isinstance(size, MoE) else adamw()
    update = updating(optimizer)

    def train_step(state: Trained, batch: Group) -> Trained:
        def loss(parameters: list[Group]) -> jax.Array:
            return _loss(size, parameters, batch)

        return apply_gradients(state, jax.grad(loss)(state.parameters), update)

    state = abstract_state(transformer_shapes(size), _DTYPE, optimizer, master=True)
    tokens = jax.ShapeDtypeStruct((batch_size, size.sequence), jnp.int32)
    return train_step, (state, {"tokens": tokens, "labels": tokens})


def transformer_forward(size: GPT | MoE, batch_size: int) -> Any:
    """Returns the step from prompts to the logits of their next tokens, and its abstract arguments.

    The arguments are groups of parameters and the prompts' tokens, of the sequence's length. A GPT's embeddings are
    gathered, not multiplied as its train step does.
    """
    if isinstance(size, GPT):
        size = dataclasses.replace(size, gathers=True)

    def forward_step(groups: list[Group], batch: Group) -> jax.Array:
        last, x = groups[-1], _activations(size, groups, batch)[:, -1:].squeeze(1)
        return x @ last["head"] + last["head_bias"]

    parameters = abstract_state(transformer_shapes(size), _DTYPE, optax.identity(), master=False).parameters
    return forward_step, (parameters, {"tokens": jax.ShapeDtypeStruct((batch_size, size.sequence), jnp.int32)})


def transformer_shapes(size: GPT | MoE) -> list[Shapes]:
    """Returns the shapes of the parameters: embeddings, blocks, the head."""
    hidden, wide = size.hidden, _width(size)
    blocks = []
    for n in range(size.num_blocks):
        mixed = expert_shapes(size, wide) if isinstance(size, MoE) and n % 2 == 0 else None
        blocks.append(block_shapes(hidden, wide, mixed))
    norm = {"scale": (hidden,), "shift": (hidden,)}
    first = {"tokens": (size.vocabulary, hidden), "positions": (size.sequence, hidden), **norm}
    return [first, *blocks, {"head": (hidden, size.vocabulary), "head_bias": (size.vocabulary,)}]


def block_shapes(hidden: int, wide: int, mixed: Shapes | None = None) -> Shapes:
    """Returns the shapes of a block's parameters, with those of a mixture of experts in place of its feed-forward
    layer where they are given.
    """
    dense = {"wide": (hidden, wide), "wide_bias": (wide,), "narrow": (wide, hidden), "narrow_bias": (hidden,)}
    return {
        "qkv": (hidden, 3 * hidden),
        "qkv_bias": (3 * hidden,),
        "out": (hidden, hidden),
        "out_bias": (hidden,),
        "attention_scale": (hidden,),
        "attention_shift": (hidden,),
        "scale": (hidden,),
        "shift": (hidden,),
        **(dense if mixed is None else mixed),
    }


def _width(size: GPT | MoE) -> int:
    return size.hidden * (8 if isinstance(size, MoE) else 4)


def _loss(size: GPT | MoE, groups: list[Group], batch: Group) -> jax.Array:
    last = groups[-1]
    logits = _activations(size, groups, batch) @ last["head"] + last["head_bias"]
    labels = jax.nn.one_hot(batch["labels"], size.vocabulary)
    per_token = -jnp.sum(labels * jax.nn.log_softmax(logits, axis=-1), axis=-1)
    present = jnp.where(batch["labels"] > 0, 1.0, 0.0)
    return (present * per_token).sum() / present.sum()


def _activations(size: GPT | MoE, groups: list[Group], batch: Group) -> jax.Array:
    """The activations that logits are made of, shape (batch, sequence, hidden)."""
    first, *blocks, _ = groups
    positions = jnp.broadcast_to(jnp.arange(size.sequence), batch["tokens"].shape)
    gathers = isinstance(size, GPT) and size.gathers
    x = _looked_up(first["tokens"], batch["tokens"], gathers) + _looked_up(first["positions"], positions, gathers)
    x = norm(x, first["scale"], first["shift"])
    for weights in blocks:
        x = block(weights, x, size.num_heads, size.group if isinstance(size, MoE) else 0)
    return x


def _looked_up(table: jax.Array, rows: jax.Array, gathers: bool) -> jax.Array:
    return table[rows] if gathers else jax.nn.one_hot(rows, table.shape[0], dtype=table.dtype) @ table


@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=True)
def block(weights: Group, x: jax.Array, num_heads: int, group: int, causal: bool = True) -> jax.Array:
    """Computes a block, which normalises after attention and after its feed-forward layer or mixture of experts."""
    attended = _attention(weights, x, num_heads, causal)
    x = norm(x + attended, weights["attention_scale"], weights["attention_shift"])
    if "gate" in weights:
        fed = experts(weights, x, group)
    else:
        wide = jax.nn.gelu(x @ weights["wide"] + weights["wide_bias"], approximate=True)
        fed = wide @ weights["narrow"] + weights["narrow_bias"]
    return norm(x + fed, weights["scale"], weights["shift"])


def _attention(weights: Group, x: jax.Array, num_heads: int, causal: bool) -> jax.Array:
    batch, sequence, hidden = x.shape
    qkv = (x @ weights["qkv"] + weights["qkv_bias"]).reshape(batch, sequence, num_heads, hidden // num_heads, 3)
    query, key, value = qkv[..., 0], qkv[..., 1], qkv[..., 2]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query / math.sqrt(hidden // num_heads), key)
    if causal:
        past = jnp.tril(jnp.ones((sequence, sequence), bool))
        # Added to the scores, as Alpa's GPT does it, a mask needn't be kept for the backward pass.
        scores = scores + jnp.where(past, 0, jnp.finfo(x.dtype).min).astype(x.dtype)
    weight = jax.nn.softmax(scores, axis=-1)
    together = jnp.einsum("bhqk,bkhd->bqhd", weight, value).reshape(x.shape)
    return together @ weights["out"] + weights["out_bias"]


def norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    """Returns the activations normalised over their width, the statistics in single precision."""
    precise = x.astype(jnp.float32)
    centred = precise - precise.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return (normal * scale + shift).astype(x.dtype)


def expert_shapes(size: MoE, width: int) -> Shapes:
    """Returns the shapes of a mixture-of-experts layer's parameters: those of all experts and of the gate."""
    hidden, experts_ = size.hidden, size.num_experts
    return {"gate": (hidden, experts_), "enter": (experts_, hidden, width), "leave": (experts_, width, hidden)}


def experts(weights: Group, x: jax.Array, group: int) -> jax.Array:
    """Computes a mixture-of-experts layer: each token goes to its two best experts, whose results are added up.

    Experts have a limited number of places for tokens; a token that finds none is left out.

    Args:
        weights: the layer's parameters: the gate's, and both matrices of all experts.
        x: the activations, shape (batch, sequence, hidden).
        group: how many tokens share the experts' places; all tokens, if there are fewer.

    References:
        Lepikhin et al., GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding, ICLR 2021,
        algorithm 1 (without its auxiliary loss and random routing, as in Alpa's evaluation).
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
