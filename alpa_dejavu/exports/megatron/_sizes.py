"""A transformer's sizes as Megatron's arguments, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alpa_dejavu.layers.models import Transformer

__all__ = ["SIZE_FLAGS", "SIZE_VALUES", "size_arguments", "sizes_of_arguments"]

SIZE_VALUES = (
    "num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "kv-channels",
    "seq-length", "max-position-embeddings", "position-embedding-type", "normalization", "vocab-size", "num-experts",
    "moe-router-topk", "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size",
)  # fmt: skip
"""Arguments that say sizes and have a value."""
SIZE_FLAGS = (
    "group-query-attention", "swiglu", "disable-bias-linear", "add-qkv-bias", "qk-layernorm",
    "untie-embeddings-and-output-weights", "use-rotary-position-embeddings",
)  # fmt: skip
"""Arguments that say sizes and have none."""
_NEEDED = ("num-layers", "hidden-size", "num-attention-heads", "seq-length")


def size_arguments(model: Transformer) -> dict[str, str | None]:
    """Returns Megatron's arguments for a transformer's sizes, by name; None for those without a value."""
    given: dict[str, object] = {
        "num-layers": model.num_blocks,
        "hidden-size": model.hidden,
        "ffn-hidden-size": model.feed_forward,
        "num-attention-heads": model.num_heads,
        "kv-channels": model.head_size,
        "seq-length": model.sequence,
        "max-position-embeddings": model.sequence,
        "vocab-size": model.vocabulary,
        "position-embedding-type": "rope" if model.rotary else "learned_absolute",
        "normalization": "RMSNorm" if model.rms_norm else "LayerNorm",
    }
    if model.kv_heads < model.num_heads:
        given |= {"group-query-attention": None, "num-query-groups": model.kv_heads}
    if model.num_experts:
        given |= {"num-experts": model.num_experts, "moe-router-topk": model.experts_per_token}
        given |= {"moe-ffn-hidden-size": model.feed_forward}
    if model.shared_feed_forward:
        given |= {"moe-shared-expert-intermediate-size": model.shared_feed_forward}
    flags = {
        "swiglu": model.gated,
        "disable-bias-linear": model.biases != "all",
        "add-qkv-bias": model.biases == "qkv",
        "qk-layernorm": model.qk_norm,
        "untie-embeddings-and-output-weights": not model.tied,
    }
    given |= {name: None for name, there in flags.items() if there}
    return {name: None if value is None else str(value) for name, value in given.items()}


def sizes_of_arguments(given: Mapping[str, Any]) -> Transformer:
    """Returns the transformer that Megatron's arguments say, by name.

    Raises:
        ValueError: one that is needed is missing, or isn't a number.
    """
    missing = [name for name in _NEEDED if name not in given]
    if missing:
        raise ValueError(f"--{missing[0]} is missing, but must be there to know the model; add it, or give --model")
    if "vocab-size" not in given:
        raise ValueError(
            "--vocab-size is missing, but must be there to know the model, since no tokenizer is read; add it, or give "
            "--model"
        )
    experts = _number(given, "num-experts", 0)
    wide = _number(given, "ffn-hidden-size", 4 * _number(given, "hidden-size"))
    grouped = "group-query-attention" in given
    bias = "none" if "disable-bias-linear" in given else "all"
    return Transformer(
        hidden=_number(given, "hidden-size"),
        num_blocks=_number(given, "num-layers"),
        num_heads=_number(given, "num-attention-heads"),
        vocabulary=_number(given, "vocab-size"),
        sequence=_number(given, "seq-length"),
        kv_heads=_number(given, "num-query-groups") if grouped and "num-query-groups" in given else 0,
        head_size=_number(given, "kv-channels", 0),
        feed_forward=_number(given, "moe-ffn-hidden-size", wide) if experts else wide,
        gated="swiglu" in given,
        rotary="use-rotary-position-embeddings" in given or given.get("position-embedding-type") == "rope",
        rms_norm=given.get("normalization") == "RMSNorm",
        biases="qkv" if bias == "none" and "add-qkv-bias" in given else bias,
        qk_norm="qk-layernorm" in given,
        tied="untie-embeddings-and-output-weights" not in given,
        num_experts=experts,
        experts_per_token=_number(given, "moe-router-topk", 2) if experts else 0,
        shared_feed_forward=_number(given, "moe-shared-expert-intermediate-size", 0) if experts else 0,
    )


def _number(given: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = given.get(name, default)
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    raise ValueError(f"--{name} is {value!r}, but must be a whole number; mend it")
