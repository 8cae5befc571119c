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
from alpa_dejavu.layers.models._sizes import T5, ViT
from alpa_dejavu.layers.models._suites import model_title
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
_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu, "gelu": jax.nn.gelu, "relu": jax.nn.relu, "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}  # fmt: skip
_NORMS = {"ahead": "norm", "behind": "norm_behind"}
"""How the names of norms end by where they are."""
_GROUP = 2048
"""So many tokens share the places of experts."""
_ORIGINAL, _LOW, _HIGH = 8192, 1.0, 4.0
"""Figures of Llama 3.1: the tokens that it had before, and how many wavelengths of them are scaled wholly, and not."""


def sized_step(size: Transformer, batch_size: int) -> Any:
    """Returns the train step of a transformer, and its abstract arguments: state, tokens and labels.

    Raises:
        ValueError: the transformer has what isn't written here, as `Transformer.untraced` says.
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
    for name, value in size.untraced.items():
        raise ValueError(
            f"{model_title(size.text)}: {name} is {value!r}, but must be left out where JAX traces the model; give a "
            "runtime that trains it so, such as --runtime megatron or torchtitan, or your own model function"
        )


def sized_shapes(size: Transformer) -> list[Shapes]:
    """Returns the shapes of the parameters: embeddings, blocks, the head."""
    hidden, vocabulary = size.hidden, size.vocabulary
    first = {"tokens": (vocabulary, hidden)} | ({"positions": (rows, hidden)} if (rows := size.position_rows) else {})
    last = _norm_shapes(size, "norm", hidden) | ({} if size.tied else {"head": (hidden, vocabulary)})
    return [first, *(_block_shapes(size, number) for number in range(size.num_blocks)), last]


def _block_shapes(size: Transformer, number: int) -> Shapes:
    hidden, wide, heads = size.hidden, size.feed_forward, size.num_heads * size.head_size
    keys = size.kv_heads * size.head_size
    norms = [f"{half}{end}" for where, end in _NORMS.items() if size.normed(where) for half in ("attention_", "")]
    shapes: dict[str, tuple[int, ...]] = {
        **{name: shape for norm in norms for name, shape in _norm_shapes(size, norm, hidden).items()},
        "query": (hidden, heads), "key": (hidden, keys), "value": (hidden, keys), "out": (heads, hidden),
    }  # fmt: skip
    if size.biased("qkv"):
        shapes |= {"query_bias": (heads,), "key_bias": (keys,), "value_bias": (keys,)}
    if size.biased("out"):
        shapes |= {"out_bias": (hidden,)}
    if size.qk_norm:
        widths = (heads, keys) if size.wide_qk_norm else (size.head_size, size.head_size)
        shapes |= {"query_scale": widths[:1], "key_scale": widths[1:]}
    if size.sinks:
        shapes |= {"sinks": (size.num_heads,)}
    enters = ("wide", "gate") if size.gated else ("wide",)
    if size.has_experts(number):
        experts = {"router": (hidden, size.num_experts), "leave": (size.num_experts, wide, hidden)}
        shapes |= experts | {f"enter_{name}": (size.num_experts, hidden, wide) for name in enters}
    if wide := size.dense_width(number):
        shapes |= dict.fromkeys(enters, (hidden, wide)) | {"narrow": (wide, hidden)}
        if size.biased("feed_forward"):
            shapes |= {f"{name}_bias": (wide,) for name in enters} | {"narrow_bias": (hidden,)}
    if size.shared_gate and size.has_experts(number):
        shapes |= {"shared_gate": (hidden, 1)}
    return shapes


def _norm_shapes(size: Transformer, name: str, width: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {name: (width,)}
    return shapes | {f"{name}_shift": (width,)} if size.norm_bias and not size.rms_norm else shapes


def _normalised(
    size: Transformer, groups: list[Group], tokens: jax.Array, ended: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """The normalised activations after the last block; `ended` is called with those between layers."""
    first, *blocks, last = groups
    x = jnp.take(first["tokens"], tokens, axis=0)
    if "positions" in first:
        x = x + first["positions"][: tokens.shape[1]]
    for number, block in enumerate(blocks):
        x = _block(block, ended(x), size, size.window_of(number))
    return _norm(last, "norm", ended(x), size)


def _logits(size: Transformer, groups: list[Group], x: jax.Array) -> jax.Array:
    return _capped(jnp.dot(x, groups[0]["tokens"].T if size.tied else groups[-1]["head"]), size.logit_cap)


def _capped(x: jax.Array, most: float) -> jax.Array:
    return most * jnp.tanh(x / most) if most else x


@functools.partial(jax.jit, static_argnums=(2, 3), inline=True)
def _block(weights: Group, x: jax.Array, size: Transformer, window: int) -> jax.Array:
    mixed = _attention(weights, _norm(weights, "attention_norm", x, size), size, window)
    x = x + _norm(weights, "attention_norm_behind", mixed, size)
    inner = _norm(weights, "norm", x, size)
    fed = _experts(weights, inner, size) if "router" in weights else 0
    dense = _feed_forward(weights, inner, size) if "narrow" in weights else 0
    if "shared_gate" in weights:
        dense = jax.nn.sigmoid(inner @ weights["shared_gate"]) * dense
    return x + _norm(weights, "norm_behind", fed + dense, size)


def _attention(weights: Group, x: jax.Array, size: Transformer, window: int) -> jax.Array:
    batch, sequence, _ = x.shape
    products = {name: _product(weights, name, x) for name in ("query", "key", "value")}
    if size.wide_qk_norm:
        products |= {name: _rms(products[name]) * weights[f"{name}_scale"] for name in ("query", "key")}
    query, key, value = (
        products[name].reshape(batch, sequence, heads, size.head_size)
        for name, heads in (("query", size.num_heads), ("key", size.kv_heads), ("value", size.kv_heads))
    )
    if size.qk_norm and not size.wide_qk_norm:
        query, key = _rms(query) * weights["query_scale"], _rms(key) * weights["key_scale"]
    if size.rotary:
        query, key = _rotated(query, size), _rotated(key, size)
    query = query.reshape(batch, sequence, size.kv_heads, -1, size.head_size)
    mixed = _mixed(query, key, value, weights.get("sinks"), size, window)
    return _product(weights, "out", mixed.reshape(batch, sequence, -1))


@functools.partial(jax.checkpoint, static_argnums=(4, 5))
def _mixed(
    query: jax.Array, key: jax.Array, value: jax.Array, sinks: jax.Array | None, size: Transformer, window: int
) -> jax.Array:
    """The values that each token looks at, shape (batch, sequence, keys' heads, queries of each, head)."""
    tokens = query.shape[1]
    scores = _capped(jnp.einsum("bqgrd,bkgd->bgrqk", query / math.sqrt(query.shape[-1]), key), size.attention_cap)
    mask = past_mask(tokens, scores.dtype)
    if window < tokens:
        mask = jnp.where(jnp.tri(tokens, k=-window, dtype=bool), jnp.finfo(scores.dtype).min, mask)
    if size.alibi:
        mask = mask + _slopes(size).astype(scores.dtype)[:, :, None, None] * jnp.arange(tokens, dtype=scores.dtype)
    scores = scores + mask
    if sinks is not None:
        sinks = jnp.broadcast_to(sinks.reshape(size.kv_heads, -1, 1, 1), (*scores.shape[:-1], 1))
        scores = jnp.concatenate([scores, sinks], axis=-1)
    weight = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bgrqk,bkgd->bqgrd", weight[..., :tokens], value)


def _slopes(size: Transformer) -> jax.Array:
    """How much more a head looks at a token for each step that it is nearer, shape (keys' heads, queries of each)."""
    return (2.0 ** (-8 * jnp.arange(1, size.num_heads + 1) / size.num_heads)).reshape(size.kv_heads, -1)


def _rotated(x: jax.Array, size: Transformer) -> jax.Array:
    """Queries or keys turned by their positions, shape (batch, sequence, heads, head)."""
    if 0 < size.rotated < x.shape[-1]:
        return jnp.concatenate([_rotated(x[..., : size.rotated], size), x[..., size.rotated :]], axis=-1)
    half = x.shape[-1] // 2
    wavelengths = float(size.rotary_base) ** (jnp.arange(half) / half)
    if size.rotary_scaling_kind == "linear":
        wavelengths = wavelengths * size.rotary_scaling
    elif size.rotary_scaling > 1:
        turns = _ORIGINAL / (2 * math.pi * wavelengths)
        as_it_is = jnp.clip((turns - _LOW) / (_HIGH - _LOW), 0, 1)
        wavelengths = wavelengths / (as_it_is + (1 - as_it_is) / size.rotary_scaling)
    angles = jnp.arange(x.shape[1])[:, None] / wavelengths
    cos, sin = jnp.cos(angles)[:, None].astype(x.dtype), jnp.sin(angles)[:, None].astype(x.dtype)
    even, odd = x[..., :half], x[..., half:]
    return jnp.concatenate([even * cos - odd * sin, odd * cos + even * sin], axis=-1)


def _feed_forward(weights: Group, x: jax.Array, size: Transformer | T5 | ViT) -> jax.Array:
    wide, activation = _product(weights, "wide", x), _ACTIVATIONS[size.activation]
    inner = activation(_product(weights, "gate", x)) * wide if "gate" in weights else activation(wide)
    return _product(weights, "narrow", inner)


def _experts(weights: Group, x: jax.Array, size: Transformer) -> jax.Array:
    def inner(entering: jax.Array) -> jax.Array:
        wide, activation = jnp.einsum("egcm,emh->egch", entering, weights["enter_wide"]), _ACTIVATIONS[size.activation]
        if not size.gated:
            return activation(wide)
        return activation(jnp.einsum("egcm,emh->egch", entering, weights["enter_gate"])) * wide

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


def _norm(weights: Group, name: str, x: jax.Array, size: Transformer | T5 | ViT) -> jax.Array:
    """The normalised activations, their statistics in single precision; as they are where there is no such norm."""
    if name not in weights:
        return x
    shift = weights.get(f"{name}_shift")
    precise = x.astype(jnp.float32)
    normal = _rms(precise) if size.rms_norm else _rms(precise - precise.mean(-1, keepdims=True))
    scaled = normal * weights[name]
    return (scaled if shift is None else scaled + shift).astype(x.dtype)


def _rms(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
