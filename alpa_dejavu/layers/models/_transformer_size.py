"""The sizes of a decoder-only transformer, which a text may stand for in place of a model's name."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from typing import Any, final

from alpa_dejavu.layers.models._size_checks import check_transformer
from alpa_dejavu.layers.models._size_text import TextSizes
from alpa_dejavu.layers.models._training_choices import (
    FROZEN_BYTES,
    LORA_TARGETS,
    OPTIMIZERS,
    PRECISIONS,
    SHORT_PRECISIONS,
    Optimizer,
    Precision,
)
from alpa_dejavu.problem import checks
from alpa_dejavu.problem.limits import MOST_PARAMETERS, at_most

__all__ = ["BIASES", "Transformer"]

BIASES = {
    "none": (), "qkv": ("qkv",), "attention": ("qkv", "out"), "feed_forward": ("feed_forward",),
    "all": ("qkv", "out", "feed_forward"),
}  # fmt: skip
"""Which products of a block have a bias, by a name: those ahead of attention, the one behind it, the feed-forward's."""
NORMS = {"pre": ("ahead",), "post": ("behind",), "sandwich": ("ahead", "behind")}
"""Where attention and feed-forward layers have a norm, by a name: ahead of them, or of the sum behind them."""
ACTIVATIONS = ("silu", "gelu", "relu", "relu2")
"""The functions between the products of a feed-forward layer; "relu2" is the square of "relu"."""
ROTARY_SCALINGS = ("llama3", "linear", "yarn", "longrope", "dynamic")
"""The ways in which wavelengths are made longer; only what they are called tells them apart for planning."""


@final
@dataclasses.dataclass(frozen=True)
class Transformer(TextSizes):
    """The sizes of a decoder-only transformer of blocks alike, but for those without experts or with a window.

    Attributes:
        hidden, num_blocks, num_heads, vocabulary: its width, its blocks, a block's heads, and its tokens.
        sequence: the tokens of a sample.
        kv_heads: the heads that keys and values have; 0: as many as queries.
        head_size: the width of a head; 0: the hidden width divided by the heads.
        feed_forward: the width of the feed-forward layer, or of each expert; 0: four times the hidden width.
        gated: whether the feed-forward layer has a gate (SwiGLU), else it is two products with a GELU between.
        rotary: whether positions rotate queries and keys, else a learned table is added to embeddings.
        rms_norm: whether norms are root mean squares, else they centre, too.
        biases: which products of a block have a bias, by one of the names in `BIASES`.
        qk_norm: whether queries and keys are normalised, head by head.
        wide_qk_norm: whether they are normalised over all heads at once instead (OLMo 2); goes with `qk_norm`.
        tied: whether logits are made by the table of embeddings.
        num_experts, experts_per_token: the experts of each block, and how many of them a token goes to; 0: none.
        imbalance: the tokens of the busiest device over the mean, where experts are divided among devices.
        capacity: the tokens that each expert takes over the mean: fewer are padded to as many, and further ones
            dropped; 0: each takes all that come.
        shared_feed_forward: the width of the expert that all tokens go to besides; 0: there is none.
        train_last: how many of the last blocks are trained, with the norm and the head behind them; 0: the whole model.
        lora: the rank of adapters that are trained in these blocks in place of what the model has; 0: there are none.
        lora_targets: the products that have adapters: those of "attention", or "all" products but the routers'.
        frozen: the width in which products that aren't trained are kept: "8bit", "4bit" or "bf16"; empty: as computed.
        optimizer: which one updates what is trained, one of `OPTIMIZERS`.
        dense_blocks, dense_feed_forward: how many of the first blocks have no experts, and the width of their
            feed-forward layers.
        latent_rank: the width of the one latent vector that a token's keys and values are made of (multi-head latent
            attention, as DeepSeek's); 0: each has products of its own. `kv_heads` is then the number of heads.
        query_rank: with latent attention the width that queries are made of; 0: they are made of the hidden state.
        rotary_size, value_size: with latent attention the further width of a head of queries and keys that positions
            rotate, and the width of a head of values; 0: as `head_size`.
        precision: the precision that it computes in, one of `PRECISIONS`.
        gather: "fp8" where weights of products in 8 bits are gathered in 8 bits, and not kept in 16; else empty.
        rotary_base: the base of the wavelengths by which positions rotate.
        rotary_scaling: the factor by which long wavelengths are longer still, as in Llama 3.1; 1: they aren't.
        shared_gate: whether a gate, by one product to a number, scales the result of the shared expert.
        window, global_every: how many tokens a token attends to, itself and those right before it; 0: all of them.
            With `global_every` every so-manieth block attends to all of them nevertheless; 0: none does.
        norms: where norms are, by one of the names in `NORMS`.
        norm_bias: whether norms that centre add a bias.
        activation: the function between the products of feed-forward layers, one of `ACTIVATIONS`; empty: "silu" with
            a gate, else "gelu".
        attention_cap, logit_cap: the values that scores of attention, and logits, are softly kept below; 0: they
            aren't.
        experts_every: every so-manieth block has experts, and those between are as the dense ones.
        router_bias, expert_biases: whether a bias is added to the scores of experts, and to the products of each.
        sinks: whether each head has a learned score that takes a part of its attention (gpt-oss).
        rotated: how many elements of a head positions rotate; 0: all.
        rotary_scaling_kind: how wavelengths are made longer, one of `ROTARY_SCALINGS`.
        alibi: whether positions are biases of scores (ALiBi), without a table.
        positions: the rows of a learned table of positions; 0: as many as the sequence has tokens.
        predicted: how many further tokens are predicted, each by a block of its own behind the last one, with norms
            and a product from twice the hidden width (DeepSeek-V3). They are in the head's layer and share its table.

    Raises ValueError for sizes below 1 or beyond the limits of planning, and numbers that must divide others and don't.

    >>> Transformer(768, 12, 12, 50257, 1024, gated=False).text
    'transformer:hidden=768,blocks=12,heads=12,vocabulary=50257,sequence=1024,gated=no'
    """

    hidden: int
    num_blocks: int
    num_heads: int
    vocabulary: int
    sequence: int
    kv_heads: int = 0
    head_size: int = 0
    feed_forward: int = 0
    gated: bool = True
    rotary: bool = True
    rms_norm: bool = True
    biases: str = "none"
    qk_norm: bool = False
    tied: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    imbalance: float = 1.0
    capacity: float = 0.0
    shared_feed_forward: int = 0
    train_last: int = 0
    dense_blocks: int = 0
    dense_feed_forward: int = 0
    query_rank: int = 0
    latent_rank: int = 0
    rotary_size: int = 0
    value_size: int = 0
    precision: str = "bfloat16"
    rotary_base: int = 10000
    rotary_scaling: float = 1.0
    shared_gate: bool = False
    wide_qk_norm: bool = False
    window: int = 0
    global_every: int = 0
    norms: str = "pre"
    norm_bias: bool = True
    activation: str = ""
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    experts_every: int = 1
    router_bias: bool = False
    expert_biases: bool = False
    sinks: bool = False
    rotated: int = 0
    rotary_scaling_kind: str = "llama3"
    alibi: bool = False
    positions: int = 0
    predicted: int = 0
    optimizer: str = "adamw"
    lora: int = 0
    lora_targets: str = "attention"
    frozen: str = ""
    gather: str = ""

    def __post_init__(self) -> None:
        checks.one_of("transformer", "biases", self.biases, tuple(BIASES))
        checks.one_of("transformer", "precision", self.precision, (*PRECISIONS, *SHORT_PRECISIONS))
        object.__setattr__(self, "precision", SHORT_PRECISIONS.get(self.precision, self.precision))
        checks.one_of("transformer", "optimizer", self.optimizer, tuple(OPTIMIZERS))
        checks.one_of("transformer", "lora_targets", self.lora_targets, LORA_TARGETS)
        checks.one_of("transformer", "frozen", self.frozen, ("", *FROZEN_BYTES))
        checks.one_of("transformer", "gather", self.gather, ("", "fp8"))
        checks.one_of("transformer", "norms", self.norms, tuple(NORMS))
        checks.one_of("transformer", "rotary_scaling_kind", self.rotary_scaling_kind, ROTARY_SCALINGS)
        self._fill_in()
        checks.one_of("transformer", "activation", self.activation, ACTIVATIONS)
        self._divides("kv_heads", "num_heads")
        check_transformer(self)
        if self.frozen == "bf16" and self.computes_in.usual != "float32":
            object.__setattr__(self, "frozen", "")  # which is the same
        at_most("transformer: its number of parameters", self.num_parameters, MOST_PARAMETERS, "mend the sizes")

    def _derived(self) -> dict[str, Any]:
        """The sizes that follow from others where they aren't given."""
        heads, head_size = self.num_heads, self.head_size or self.hidden // self.num_heads
        return {
            "kv_heads": heads, "head_size": self.hidden // heads, "feed_forward": 4 * self.hidden,
            "value_size": head_size, "activation": "silu" if self.gated else "gelu",
        }  # fmt: skip

    @property
    def num_layers(self) -> int:
        """Returns the number of layers that it is planned in: embeddings, each block, and the head with the loss."""
        return self.num_blocks + 2

    @property
    def num_parameters(self) -> int:
        """Returns the number of its parameters."""
        ends = self.hidden * (self.vocabulary * (1 if self.tied else 2) + self.position_rows) + self.norm_parameters
        blocks = (count * self.block_parameters(number) for number, count in Counter(self._first_alike).items())
        return ends + sum(blocks) + sum(map(self.block_parameters, self.predicting))

    @property
    def position_rows(self) -> int:
        """Returns the rows of the learned table of positions; 0 where there is none."""
        return 0 if self.rotary or self.alibi else self.positions or self.sequence

    @property
    def predicting(self) -> range:
        """Returns the numbers of the blocks that predict further tokens."""
        return range(self.num_blocks, self.num_blocks + self.predicted)

    def blocks_of(self, layer: int) -> range:
        """Returns the numbers of the blocks in a layer of `num_layers`; those that predict are in the last."""
        return self.predicting if layer == self.num_layers - 1 else range(max(layer - 1, 0), layer)

    def block_parameters(self, number: int, experts: bool | None = None) -> int:
        """Returns the number of parameters of a block: all, only its routed experts', or only all others."""
        routed, has_experts, products = 0, self.has_experts(number), (2 + self.gated) * self.hidden
        if has_experts:
            biases = (1 + self.gated) * self.feed_forward + self.hidden if self.expert_biases else 0
            routed = self.num_experts * (products * self.feed_forward + biases)
        if experts:
            return routed
        dense = self.dense_width(number)
        fed = products * dense
        if self.biased("feed_forward") and dense:
            fed += (1 + self.gated) * dense + self.hidden
        if has_experts:
            fed += self.hidden * (self.num_experts + self.shared_gate) + self.num_experts * self.router_bias
        if number in self.predicting:
            fed += 2 * self.hidden**2 + 3 * self.norm_parameters
        norms = 2 * len(NORMS[self.norms]) * self.norm_parameters
        return norms + self._attention_parameters + fed + (0 if experts is False else routed)

    @functools.cached_property
    def alike_layers(self) -> list[int]:
        """Returns for each layer of `num_layers` the number of the first one that is like it.

        >>> experts = {"num_experts": 2, "experts_per_token": 1, "dense_blocks": 1, "dense_feed_forward": 8}
        >>> Transformer(8, 4, 2, 16, 4, **experts).alike_layers
        [0, 1, 2, 2, 2, 5]
        """
        return [0, *(1 + number for number in self._first_alike), self.num_blocks + 1]

    @functools.cached_property
    def _first_alike(self) -> list[int]:
        """For each block the number of the first one that is like it."""
        first: dict[tuple[bool, int, str], int] = {}
        return [
            first.setdefault((self.has_experts(number), self.window_of(number), self.trained(number + 1)), number)
            for number in range(self.num_blocks)
        ]

    @property
    def computes_in(self) -> Precision:
        """Returns the dtypes that it computes in."""
        return PRECISIONS[self.precision]

    @property
    def updated_by(self) -> Optimizer:
        """Returns what its optimizer keeps and does."""
        return OPTIMIZERS[self.optimizer]

    @property
    def trains_all(self) -> bool:
        """Returns whether nothing of it is frozen."""
        return not self.lora and not self.train_last

    @property
    def first_trained(self) -> int:
        """Returns the number of the first layer that has something to train: backward passes end there."""
        return self.num_blocks + 1 - self.train_last if self.train_last else int(self.lora > 0)

    def trained(self, layer: int) -> str:
        """Returns what is trained of a layer, by its number: "all" of it, its "adapters", or "nothing"."""
        if layer < self.first_trained or (self.lora and layer > self.num_blocks):
            return "nothing"
        return "adapters" if self.lora else "all"

    def keeps_operands(self, layer: int, target: str) -> bool:
        """Returns whether gradients of weights, or adapters, take the operands of a layer's products of "attention" or
        "feed_forward".
        """
        trained = self.trained(layer)
        return trained == "all" or (trained == "adapters" and self.lora_targets in (target, "all"))

    @property
    def frozen_bytes(self) -> float:
        """Returns the bytes of a parameter of a block's products that isn't trained."""
        return FROZEN_BYTES[self.frozen] if self.frozen else 4.0 if self.computes_in.usual == "float32" else 2.0

    def window_of(self, number: int) -> int:
        """Returns to how many tokens at most a token attends in a block of a number."""
        whole = self.global_every and (number + 1) % self.global_every == 0
        whole = whole or not self.window or number >= self.num_blocks
        return self.sequence if whole else min(self.window, self.sequence)

    def pairs(self, number: int) -> float:
        """Returns how many scores a head computes of a sample in a block of a number, where each of a token with itself
        counts half: the area of a triangle, or of the band of a window in it.

        >>> [Transformer(8, 1, 2, 16, 8, window=window).pairs(0) for window in (0, 8, 2)]
        [32.0, 32.0, 14.0]
        """
        window = self.window_of(number)
        return window * self.sequence - window**2 / 2

    @property
    def flop_per_token(self) -> float:
        """Returns the model FLOP of training by a token, by the rule of PaLM and Megatron-LM, which MFU goes by.

        That is 6 for each parameter that a token is multiplied by: all but a lookup in a table of embeddings or
        positions, and of experts only those that it goes to. Attention adds 12 for each element of its heads and each
        token that it may look at, where the half that causality leaves out counts, too. What is frozen counts 4, or 2
        ahead of all that is trained; adapters count nothing.

        References:
            Chowdhery et al., PaLM: Scaling Language Modeling with Pathways, 2022, appendix B.
            Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, SC 2021, section 5.1.

        >>> round(Transformer(12288, 96, 96, 51200, 2048, gated=False).flop_per_token / (6 * 175e9), 3)
        1.025
        """
        share = self.experts_per_token / self.num_experts if self.num_experts else 0.0
        widths = self.num_heads * (self.head_size + self.rotary_size + self.value_size)
        predictions = self.hidden * self.vocabulary * (1.0 + self.predicted)
        total = self._flop_of_parameter(self.num_blocks + 1) * predictions
        for number in (*range(self.num_blocks), *self.predicting):
            layer = min(number, self.num_blocks) + 1
            multiplied = self.block_parameters(number, False) + share * self.block_parameters(number, True)
            scored = self.window_of(number) * widths * (6 if layer >= self.first_trained else 2)
            total += self._flop_of_parameter(layer) * multiplied + scored
        return total

    def _flop_of_parameter(self, layer: int) -> int:
        """Forward, and where anything up to the layer is trained, for the gradients of operands, and of weights."""
        return 6 if self.trained(layer) == "all" else 4 if layer >= self.first_trained else 2

    def normed(self, where: str) -> bool:
        """Returns whether attention and feed-forward layers have a norm "ahead" or "behind"."""
        return where in NORMS[self.norms]

    @property
    def unusual(self) -> dict[str, object]:
        """Returns the fields, with their values, that few frameworks' configurations say; empty if it has none."""
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        names = list(usual)[list(usual).index("wide_qk_norm") : list(usual).index("predicted") + 1]
        usual["activation"] = self._derived()["activation"]
        return {name: getattr(self, name) for name in names if getattr(self, name) != usual[name]}

    @property
    def untraced(self) -> dict[str, object]:
        """Returns the fields, with their values, that the model's form in JAX hasn't; empty if it has all."""
        names = {
            "latent_rank": 0, "predicted": 0, "router_bias": False, "expert_biases": False, "imbalance": 1.0,
            "capacity": 0.0, "lora": 0, "frozen": "",
        }  # fmt: skip
        strange = {name: getattr(self, name) for name, usual in names.items() if getattr(self, name) != usual}
        if self.precision not in ("bfloat16", "float16", "float32"):
            strange["precision"] = self.precision
        if self.optimizer not in ("adamw", "adam", "sgd", "adafactor"):
            strange["optimizer"] = self.optimizer
        if self.rotary_scaling > 1 and self.rotary_scaling_kind not in ("llama3", "linear"):
            strange["rotary_scaling_kind"] = self.rotary_scaling_kind
        return strange

    def biased(self, products: str) -> bool:
        """Returns whether some products of a block have a bias: "qkv", "out" or "feed_forward"."""
        return products in BIASES[self.biases]

    def has_experts(self, number: int) -> bool:
        """Returns whether a block, which is given by its number, has experts."""
        return bool(self.num_experts) and number >= self.dense_blocks and (number + 1) % self.experts_every == 0

    def dense_width(self, number: int) -> int:
        """Returns the width of the feed-forward layer that all tokens go through in a block of a number; 0: none."""
        if self.has_experts(number):
            return self.shared_feed_forward
        return self.dense_feed_forward or self.feed_forward

    @property
    def norm_parameters(self) -> int:
        """Returns the number of parameters of a norm of the hidden state."""
        return self.hidden * (2 if self.norm_bias and not self.rms_norm else 1)

    @property
    def _attention_parameters(self) -> int:
        hidden, heads = self.hidden, self.num_heads
        if self.latent_rank:
            queries = heads * (self.head_size + self.rotary_size)
            count = self.query_rank * (hidden + 1 + queries) if self.query_rank else hidden * queries
            count += hidden * (self.latent_rank + self.rotary_size) + self.latent_rank
            return count + heads * (self.latent_rank * (self.head_size + self.value_size) + self.value_size * hidden)
        queries, keys = heads * self.head_size, self.kv_heads * self.head_size
        normed = queries + keys if self.wide_qk_norm else 2 * self.head_size
        count = hidden * (2 * queries + 2 * keys) + normed * self.qk_norm + heads * self.sinks
        return count + (queries + 2 * keys) * self.biased("qkv") + hidden * self.biased("out")
