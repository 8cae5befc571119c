"""The sizes in which models of a family differ."""

from __future__ import annotations

import dataclasses
from typing import final


@final
@dataclasses.dataclass(frozen=True)
class GPT:
    """The sizes of a GPT, a decoder of equal transformer blocks.

    Feed-forward layers are four times as wide as the hidden state; `sequence` is the number of tokens in a sample.
    `gathers` says whether embeddings are gathered by index, in place of a product with one-hot vectors.
    """

    hidden: int
    num_blocks: int
    num_heads: int
    vocabulary: int = 51200
    sequence: int = 1024
    gathers: bool = False


@final
@dataclasses.dataclass(frozen=True)
class MoE:
    """The sizes of a GPT in which every other feed-forward layer is a mixture of experts.

    Feed-forward layers, and each expert, are eight times as wide as the hidden state. `group` is the number of tokens
    that share the places of the experts; `sequence` is the number of tokens in a sample.
    """

    hidden: int
    num_blocks: int
    num_experts: int
    num_heads: int = 16
    vocabulary: int = 32000
    sequence: int = 1024
    group: int = 2048


@final
@dataclasses.dataclass(frozen=True)
class WideResNet:
    """The sizes of a Wide-ResNet of bottleneck blocks, with inner convolutions `width` times as wide as a ResNet's.

    `channels` is the width of the first of its four groups of blocks, and each next one is twice as wide. `blocks` is
    the number of blocks in each group, and `image` the height and width of images in pixels. `half` says whether
    activations and products are in half precision, with statistics and parameters in single precision.
    """

    channels: int
    width: int
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    classes: int = 1024
    image: int = 224
    half: bool = False
