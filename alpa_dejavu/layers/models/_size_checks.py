"""The rules by which a transformer's sizes fit each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from alpa_dejavu.layers.models._training_choices import LORA_TARGETS

if TYPE_CHECKING:
    from alpa_dejavu.layers.models._transformer_size import Transformer

_MEND = "mend the sizes"


def check_transformer(size: Transformer) -> None:
    """Raises ValueError for the first of a transformer's sizes that contradicts others."""
    for name, is_right, wanted, remedy in _rules(size):
        if not is_right:
            value = getattr(size, name)
            shown = ("no", "yes")[value] if isinstance(value, bool) else repr(value)
            raise ValueError(f"transformer: {name} is {shown}, but must be {wanted}; {remedy}")


def _rules(size: Transformer) -> Iterator[tuple[str, bool, str, str]]:
    """Yields for fields whether each is right, what it must be, and the remedy."""
    yield from _of_attention(size)
    yield from _of_feed_forward(size)
    blocks = size.num_blocks
    yield "norm_bias", size.norm_bias or not size.rms_norm, "yes where norms don't centre", _MEND
    yield "logit_cap", 0 <= size.logit_cap <= 1e6, "from 0 to 1e6", _MEND
    yield "predicted", 0 <= size.predicted <= blocks, "from 0 to the number of blocks", _MEND
    yield (
        "train_last", 0 <= size.train_last <= blocks, f"from 1 to the number of blocks, {blocks}",
        "leave it out to train the whole model",
    )  # fmt: skip
    yield "lora", size.lora <= size.hidden, f"at most the hidden width, {size.hidden}", "give a smaller rank"
    yield (
        "lora_targets", size.lora_targets == LORA_TARGETS[0] or size.lora > 0,
        "left out where there are no adapters", "give --lora rank=N",
    )  # fmt: skip
    yield (
        "frozen", not (size.frozen and size.trains_all), "left out where the whole model is trained",
        "give --lora rank=N or --train-last N with it",
    )  # fmt: skip
    yield (
        "gather", not size.gather or size.computes_in.products.startswith("float8"),
        "left out where products aren't in FP8", "give --precision fp8 with it",
    )  # fmt: skip


def _of_attention(size: Transformer) -> Iterator[tuple[str, bool, str, str]]:
    latent, rotary = size.latent_rank > 0, size.rotary
    yield "window", size.window >= 0, "0, or the number of tokens", _MEND
    every, windowed = size.global_every, size.window > 0
    yield "global_every", every == 0 or (every > 1 and windowed), "0, or above 1 with a window", _MEND
    yield "wide_qk_norm", size.qk_norm or not size.wide_qk_norm, "no where qk_norm is", _MEND
    yield "attention_cap", 0 <= size.attention_cap <= 1e6, "from 0 to 1e6", _MEND
    yield "sinks", not (size.sinks and latent), "no with latent attention", _MEND
    most = size.head_size if rotary and not latent else 0
    yield "rotated", 0 <= size.rotated <= most, f"from 0 to {most}", _MEND
    yield "alibi", not (size.alibi and rotary), "no where positions rotate", _MEND
    learned = not (rotary or size.alibi) and size.positions >= size.sequence
    yield (
        "positions", size.positions == 0 or learned,
        f"0, or at least the {size.sequence} tokens of a sample with a learned table", _MEND,
    )  # fmt: skip
    turned = "rotary_size" if latent else "rotated" if size.rotated else "head_size"
    yield (
        turned, not rotary or getattr(size, turned) % 2 == 0, "even where positions rotate pairs of elements",
        "give an even one, or rotary=no",
    )  # fmt: skip
    yield (
        "rotary_scaling", 1 <= size.rotary_scaling <= 1e6 and (rotary or size.rotary_scaling == 1),
        "from 1 to 1e6, and 1 where positions don't rotate", _MEND,
    )  # fmt: skip
    parts = size.query_rank or size.rotary_size or size.value_size != size.head_size
    yield (
        "latent_rank", latent or not parts, "above it where query_rank, rotary_size or value_size are given",
        "give latent_rank, or leave these out",
    )  # fmt: skip
    yield (
        "kv_heads", not latent or size.kv_heads == size.num_heads,
        f"num_heads, {size.num_heads}, with latent attention", "leave it out",
    )  # fmt: skip


def _of_feed_forward(size: Transformer) -> Iterator[tuple[str, bool, str, str]]:
    experts, best, every, blocks = size.num_experts, size.experts_per_token, size.experts_every, size.num_blocks
    yield (
        "experts_per_token", bool(experts) == bool(best) and best <= experts,
        f"from 1 to num_experts, {experts}, or both 0", _MEND,
    )  # fmt: skip
    yield (
        "experts_every", every == 1 or (1 < every <= blocks and experts > 0),
        f"1, or with experts at most the {blocks} blocks", _MEND,
    )  # fmt: skip
    for name in ("router_bias", "expert_biases"):
        yield name, experts > 0 or not getattr(size, name), "no without experts", _MEND
    most = max(experts, 1)
    yield "imbalance", 1 <= size.imbalance <= most, f"from 1 to the number of experts, {most}", _MEND
    all_tokens = experts / max(best, 1)
    yield (
        "capacity", 0 <= size.capacity <= all_tokens,
        f"from 0 to {all_tokens:g}, with which each expert takes all tokens", _MEND,
    )  # fmt: skip
    shared = size.shared_feed_forward > 0
    yield "shared_feed_forward", experts > 0 or not shared, "0 where there are no experts", "give num_experts"
    yield "shared_gate", shared or not size.shared_gate, "no without a shared expert", "give shared_feed_forward"
    yield "dense_blocks", size.dense_blocks <= blocks, f"at most the {blocks} blocks", _MEND
    dense = size.dense_blocks > 0 or every > 1
    yield (
        "dense_feed_forward", dense == (size.dense_feed_forward > 0),
        "above 0 with dense_blocks or experts_every, and else 0", _MEND,
    )  # fmt: skip
