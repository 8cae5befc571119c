"""The sizes in which models of a family differ."""

from __future__ import annotations

import dataclasses
from typing import final


@final
@dataclasses.dataclass(frozen=True)
class GPT:
    """The sizes of a GPT: a decoder of equal blocks; feed-forward layers are four times as wide as the hidden state."""

    hidden: int
    num_blocks: int
    num_heads: int
    vocabulary: int = 51200
    sequence: int = 1024


@final
@dataclasses.dataclass(frozen=True)
class MoE:
    """The sizes of a GPT in which every other feed-forward layer is a mixture of experts, eight times as wide."""

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
    """The sizes of a Wide-ResNet: bottleneck blocks in four stages, inner convolutions `width` times as wide."""

    channels: int
    width: int
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    classes: int = 1024
    image: int = 224
