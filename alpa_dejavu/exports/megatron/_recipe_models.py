"""The models that recipes name, as Megatron's arguments."""

from __future__ import annotations

import re
from typing import Final

from alpa_dejavu.exports.megatron._reader import value_of
from alpa_dejavu.exports.megatron._sizes import size_arguments
from alpa_dejavu.layers.models import transformer_size

_GPT: Final = (
    "transformer:hidden={},blocks={},heads={},vocabulary=50304,sequence=2048,feed_forward={},gated=no,rotary=no,"
    "rms_norm=no,biases=all,tied=yes"
)
_SIZED: Final = {
    **{f"llama2{size}": f"llama-{size}" for size in ("7b", "13b", "70b")},
    **{f"llama3{size}": f"llama-3-{size}" for size in ("8b", "70b")},
    **{f"llama31{size}": f"llama-3.1-{size}" for size in ("8b", "70b", "405b")},
    **{f"llama32{size}": f"llama-3.2-{size}" for size in ("1b", "3b")},
    **{f"qwen25{key}": f"qwen2.5-{size}" for key, size in (
        ("500m", "0.5b"), ("1p5b", "1.5b"), ("3b", "3b"), ("7b", "7b"), ("14b", "14b"), ("32b", "32b"), ("72b", "72b"),
    )},
    **{f"qwen3{key}": f"qwen3-{size}" for key, size in (
        ("600m", "0.6b"), ("1p7b", "1.7b"), ("4b", "4b"), ("8b", "8b"), ("14b", "14b"), ("32b", "32b"),
        ("30ba3b", "30b-a3b"), ("235ba22b", "235b-a22b"),
    )},
    "mistral7b": "mistral-7b", "mistralnemo12b": "mistral-nemo", "mistralnemo123b": "mistral-large",
    "mixtral8x7b": "mixtral-8x7b", "mixtral8x22b": "mixtral-8x22b", "deepseekv2": "deepseek-v2",
    "deepseekv2lite": "deepseek-v2-lite", "deepseekv3": "deepseek-v3", "nemotron415b": "nemotron-4-15b",
    "nemotron4340b": "nemotron-4-340b", "phi3mini": "phi-3-mini", "phi3mini4kinstruct": "phi-3-mini",
    **{f"{name}{key}": _GPT.format(*sizes) for key, sizes in {
        "126m": (768, 12, 12, 3072), "5b": (4096, 24, 32, 16384), "7b": (4096, 32, 32, 10880),
        "20b": (6144, 44, 48, 24576), "40b": (8192, 48, 64, 32768), "175b": (12288, 96, 96, 49152),
    }.items() for name in ("gpt", "gpt3")},
}  # fmt: skip
"""The models that classes and recipes of sizes stand for, by what they are called: texts that sizes are found by."""
_FAMILIES: Final = {
    **dict.fromkeys(("llama", "llama2", "llama3"), "llama-7b"), "llama31": "llama-3.1-8b", "llama32": "llama-3.2-1b",
    **dict.fromkeys(("qwen2", "qwen25"), "qwen2.5-7b"), "qwen3": "qwen3-8b", "mistral": "mistral-7b-v0.3",
    "mixtral": "mixtral-8x7b", "nemotron": "nemotron-4-15b", "phi3": "phi-3-mini",
}  # fmt: skip
"""The classes that say what kind of blocks there are, and leave the sizes to fields, with a model of each."""
_BARE: Final = ("gpt", "mla")
"""The classes whose fields say all, with Megatron's own defaults."""
_SIZES: Final = (
    "num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "kv-channels", "seq-length", "vocab-size",
    "max-position-embeddings", "group-query-attention", "num-query-groups", "num-experts", "moe-router-topk",
    "moe-ffn-hidden-size",
)  # fmt: skip
_TRAINED: Final = ("bf16", "fp16", "fp8-format", "fp8-recipe", "fp4-format", "fp8-param-gather")
"""Arguments that a recipe says elsewhere, or leaves to Megatron."""


def model_arguments(name: str) -> dict[str, int | str | bool] | None:
    """Returns Megatron's arguments for what a model's class, or a recipe, says by its name; None: it isn't known.

    >>> model_arguments("nemo.collections.llm.gpt.model.llama.Llama3Config8B")["num-query-groups"]
    8
    """
    words = re.sub(r"Config|ModelProvider|MoE|[_\W]", "", name.partition("(")[0].rpartition(".")[2]).lower()
    words = re.sub(r"(?<=b)\d+k$", "", words)
    if words in _BARE:
        return {}
    model = transformer_size(_SIZED.get(words) or _FAMILIES.get(words, ""))
    if model is None:
        return None
    left_out = {*_TRAINED, "max-position-embeddings", *(() if words in _SIZED else _SIZES)}
    arguments = {key: value for key, value in size_arguments(model).items() if key not in left_out}
    return {key: True if value is None else value_of(value) for key, value in arguments.items()}
