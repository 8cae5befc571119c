"""The model: an embedding, blocks of a transformer, and a head of many words. Each layer has its own seed, so that it
begins alike in whichever stage and process it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn


class Sizes(NamedTuple):
    """Sizes of the model, and of a micro-batch."""

    blocks: int
    width: int
    heads: int
    words: int
    samples: int
    tokens: int

    @property
    def layers(self) -> int:
        """Blocks, embedding and head."""
        return self.blocks + 2

    @property
    def passed_bytes(self) -> int:
        """The bytes of what one layer hands to the next for a micro-batch."""
        return 4 * self.samples * self.tokens * self.width


class Block(nn.Module):
    """Attention and a feed-forward part, each with a norm before it and added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the block."""
        samples, tokens, width = x.shape
        qkv = self.qkv(self.norms[0](x)).reshape(samples, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))


def layer_of(sizes: Sizes, number: int) -> nn.Module:
    """The layer of a number, with weights that follow from it."""
    torch.manual_seed(number)
    if number == 0:
        return nn.Embedding(sizes.words, sizes.width)
    if number == sizes.layers - 1:
        return nn.Sequential(nn.LayerNorm(sizes.width), nn.Linear(sizes.width, sizes.words))
    return Block(sizes.width, sizes.heads)


def stage_of(sizes: Sizes, layers: Sequence[int]) -> nn.Sequential:
    """A stage of the given layers."""
    return nn.Sequential(*(layer_of(sizes, number) for number in layers))


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The cross entropy of the next words."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def data_of(sizes: Sizes, micro_batches: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Words and those that follow, of all samples of a step."""
    made = torch.Generator().manual_seed(seed)
    words = torch.randint(sizes.words, (micro_batches * sizes.samples, sizes.tokens + 1), generator=made)
    return words[:, :-1], words[:, 1:].contiguous()


def passed(sizes: Sizes) -> torch.Tensor:
    """The activations between two layers, of the right shape."""
    return torch.zeros(sizes.samples, sizes.tokens, sizes.width)


def gradients(modules: Sequence[nn.Module]) -> list[list[Any]]:
    """The gradients of each module's parameters, as arrays."""
    return [[p.grad.numpy().copy() for p in module.parameters() if p.grad is not None] for module in modules]


def gradients_on_one_device(sizes: Sizes, micro_batches: int) -> list[list[Any]]:
    """The gradients of the mean of the micro-batches' losses, layer by layer, by the whole model in one process."""
    model = stage_of(sizes, range(sizes.layers))
    words, targets = data_of(sizes, micro_batches)
    for x, y in zip(words.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
        (loss_of(model(x), y) / micro_batches).backward()
    return gradients(list(model))
