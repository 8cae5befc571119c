"""The sizes in which models of a family differ."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

from alpa_dejavu.layers.models._size_text import TextSizes
from alpa_dejavu.problem.limits import MOST_LAYERS, at_most


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
class BERT(TextSizes):
    """The sizes of a BERT, an encoder of equal transformer blocks, trained to fill in words that are left out.

    `feed_forward` is the width of feed-forward layers, 0 for four times that of the hidden state; `sequence` is the
    number of tokens in a sample, and of learned positions; `kinds` is the number of kinds of segments.
    """

    hidden: int
    num_blocks: int
    num_heads: int
    vocabulary: int = 30522
    sequence: int = 512
    kinds: int = 2
    feed_forward: int = 0

    def __post_init__(self) -> None:
        self._fill_in()

    def _derived(self) -> dict[str, int]:
        return {"feed_forward": 4 * self.hidden}


@final
@dataclasses.dataclass(frozen=True)
class ViT(TextSizes):
    """The sizes of a ViT, an encoder of the patches of an image, trained to tell the image's class.

    `image` and `patch` are the height and width of images and patches in pixels; `feed_forward` is the width of
    feed-forward layers, 0 for four times that of the hidden state.
    """

    hidden: int
    num_blocks: int
    num_heads: int
    patch: int = 16
    image: int = 224
    classes: int = 1000
    feed_forward: int = 0
    rms_norm: ClassVar[bool] = False
    activation: ClassVar[str] = "gelu"

    def __post_init__(self) -> None:
        self._fill_in()
        self._divides("patch", "image")

    def _derived(self) -> dict[str, int]:
        return {"feed_forward": 4 * self.hidden}


@final
@dataclasses.dataclass(frozen=True)
class T5(TextSizes):
    """The sizes of a T5, an encoder and a decoder whose blocks all look at the encoder's result.

    `num_blocks` are those of the encoder, and `decoder_blocks` those of the decoder, 0 for as many. `sequence` is the
    number of tokens that the encoder reads of a sample, and `targets` of those that the decoder writes. `gated` and
    `tied` are as of T5 1.1 and Flan-T5: whether feed-forward layers have a gate, and logits are made by the table of
    embeddings. Blocks share a bias for each head and each of 32 distances of two tokens.
    """

    hidden: int
    num_blocks: int
    num_heads: int
    feed_forward: int
    head_size: int = 64
    vocabulary: int = 32128
    sequence: int = 512
    targets: int = 128
    decoder_blocks: int = 0
    gated: bool = False
    tied: bool = True
    rms_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._fill_in()
        blocks = self.num_blocks + self.decoder_blocks
        at_most("t5: its blocks", blocks, MOST_LAYERS - 3, "plan fewer: each is a layer")

    def _derived(self) -> dict[str, int]:
        return {"decoder_blocks": self.num_blocks}

    @property
    def activation(self) -> str:
        """Returns the function between the products of feed-forward layers, as `Transformer` has it."""
        return "gelu" if self.gated else "relu"


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
class Kraken:
    """The sizes of a Kraken: in each layer several ways side by side, which read each other's sum once.

    `hidden` is the width of one way; `num_heads` are the heads of all ways together; feed-forward layers are
    `expansion` times as wide as a way. One way is a standard transformer, with nothing to add up or join. `sequence` is
    the largest number of tokens in a sample; there are as many learned positions.

    Raises:
        ValueError: the heads can't be divided among the ways, or a way's width among its heads.
    """

    hidden: int
    num_blocks: int
    num_heads: int
    ways: int
    expansion: int = 2
    vocabulary: int = 50304
    sequence: int = 1024

    def __post_init__(self) -> None:
        if self.ways < 1:
            raise ValueError(f"ways is {self.ways}, but must be at least 1; one way is a standard transformer")
        if self.num_heads < 1 or self.num_heads % self.ways:
            raise ValueError(
                f"num_heads is {self.num_heads}, but must be divisible by the ways, {self.ways}; "
                f"take {_divisors(self.num_heads)} ways"
            )
        if self.hidden < 1 or self.hidden % self.heads_per_way:
            raise ValueError(
                f"hidden is {self.hidden}, but must be divisible by the heads of a way, {self.heads_per_way}; "
                f"take {max(round(self.hidden / self.heads_per_way), 1) * self.heads_per_way}"
            )

    @property
    def heads_per_way(self) -> int:
        """Returns the number of attention heads of one way."""
        return self.num_heads // self.ways


def _divisors(number: int) -> str:
    *most, last = (str(n) for n in range(1, max(number, 1) + 1) if max(number, 1) % n == 0)
    return f"{', '.join(most)} or {last}" if most else last


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
