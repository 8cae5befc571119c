"""GPT, its mixture-of-experts variant and BERT in half precision, with single-precision master copies.

Blocks normalise after their residual connection, and GPT's embeddings are looked up by products with one-hot vectors:
that is what Alpa's evaluation ran. A block is a jitted function, so blocks that are alike are traced once.

References:
    Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
    Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding, NAACL 2019.
    Zheng et al., Alpa, OSDI 2022, section 8.1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from alpa_dejavu.layers.models._sizes import BERT, GPT, MoE
from alpa_dejavu.layers.models._training import (
    HALF,
    Group,
    Shapes,
    abstract,
    abstract_tokens,
    adafactor,
    log_likelihood,
    step_in_half,
)


def transformer_step(size: GPT | MoE, batch_size: int) -> Any:
    """Returns the train step of a GPT or MoE language model, and its abstract arguments: state, tokens and labels."""

    def loss(groups: list[Group], batch: Group) -> jax.Array:
        logits = _logits(groups, _activations(size, groups, batch))
        labels = jax.nn.one_hot(batch["labels"], size.vocabulary)
        per_token = -jnp.sum(labels * jax.nn.log_softmax(logits, axis=-1), axis=-1)
        present = jnp.where(batch["labels"] > 0, 1.0, 0.0)
        return (present * per_token).sum() / present.sum()

    batch = abstract_tokens(size, batch_size, "tokens", "labels")
    return step_in_half(loss, transformer_shapes(size), batch, adafactor() if isinstance(size, MoE) else None)


def transformer_forward(size: GPT | MoE, batch_size: int) -> Any:
    """Returns the step from prompts to the logits of their next tokens, and its abstract arguments: groups of
    parameters and tokens. A GPT's embeddings are gathered, not multiplied as its train step does.
    """
    if isinstance(size, GPT):
        size = dataclasses.replace(size, gathers=True)

    def forward_step(groups: list[Group], batch: Group) -> jax.Array:
        return _logits(groups, _activations(size, groups, batch)[:, -1:].squeeze(1))

    return forward_step, (abstract(transformer_shapes(size), HALF), abstract_tokens(size, batch_size, "tokens"))


def transformer_shapes(size: GPT | MoE) -> list[Shapes]:
    """Returns the shapes of the parameters: embeddings, blocks, the head."""
    hidden, wide = size.hidden, size.hidden * (8 if isinstance(size, MoE) else 4)
    blocks = [_block_shapes(hidden, wide)] * size.num_blocks
    if isinstance(size, MoE):
        experts = size.num_experts
        mixture = {"gate": (hidden, experts), "enter": (experts, hidden, wide), "leave": (experts, wide, hidden)}
        blocks[::2] = [_block_shapes(hidden, wide, mixture)] * len(blocks[::2])
    first = {"tokens": (size.vocabulary, hidden), "positions": (size.sequence, hidden), **_scales(hidden)}
    return [first, *blocks, {"head": (hidden, size.vocabulary), "head_bias": (size.vocabulary,)}]


def bert_step(size: BERT, batch_size: int) -> Any:
    """Returns the train step of a BERT, and its abstract arguments: state, then tokens, their segments and labels. As
    in the published model, logits are made by the table of embeddings.
    """

    def loss(groups: list[Group], batch: Group) -> jax.Array:
        first, *blocks, last = groups
        x = first["tokens"][batch["tokens"]] + first["positions"] + first["kinds"][batch["segments"]]
        x = _norm(x, first["scale"], first["shift"])
        for weights in blocks:
            x = _block(weights, x, size.num_heads, 0, False)
        x = jax.nn.gelu(x @ last["transform"] + last["transform_bias"])
        logits = _norm(x, last["scale"], last["shift"]) @ first["tokens"].T + last["head_bias"]
        per_token = -log_likelihood(logits, batch["labels"])
        left_out = jnp.where(batch["labels"] > 0, 1.0, 0.0)
        return (left_out * per_token).sum() / jnp.maximum(left_out.sum(), 1)

    return step_in_half(loss, bert_shapes(size), abstract_tokens(size, batch_size, "tokens", "segments", "labels"))


def bert_shapes(size: BERT) -> list[Shapes]:
    """Returns the shapes of the parameters: embeddings, blocks, the head."""
    hidden, tables = size.hidden, {"tokens": size.vocabulary, "positions": size.sequence, "kinds": size.kinds}
    last = {
        "transform": (hidden, hidden), "transform_bias": (hidden,), **_scales(hidden), "head_bias": (size.vocabulary,)
    }  # fmt: skip
    blocks = [_block_shapes(hidden, size.feed_forward)] * size.num_blocks
    return [{name: (rows, hidden) for name, rows in tables.items()} | _scales(hidden), *blocks, last]


def _block_shapes(hidden: int, wide: int, mixture: Shapes | None = None) -> Shapes:
    """The shapes of a block's parameters, where a mixture of experts may stand in place of its feed-forward layer."""
    dense = {"wide": (hidden, wide), "wide_bias": (wide,), "narrow": (wide, hidden), "narrow_bias": (hidden,)}
    return {
        "qkv": (hidden, 3 * hidden),
        "qkv_bias": (3 * hidden,),
        "out": (hidden, hidden),
        "out_bias": (hidden,),
        "attention_scale": (hidden,),
        "attention_shift": (hidden,),
        **_scales(hidden),
        **(dense if mixture is None else mixture),
    }


def _scales(hidden: int) -> dict[str, tuple[int, ...]]:
    return {"scale": (hidden,), "shift": (hidden,)}


def _logits(groups: list[Group], x: jax.Array) -> jax.Array:
    return x @ groups[-1]["head"] + groups[-1]["head_bias"]


def _activations(size: GPT | MoE, groups: list[Group], batch: Group) -> jax.Array:
    """The activations that logits are made of, shape (batch, sequence, hidden)."""
    first, *blocks, _ = groups
    positions = jnp.broadcast_to(jnp.arange(size.sequence), batch["tokens"].shape)
    gathers = isinstance(size, GPT) and size.gathers
    x = _looked_up(first["tokens"], batch["tokens"], gathers) + _looked_up(first["positions"], positions, gathers)
    x = _norm(x, first["scale"], first["shift"])
    for weights in blocks:
        x = _block(weights, x, size.num_heads, size.group if isinstance(size, MoE) else 0)
    return x


def _looked_up(table: jax.Array, rows: jax.Array, gathers: bool) -> jax.Array:
    return table[rows] if gathers else jax.nn.one_hot(rows, table.shape[0], dtype=table.dtype) @ table


@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=True)
def _block(weights: Group, x: jax.Array, num_heads: int, group: int, causal: bool = True) -> jax.Array:
    """A block, which normalises after attention and after its feed-forward layer or mixture of experts."""
    attended = _attention(weights, x, num_heads, causal)
    x = _norm(x + attended, weights["attention_scale"], weights["attention_shift"])
    if "gate" in weights:

        def inner(entering: jax.Array) -> jax.Array:
            return jax.nn.relu(jnp.einsum("egcm,emh->egch", entering, weights["enter"]))

        fed = mixture_of_experts(x, group, weights["gate"], _two_best, inner, weights["leave"])
    else:
        wide = jax.nn.gelu(x @ weights["wide"] + weights["wide_bias"], approximate=True)
        fed = wide @ weights["narrow"] + weights["narrow_bias"]
    return _norm(x + fed, weights["scale"], weights["shift"])


def _attention(weights: Group, x: jax.Array, num_heads: int, causal: bool) -> jax.Array:
    batch, sequence, hidden = x.shape
    qkv = (x @ weights["qkv"] + weights["qkv_bias"]).reshape(batch, sequence, num_heads, hidden // num_heads, 3)
    query, key, value = qkv[..., 0], qkv[..., 1], qkv[..., 2]
    # Added to the scores, as Alpa's GPT does it, a mask needn't be kept for the backward pass.
    mask = past_mask(sequence, x.dtype) if causal else None
    mixed = mixed_values(query / math.sqrt(hidden // num_heads), key, value, mask)
    return mixed.reshape(x.shape) @ weights["out"] + weights["out_bias"]


def mixed_values(query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Returns the values that each token looks at; all are of shape (batch, tokens, heads, head), and what is added to
    scores of one that they can be broadcast to, (batch, heads, query's tokens, key's tokens).
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
    weight = jax.nn.softmax(scores if bias is None else scores + bias, axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weight, value)


def past_mask(sequence: int, dtype: Any) -> jax.Array:
    """Returns what is added to scores so that tokens look at no later ones, shape (sequence, sequence)."""
    past = jnp.tril(jnp.ones((sequence, sequence), bool))
    return jnp.where(past, 0, jnp.finfo(dtype).min).astype(dtype)


def _norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    """The activations normalised over their width, the statistics in single precision."""
    precise = x.astype(jnp.float32)
    centred = precise - precise.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return (normal * scale + shift).astype(x.dtype)


def mixture_of_experts(
    x: jax.Array,
    group: int,
    router: jax.Array,
    places: Callable[[jax.Array], jax.Array],
    inner: Callable[[jax.Array], jax.Array],
    leave: jax.Array,
) -> jax.Array:
    """Computes a mixture of experts: each token goes to its best experts, whose results are added up. Experts have a
    limited number of places for tokens; a token that gets none is left out.

    Args:
        x: the activations, shape (batch, sequence, hidden).
        group: how many tokens share the experts' places; all tokens, if there are fewer.
        router: the matrix that gates are made by, shape (hidden, experts).
        places: a function from gates, shape (group, token, expert), to each token's weight at each place of each
            expert, shape (group, token, expert, place).
        inner: a function from what enters the experts, shape (expert, group, place, hidden), to their inner layers.
        leave: the experts' last matrices, shape (experts, inner, hidden).

    References:
        Lepikhin et al., GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding, ICLR 2021,
        algorithm 1 (without its auxiliary loss and random routing, as in Alpa's evaluation).
    """
    groups = x.reshape(-1, min(group, x.shape[0] * x.shape[1]), x.shape[-1])
    combine = places(jax.nn.softmax(jnp.einsum("gsm,me->gse", groups, router)))
    entering = jnp.einsum("gsec,gsm->egcm", (combine > 0).astype(x.dtype), groups)
    leaving = jnp.einsum("egch,ehm->gecm", inner(entering), leave)
    return jnp.einsum("gsec,gecm->gsm", combine, leaving).reshape(x.shape)


def _two_best(gates: jax.Array) -> jax.Array:
    """Alpa's places: the two best experts of each token, with weights that add up to 1; first choices come first."""
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
