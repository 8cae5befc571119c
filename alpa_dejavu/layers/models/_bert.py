"""BERT in half precision, with single-precision master copies: an encoder that fills in the words left out of a text.

Its blocks are those of Alpa's GPT, which normalise after the residual connection, but each token looks at all others.
The products' results that logits are made of are by the table of embeddings, as in the published model.

References:
    Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding, NAACL 2019.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from alpa_dejavu.layers.models._optimizers import (
    Group,
    Shapes,
    Trained,
    abstract_state,
    adamw,
    apply_gradients,
    updating,
)
from alpa_dejavu.layers.models._sizes import BERT
from alpa_dejavu.layers.models._transformer import block, block_shapes, norm

_DTYPE = jnp.float16


def bert_step(size: BERT, batch_size: int) -> Any:
    """Returns the train step of a BERT, and its abstract arguments: state, then tokens, their segments and labels."""
    optimizer = adamw()
    update = updating(optimizer)

    def train_step(state: Trained, batch: Group) -> Trained:
        def loss(parameters: list[Group]) -> jax.Array:
            log_p = jax.nn.log_softmax(_logits(size, parameters, batch).astype(jnp.float32), axis=-1)
            per_token = -(jax.nn.one_hot(batch["labels"], size.vocabulary) * log_p).sum(-1)
            left_out = jnp.where(batch["labels"] > 0, 1.0, 0.0)
            return (left_out * per_token).sum() / jnp.maximum(left_out.sum(), 1)

        return apply_gradients(state, jax.grad(loss)(state.parameters), update)

    state = abstract_state(bert_shapes(size), _DTYPE, optimizer, master=True)
    tokens = jax.ShapeDtypeStruct((batch_size, size.sequence), jnp.int32)
    return train_step, (state, {"tokens": tokens, "segments": tokens, "labels": tokens})


def bert_shapes(size: BERT) -> list[Shapes]:
    """Returns the shapes of the parameters: embeddings, blocks, the head."""
    hidden = size.hidden
    scales = {"scale": (hidden,), "shift": (hidden,)}
    first = {
        "tokens": (size.vocabulary, hidden), "positions": (size.sequence, hidden), "kinds": (size.kinds, hidden),
        **scales,
    }  # fmt: skip
    last = {"transform": (hidden, hidden), "transform_bias": (hidden,), **scales, "head_bias": (size.vocabulary,)}
    return [first, *[block_shapes(hidden, 4 * hidden)] * size.num_blocks, last]


def _logits(size: BERT, groups: list[Group], batch: Group) -> jax.Array:
    first, *blocks, last = groups
    x = first["tokens"][batch["tokens"]] + first["positions"] + first["kinds"][batch["segments"]]
    x = norm(x, first["scale"], first["shift"])
    for weights in blocks:
        x = block(weights, x, size.num_heads, 0, False)
    x = jax.nn.gelu(x @ last["transform"] + last["transform_bias"])
    return norm(x, last["scale"], last["shift"]) @ first["tokens"].T + last["head_bias"]
