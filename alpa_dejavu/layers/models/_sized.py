"""A decoder-only transformer by its sizes, as Llama, GPT-2, Mixtral and Qwen are, with marks where its layers end.

Parameters and activations are in half precision, with single-precision master copies, or in single precision.
Scores aren't kept for the backward pass, which computes them again, as fused attention does.

References:
    Touvron et al., Llama 2: Open Foundation and Fine-Tuned Chat Models, 2023.
    Jiang et al., Mixtral of Experts, 2024.
    Dao et al., FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness, NeurIPS 2022.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from alpa_dejavu.layers.marks import mark_layer_end
from alpa_dejavu.layers.models._training import (
    Group,
    Shapes,
    TrainedGroups,
    abstract,
    abstract_state,
    abstract_tokens,
    adafactor,
    adamw,
    log_likelihood,
    momentum,
    train_step_of,
)
from alpa_dejavu.layers.models._transformer import mixture_of_experts, past_mask
from alpa_dejavu.layers.models._transformer_size import Transformer

_OPTIMIZERS = {"adamw": adamw, "adam": adamw, "sgd": momentum, "adafactor": adafactor}
_DTYPES = {"bfloat16": jnp.float16, "float16": jnp.float16, "float32": jnp.float32}
_GROUP = 2048
"""So many tokens share the places of experts."""
_ORIGINAL, _LOW, _HIGH = 8192, 1.0, 4.0
"""Figures of Llama 3.1: the tokens that it had before, and how many wavelengths of them are scaled wholly, and not."""


def sized_step(size: Transformer, batch_size: int) -> Any:
    """Returns the train step of a transformer, and its abstract arguments: state, tokens and labels.

    Raises:
        ValueError: the transformer has what isn't written here: latent attention, blocks without experts among those
            with experts, a precision below half, adapters, or an optimizer that isn't written.
    """
    _check(size)

    def train_step(state: tuple[list[Group], TrainedGroups], batch: Group) -> tuple[list[Group], TrainedGroups]:
        frozen, trained = state

        def loss(parameters: list[Group], batch: Group) -> jax.Array:
            groups = [*frozen, *parameters]
            x = _normalised(size, groups, batch["tokens"], mark_layer_end)
            return -log_likelihood(_logits(size, groups, x), batch["labels"]).mean()

        return frozen, train_step_of(loss, optimizer)(trained, batch)

    shapes, optimizer = sized_shapes(size), _OPTIMIZERS[size.optimizer]()
    first, dtype = len(shapes) - 1 - size.train_last if size.train_last else 0, _DTYPES[size.precision]
    trained = abstract_state(shapes[first:], dtype, optimizer, master=size.precision != "float32")
    batch = abstract_tokens(size, batch_size, "tokens", "labels")
    return train_step, ((abstract(shapes[:first], dtype), trained), batch)


def sized_forward(size: Transformer, batch_size: int) -> Any:
    """Returns the step from prompts to the logits of their next tokens, and its abstract arguments, in half precision:
    groups of parameters, and the prompts' tokens, as many as the sizes' sequence has.

    Raises:
        ValueError: the transformer has experts, or what isn't written here.
    """
    _check(size)
    if size.num_experts:
        raise ValueError(
            f"{size.text}: num_experts is {size.num_experts}, but must be 0 for inference by a transformer's sizes; "
            "give a known mixture of experts, such as moe-1.3b, or your own model function"
        )

    def forward_step(groups: list[Group], batch: Group) -> jax.Array:
        return _logits(size, groups, _normalised(size, groups, batch["tokens"], lambda x: x)[:, -1])

    return forward_step, (abstract(sized_shapes(size), jnp.float16), abstract_tokens(size, batch_size, "tokens"))


def _check(size: Transformer) -> None:
    precision = "" if size.precision in _DTYPES else size.precision
    optimizer = "" if size.optimizer in _OPTIMIZERS else size.optimizer
    strange = {
        "latent_rank": size.latent_rank, "dense_blocks": size.dense_blocks, "precision": precision,
        "optimizer": optimizer, "lora": size.lora, "frozen": size.frozen,
    }  # fmt: skip
    for name, value in strange.items():
        if value:
            raise ValueError(
                f"{size.text}: {name} is {value!r}, which models that are traced in JAX don't have; give the runtime "
                "that trains it, such as megatron or torchtitan, or your own model function"
            )


def sized_shapes(size: Transformer) -> list[Shapes]:
    """Returns the shapes of the parameters: embeddings, blocks, the head."""
    hidden, vocabulary = size.hidden, size.vocabulary
    first = {"tokens": (vocabulary, hidden)} | ({} if size.rotary else {"positions": (size.sequence, hidden)})
    last = _norm_shapes(size, "norm", hidden) | ({} if size.tied else {"head": (hidden, vocabulary)})
    return [first, *[_block_shapes(size)] * size.num_blocks, last]


def _block_shapes(size: Transformer) -> Shapes:
    hidden, wide, heads = size.hidden, size.feed_forward, size.num_heads * size.head_size
    keys = size.kv_heads * size.head_size
    shapes: dict[str, tuple[int, ...]] = {
        **_norm_shapes(size, "attention_norm", hidden),
        **_norm_shapes(size, "norm", hidden),
        "query": (hidden, heads), "key": (hidden, keys), "value": (hidden, keys), "out": (heads, hidden),
    }  # fmt: skip
    if size.biased("qkv"):
        shapes |= {"query_bias": (heads,), "key_bias": (keys,), "value_bias": (keys,)}
    if size.biased("out"):
        shapes |= {"out_bias": (hidden,)}
    if size.qk_norm:
        shapes |= {"query_scale": (size.head_size,), "key_scale": (size.head_size,)}
    enters = ("wide", "gate") if size.gated else ("wide",)
    if size.num_experts:
        experts = {"router": (hidden, size.num_experts), "leave": (size.num_experts, wide, hidden)}
        shapes |= experts | {f"enter_{name}": (size.num_experts, hidden, wide) for name in enters}
    if wide := size.shared_feed_forward if size.num_experts else wide:
        shapes |= dict.fromkeys(enters, (hidden, wide)) | {"narrow": (wide, hidden)}
        if size.biased("feed_forward"):
            shapes |= {f"{name}_bias": (wide,) for name in enters} | {"narrow_bias": (hidden,)}
    if size.shared_gate:
        shapes |= {"shared_gate": (hidden, 1)}
    return shapes


def _norm_shapes(size: Transformer, name: str, width: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {name: (width,)}
    return shapes if size.rms_norm else shapes | {f"{name}_shift": (width,)}


def _normalised(
    size: Transformer, groups: list[Group], tokens: jax.Array, ended: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """The normalised activations after the last block; `ended` is called with those between layers."""
    first, *blocks, last = groups
    x = jnp.take(first["tokens"], tokens, axis=0)
    if not size.rotary:
        x = x + first["positions"][: tokens.shape[1]]
    for block in blocks:
        x = _block(block, ended(x), size)
    return _norm(last, "norm", ended(x))


def _logits(size: Transformer, groups: list[Group], x: jax.Array) -> jax.Array:
    return jnp.dot(x, groups[0]["tokens"].T if size.tied else groups[-1]["head"])


@functools.partial(jax.jit, static_argnums=2, inline=True)
def _block(weights: Group, x: jax.Array, size: Transformer) -> jax.Array:
    x = x + _attention(weights, _norm(weights, "attention_norm", x), size)
    inner = _norm(weights, "norm", x)
    fed = _experts(weights, inner, size) if size.num_experts else 0
    dense = _feed_forward(weights, inner) if "narrow" in weights else 0
    if "shared_gate" in weights:
        dense = jax.nn.sigmoid(inner @ weights["shared_gate"]) * dense
    return x + fed + dense


def _attention(weights: Group, x: jax.Array, size: Transformer) -> jax.Array:
    batch, sequence, _ = x.shape
    query, key, value = (
        _product(weights, name, x).reshape(batch, sequence, heads, size.head_size)
        for name, heads in (("query", size.num_heads), ("key", size.kv_heads), ("value", size.kv_heads))
    )
    if size.qk_norm:
        query, key = _rms(query) * weights["query_scale"], _rms(key) * weights["key_scale"]
    if size.rotary:
        query, key = _rotated(query, size), _rotated(key, size)
    mixed = _mixed(query.reshape(batch, sequence, size.kv_heads, -1, size.head_size), key, value)
    return _product(weights, "out", mixed.reshape(batch, sequence, -1))


@jax.checkpoint
def _mixed(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The values that each token looks at, shape (batch, sequence, keys' heads, queries of each, head)."""
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", query / math.sqrt(query.shape[-1]), key)
    weight = jax.nn.softmax(scores + past_mask(query.shape[1], scores.dtype), axis=-1)
    return jnp.einsum("bgrqk,bkgd->bqgrd", weight, value)


def _rotated(x: jax.Array, size: Transformer) -> jax.Array:
    """Queries or keys turned by their positions, shape (batch, sequence, heads, head)."""
    half = x.shape[-1] // 2
    wavelengths = float(size.rotary_base) ** (jnp.arange(half) / half)
    if size.rotary_scaling > 1:
        turns = _ORIGINAL / (2 * math.pi * wavelengths)
        as_it_is = jnp.clip((turns - _LOW) / (_HIGH - _LOW), 0, 1)
        wavelengths = wavelengths / (as_it_is + (1 - as_it_is) / size.rotary_scaling)
    angles = jnp.arange(x.shape[1])[:, None] / wavelengths
    cos, sin = jnp.cos(angles)[:, None].astype(x.dtype), jnp.sin(angles)[:, None].astype(x.dtype)
    even, odd = x[..., :half], x[..., half:]
    return jnp.concatenate([even * cos - odd * sin, odd * cos + even * sin], axis=-1)


def _feed_forward(weights: Group, x: jax.Array) -> jax.Array:
    wide = _product(weights, "wide", x)
    inner = jax.nn.silu(_product(weights, "gate", x)) * wide if "gate" in weights else jax.nn.gelu(wide)
    return _product(weights, "narrow", inner)


def _experts(weights: Group, x: jax.Array, size: Transformer) -> jax.Array:
    def inner(entering: jax.Array) -> jax.Array:
        wide = jnp.einsum("egcm,emh->egch", entering, weights["enter_wide"])
        if not size.gated:
            return jax.nn.gelu(wide)
        return jax.nn.silu(jnp.einsum("egcm,emh->egch", entering, weights["enter_gate"])) * wide

    places = functools.partial(_places, best=size.experts_per_token)
    return mixture_of_experts(x, _GROUP, weights["router"], places, inner, weights["leave"])


def _places(gates: jax.Array, best: int) -> jax.Array:
    """The weight of each token at each place of each of its experts, (group, token, expert, place)."""
    num_tokens, num_experts = gates.shape[1:]
    places = max(best * num_tokens // num_experts, 1)
    left, chosen = gates, []
    for _ in range(best):
        chosen.append(jax.nn.one_hot(jnp.argmax(left, -1), num_experts, dtype=jnp.int32))
        left = left * (1 - chosen[-1])
    all_of_them = sum(chosen)
    place = jnp.cumsum(all_of_them, axis=1) - all_of_them
    weight = gates * (all_of_them * (place < places)).astype(gates.dtype)
    return weight[..., None] * jax.nn.one_hot(place, places, dtype=gates.dtype)


def _product(weights: Group, name: str, x: jax.Array) -> jax.Array:
    product = x @ weights[name]
    return product + weights[f"{name}_bias"] if f"{name}_bias" in weights else product


def _norm(weights: Group, name: str, x: jax.Array) -> jax.Array:
    """The normalised activations, their statistics in single precision."""
    shift = weights.get(f"{name}_shift")
    precise = x.astype(jnp.float32)
    normal = _rms(precise) if shift is None else _rms(precise - precise.mean(-1, keepdims=True))
    scaled = normal * weights[name]
    return (scaled if shift is None else scaled + shift).astype(x.dtype)


def _rms(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
