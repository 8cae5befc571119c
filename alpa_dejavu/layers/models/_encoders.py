"""T5, an encoder and a decoder, and ViT, an encoder of images: in half precision with single-precision master copies.

Blocks normalise ahead of attention and of feed-forward layers. A block is a jitted function, so blocks that are alike
are traced once. As in T5X each block computes the biases of its scores, from a table that all blocks share.

References:
    Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, JMLR 2020.
    Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from alpa_dejavu.layers.marks import mark_layer_end
from alpa_dejavu.layers.models._sized import _feed_forward, _norm, _product
from alpa_dejavu.layers.models._sizes import T5, ViT
from alpa_dejavu.layers.models._training import Group, Shapes, abstract_tokens, log_likelihood, step_in_half
from alpa_dejavu.layers.models._transformer import mixed_values, past_mask

_BUCKETS, _FARTHEST = 32, 128
"""Distances of tokens that T5 tells apart, and the one from which on all are alike."""


def vit_step(size: ViT, batch_size: int) -> Any:
    """Returns the train step of a ViT, and its abstract arguments: state, then images and labels."""

    def loss(groups: list[Group], batch: Group) -> jax.Array:
        return -log_likelihood(vit_logits(size, groups, batch["images"]), batch["labels"]).mean()

    images = jax.ShapeDtypeStruct((batch_size, size.image, size.image, 3), jnp.float32)
    batch = {"images": images, "labels": jax.ShapeDtypeStruct((batch_size,), jnp.int32)}
    return step_in_half(loss, vit_shapes(size), batch)


def vit_logits(size: ViT, groups: list[Group], images: jax.Array) -> jax.Array:
    """Returns the logits of the classes of images, shape (batch, classes)."""
    first, *blocks, last = groups
    patches, order = first["patches"], ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(
        images.astype(patches.dtype), patches, (size.patch, size.patch), "VALID", dimension_numbers=order
    )
    x = (x + first["patches_bias"]).reshape(x.shape[0], -1, size.hidden)
    whole = jnp.broadcast_to(first["whole"], (x.shape[0], 1, size.hidden))
    x = jnp.concatenate([whole, x], axis=1) + first["positions"]
    for weights in blocks:
        x = _block(size, weights, x)
    return _product(last, "head", _norm(last, "norm", x[:, 0], size))


def vit_shapes(size: ViT) -> list[Shapes]:
    """Returns the shapes of the parameters: patches and positions, blocks, the head."""
    hidden, patch, num_patches = size.hidden, size.patch, (size.image // size.patch) ** 2
    first = {"patches": (patch, patch, 3, hidden), "patches_bias": (hidden,), "whole": (hidden,)}
    first["positions"] = (num_patches + 1, hidden)
    block = _block_shapes(hidden, hidden, size.feed_forward, "own")
    return [first, *[_biased(block)] * size.num_blocks, _biased({"norm": (hidden,), "head": (hidden, size.classes)})]


def t5_step(size: T5, batch_size: int) -> Any:
    """Returns the train step of a T5, and its abstract arguments: state, then the tokens that the encoder reads, those
    that the decoder does, and labels.
    """

    def loss(groups: list[Group], batch: Group) -> jax.Array:
        return -log_likelihood(t5_logits(size, groups, batch), batch["labels"]).mean()

    target = jax.ShapeDtypeStruct((batch_size, size.targets), jnp.int32)
    batch = abstract_tokens(size, batch_size, "tokens") | {"targets": target, "labels": target}
    return step_in_half(loss, t5_shapes(size), batch)


def t5_logits(size: T5, groups: list[Group], batch: Group) -> jax.Array:
    """Returns the logits of each of the decoder's next tokens, shape (batch, targets, vocabulary)."""
    first, last = groups[0], groups[-1]
    encoder, (between, *decoder) = groups[1 : size.num_blocks + 1], groups[size.num_blocks + 1 : -1]
    x = first["tokens"][batch["tokens"]]
    for weights in encoder:
        x = _block(size, weights, mark_layer_end(x), first["distances"])
    encoded = _norm(between, "norm", mark_layer_end(x), size)
    x = first["tokens"][batch["targets"]]
    for weights in decoder:
        x = _block(size, weights, mark_layer_end(x), between["distances"], encoded)
    x = _norm(last, "norm", mark_layer_end(x), size)
    return (x * size.hidden**-0.5) @ first["tokens"].T if size.tied else x @ last["head"]


def t5_shapes(size: T5) -> list[Shapes]:
    """Returns the shapes of the parameters: embeddings, the encoder's blocks, its norm, the decoder's blocks, the head.
    Those of the biases of scores stand ahead of the blocks that use them.
    """
    hidden, table = size.hidden, (_BUCKETS, size.num_heads)
    sizes = hidden, size.num_heads * size.head_size, size.feed_forward
    gate = {"gate": (hidden, size.feed_forward)} if size.gated else {}
    encoder, decoder = _block_shapes(*sizes, "own") | gate, _block_shapes(*sizes, "own", "cross") | gate
    first, between = {"tokens": (size.vocabulary, hidden), "distances": table}, {"norm": (hidden,), "distances": table}
    last = {"norm": (hidden,)} | ({} if size.tied else {"head": (hidden, size.vocabulary)})
    return [first, *[encoder] * size.num_blocks, between, *[decoder] * size.decoder_blocks, last]


def _block_shapes(hidden: int, inner: int, wide: int, *attentions: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a block without biases, which has some kinds of attention."""
    shapes: dict[str, tuple[int, ...]] = {"norm": (hidden,), "wide": (hidden, wide), "narrow": (wide, hidden)}
    for kind in attentions:
        shapes |= {f"{kind}_norm": (hidden,), f"{kind}_out": (inner, hidden)}
        shapes |= {f"{kind}_{side}": (hidden, inner) for side in ("query", "key", "value")}
    return shapes


def _biased(shapes: Shapes) -> Shapes:
    """The shapes of matrices and norms, and of a bias of each matrix and a shift of each norm."""
    added = {f"{name}_{'bias' if shape[1:] else 'shift'}": shape[-1:] for name, shape in shapes.items()}
    return {**shapes, **added}


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _block(
    size: T5 | ViT, weights: Group, x: jax.Array, distances: jax.Array | None = None, encoded: jax.Array | None = None
) -> jax.Array:
    """A block of an encoder or, where it looks at the encoder's result, of a decoder."""
    causal = encoded is not None
    bias = None if distances is None else _distance_bias(distances, x.shape[1], causal)
    x = x + _attention(size, weights, "own", _norm(weights, "own_norm", x, size), None, bias)
    if causal:
        x = x + _attention(size, weights, "cross", _norm(weights, "cross_norm", x, size), encoded, None)
    return x + _feed_forward(weights, _norm(weights, "norm", x, size), size)


def _attention(
    size: T5 | ViT, weights: Group, kind: str, x: jax.Array, others: jax.Array | None, bias: jax.Array | None
) -> jax.Array:
    """Returns what tokens get of those that they look at, which are their own sequence's if there are no others."""
    sources = {"query": x, "key": x if others is None else others, "value": x if others is None else others}
    query, key, value = (
        _product(weights, f"{kind}_{side}", y).reshape(*y.shape[:2], size.num_heads, -1) for side, y in sources.items()
    )
    if isinstance(size, ViT):  # T5 doesn't scale
        query = query / math.sqrt(query.shape[-1])
    return _product(weights, f"{kind}_out", mixed_values(query, key, value, bias).reshape(*x.shape[:2], -1))


def _distance_bias(table: jax.Array, tokens: int, causal: bool) -> jax.Array:
    """Returns what is added to scores by two tokens' distance, shape (heads, tokens, tokens), where later ones can't be
    looked at if it is causal. Small distances are told apart each, and larger ones by their logarithm.
    """
    places = jnp.arange(tokens)
    ahead = places[None, :] - places[:, None]
    buckets = _BUCKETS if causal else _BUCKETS // 2
    distance, exact = jnp.maximum(-ahead, 0) if causal else jnp.abs(ahead), buckets // 2
    scaled = jnp.log(jnp.maximum(distance, 1) / exact) / math.log(_FARTHEST / exact) * (buckets - exact)
    rows = jnp.where(distance < exact, distance, jnp.minimum(exact + scaled.astype(jnp.int32), buckets - 1))
    bias = jnp.moveaxis(table[rows if causal else rows + buckets * (ahead > 0)], -1, 0)
    return bias + past_mask(tokens, table.dtype) if causal else bias
