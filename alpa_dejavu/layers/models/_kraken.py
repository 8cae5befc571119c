"""Kraken: transformers of several narrow ways side by side, whose all-reduces needn't be waited for.

A model of one way is a standard transformer, normalised before attention and feed-forward layers as GPT-2 is.

References:
    Prabhakar, Zhang and Wentzlaff, Kraken: Inherently Parallel Transformers For Efficient Multi-Device Inference,
    NeurIPS 2024, section 3.
    Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu._util.extras import from_extra
from alpa_dejavu.layers.models._sizes import Kraken
from alpa_dejavu.layers.models._training import (
    HALF,
    Group,
    TrainedGroups,
    abstract_tokens,
    adamw,
    log_likelihood,
    train_step_of,
)
from alpa_dejavu.layers.models._transformer import mixed_values, past_mask

nn: Any = from_extra("flax", "flax.linen")

_SPREAD = 0.02
"""The standard deviation of initial weights, as in GPT-2."""


@final
class KrakenBlock(nn.Module):
    """A layer of one way, of so many heads: attention, which no other way is needed for, then a feed-forward layer,
    `expansion` times as wide, which reads all ways. `residual_spread` is the standard deviation of the initial weights
    whose products are added to the residual.
    """

    num_heads: int
    expansion: int
    residual_spread: float
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, total: jax.Array) -> jax.Array:
        """Returns this way's activations after the layer, given those before it, shape (batch, sequence, hidden), and
        the sum of all ways' activations before the layer, this one's included; `x` itself where a way reads no other.
        """
        mixed = self._attention(self._norm("attention_norm", x))
        # The paper adds the other ways' activations to x + mixed. With x in the total nothing needs to be subtracted.
        wide = nn.gelu(self._dense("wide", self.expansion * x.shape[-1], _SPREAD)(self._norm("norm", mixed + total)))
        return x + mixed + self._dense("narrow", x.shape[-1], self.residual_spread)(wide)

    def _attention(self, x: jax.Array) -> jax.Array:
        batch, sequence, hidden = x.shape
        qkv = self._dense("qkv", 3 * hidden, _SPREAD)(x)
        # Query, key and value change fastest, so that devices which cut this dimension have whole heads.
        qkv = qkv.reshape(batch, sequence, self.num_heads, hidden // self.num_heads, 3)
        query, key, value = qkv[..., 0], qkv[..., 1], qkv[..., 2]
        query = query / math.sqrt(hidden // self.num_heads)
        mixed = mixed_values(query, key, value, past_mask(sequence, x.dtype))
        return self._dense("out", hidden, self.residual_spread)(mixed.reshape(x.shape))

    def _norm(self, name: str, x: jax.Array) -> jax.Array:
        return _layer_norm(dtype=self.dtype, param_dtype=self.param_dtype, name=name)(x)

    def _dense(self, name: str, features: int, spread: float) -> nn.Dense:
        kernel = nn.initializers.normal(spread)
        return nn.Dense(features, dtype=self.dtype, param_dtype=self.param_dtype, kernel_init=kernel, name=name)


@final
class KrakenModule(nn.Module):
    """A language model of several ways side by side; of one way it is a standard transformer.

    The ways are the first axis of activations between layers, (ways, batch, sequence, hidden), and of parameters.
    Devices that divide this axis compute their own ways alone. Once a layer they add up activations of shape (batch,
    sequence, hidden), those that went into the layer: so they may do it while they compute attention.
    """

    size: Kraken
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        """Makes the layers, as flax asks for."""
        size, types = self.size, {"dtype": self.dtype, "param_dtype": self.param_dtype}
        normal = nn.initializers.normal(_SPREAD)
        # Not flax's own embedding: Alpa, once imported, has that multiply by one-hot vectors.
        self.tokens = self.param("tokens", normal, (size.vocabulary, size.hidden), self.param_dtype)
        self.positions = self.param("positions", normal, (size.sequence, size.hidden), self.param_dtype)
        spread = _SPREAD / math.sqrt(2 * size.num_blocks * size.ways)
        arguments = size.heads_per_way, size.expansion, spread
        kinds = [_in_ways(size.ways, None if n == 0 else 0) for n in range(size.num_blocks)]
        self.blocks = [kind(*arguments, **types) for kind in kinds]
        if size.ways > 1:
            self.joined = nn.DenseGeneral(size.hidden, axis=(-2, -1), kernel_init=normal, **types)
        self.norm = _layer_norm(**types)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns the logits of each token's next one, shape (batch, sequence, vocabulary)."""
        return self._logits(self._blocks_of(tokens))

    def next_token(self, tokens: jax.Array) -> jax.Array:
        """Returns the logits of the token after the last one, shape (batch, vocabulary), of a prompt's tokens."""
        return self._logits(self._blocks_of(tokens)[..., -1:, :]).squeeze(-2)

    def _logits(self, x: jax.Array) -> jax.Array:
        """The logits, of all ways joined and normalised, by the same table as tokens are looked up in."""
        joined = self.norm(x if self.size.ways == 1 else self.joined(jnp.moveaxis(x, 0, -2)))
        return jnp.dot(joined, self.tokens.astype(self.dtype).T)

    def _blocks_of(self, tokens: jax.Array) -> jax.Array:
        """The activations of the last layer; their first axis is that of the ways, unless there is only one."""
        table, positions = self.tokens.astype(self.dtype), self.positions[: tokens.shape[1]].astype(self.dtype)
        x = jnp.take(table, tokens, axis=0) + positions
        for n, block in enumerate(self.blocks):
            # The sum of all ways in their own element type is what devices send each other.
            alone = n == 0 or self.size.ways == 1
            total = x if alone else jax.lax.reduce(x, np.zeros((), x.dtype), jax.lax.add, (0,))
            if self.is_initializing():
                x = block(x, total)
            else:  # blocks that are alike are traced once
                x = _traced_once(block.clone(parent=None, name=None), block.variables, x, total)
        return x


def _layer_norm(**settings: Any) -> nn.LayerNorm:
    """The normalisation, with its variance as the mean square of what is centred.

    XLA's CPU compiler (jaxlib 0.4.30) computes a wrong one from the mean of squares where there are several ways.
    """
    return nn.LayerNorm(1e-5, use_fast_variance=False, **settings)


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _traced_once(block: nn.Module, variables: Any, x: jax.Array, total: jax.Array) -> Any:
    return block.apply(variables, x, total)


@functools.cache
def _in_ways(ways: int, axis: int | None) -> Any:
    """The block of all ways at once, its arrays with the ways first; without an axis all ways have the same input."""
    if ways == 1:
        return KrakenBlock
    ways_first = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "axis_size": ways}
    return nn.vmap(KrakenBlock, in_axes=(axis, None), **ways_first)


def kraken_step(size: Kraken, batch_size: int) -> Any:
    """Returns the train step of a Kraken in half precision, and its abstract arguments: state, tokens and labels."""
    module, optimizer, shapes = KrakenModule(size, HALF, HALF), adamw(_decays), kraken_shapes(size)

    def loss(parameters: list[Group], batch: Group) -> jax.Array:
        logits = module.apply({"params": dict(zip(shapes, parameters, strict=True))}, batch["tokens"])
        return -log_likelihood(logits, batch["labels"]).mean()

    parameters = list(shapes.values())
    precise = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), parameters)
    state = TrainedGroups(parameters, precise, [jax.eval_shape(optimizer.init, group) for group in precise])
    return train_step_of(loss, optimizer), (state, abstract_tokens(size, batch_size, "tokens", "labels"))


def kraken_forward(size: Kraken, batch_size: int) -> Any:
    """Returns the step in half precision from prompts to the logits of their next tokens, and its abstract arguments:
    parameters, as `KrakenModule` has them, and the prompts' tokens, of the sequence's length.
    """
    module = KrakenModule(size, HALF, HALF)

    def forward_step(parameters: Group, batch: Group) -> Any:
        return module.apply({"params": parameters}, batch["tokens"], method="next_token")

    return forward_step, (kraken_shapes(size), abstract_tokens(size, batch_size, "tokens"))


def kraken_shapes(size: Kraken) -> Group:
    """Returns the parameters by name in half precision, as shapes: layers after the second are like it."""
    shorter = dataclasses.replace(size, num_blocks=min(size.num_blocks, 2))
    key, tokens = jax.eval_shape(lambda: jax.random.PRNGKey(0)), abstract_tokens(size, 1, "tokens")["tokens"]
    tree = jax.eval_shape(KrakenModule(shorter, HALF, HALF).init, key, tokens)["params"]
    return tree | {f"blocks_{n}": tree[f"blocks_{min(n, 1)}"] for n in range(size.num_blocks)}


def _decays(path: Any, leaf: Any) -> bool:
    """Whether a parameter is a matrix, be it one of each way."""
    return not path or path[-1].key not in ("bias", "scale")
