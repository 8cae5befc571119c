"""A small byte-level GPT in flax: nothing in it knows of Alpa."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from demo.text import VOCABULARY

__all__ = ["GPT", "GPTConfig"]


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """Sizes of the model; `length` is how many bytes it sees."""

    blocks: int = 4
    hidden: int = 128
    heads: int = 4
    length: int = 64


class Attention(nn.Module):
    """Causal self-attention."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """From (batch, length, hidden) to the same."""
        batch, length, hidden = x.shape
        size = hidden // self.config.heads
        parts = [nn.Dense(hidden, use_bias=False, name=name)(x) for name in ("query", "key", "value")]
        query, key, value = (part.reshape(batch, length, self.config.heads, size) for part in parts)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * size**-0.5
        causal = jnp.tril(jnp.ones((length, length), dtype=bool))
        weights = nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return nn.Dense(hidden, use_bias=False, name="output")(mixed.reshape(batch, length, hidden))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each beside a residual connection."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """From (batch, length, hidden) to the same."""
        hidden = self.config.hidden
        x = x + Attention(self.config)(nn.LayerNorm(use_bias=False)(x))
        widened = nn.gelu(nn.Dense(4 * hidden, use_bias=False)(nn.LayerNorm(use_bias=False)(x)))
        return x + nn.Dense(hidden, use_bias=False)(widened)


class GPT(nn.Module):
    """Bytes in, logits of the next byte out."""

    config: GPTConfig

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """From int (batch, length) to float32 (batch, length, 256)."""
        config = self.config
        positions = self.param("positions", nn.initializers.normal(0.02), (config.length, config.hidden))
        x = nn.Embed(VOCABULARY, config.hidden, embedding_init=nn.initializers.normal(0.02))(inputs) + positions
        for _ in range(config.blocks):
            x = Block(config)(x)
        return nn.Dense(VOCABULARY, use_bias=False)(nn.LayerNorm(use_bias=False)(x))
