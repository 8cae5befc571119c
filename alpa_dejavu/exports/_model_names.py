"""The decoders that configurations of other frameworks name: found by letters and digits, or in a table of names."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final

from alpa_dejavu.layers.models import Transformer, known_models, model_size, transformer_size

_GPT: Final = (
    "transformer:hidden={},blocks={},heads={},vocabulary=50304,sequence=2048,feed_forward={},gated=no,rotary=no,"
    "rms_norm=no,biases=all,tied=yes"
)
_OTHERS: Final[Mapping[str, Mapping[str, str]]] = {
    "": {f"llama2{size}": f"llama-{size}" for size in ("7b", "13b", "70b")},
    "megatron": {
        "qwen25500m": "qwen2.5-0.5b", "qwen251p5b": "qwen2.5-1.5b", "qwen3600m": "qwen3-0.6b",
        "qwen31p7b": "qwen3-1.7b", "mistralnemo12b": "mistral-nemo", "mistralnemo123b": "mistral-large",
        "phi3mini4kinstruct": "phi-3-mini",
        **{f"{name}{key}": _GPT.format(*sizes) for key, sizes in {
            "126m": (768, 12, 12, 3072), "5b": (4096, 24, 32, 16384), "7b": (4096, 32, 32, 10880),
            "20b": (6144, 44, 48, 24576), "40b": (8192, 48, 64, 32768), "175b": (12288, 96, 96, 49152),
        }.items() for name in ("gpt", "gpt3")},
    },
    "torchtitan": {
        "llama3debugmodel": "transformer:hidden=256,blocks=6,heads=16,vocabulary=2048,sequence=2048,feed_forward=768,"
        "rotary_base=500000,rotary_scaling=8.0",
        **{f"llama3{size}": f"llama-3.2-{size}" for size in ("1b", "3b")},
        **{f"llama3{size}": f"llama-3.1-{size}" for size in ("8b", "70b", "405b")},
        "deepseekv316b": "deepseek-v2-lite", "deepseekv3236b": "deepseek-v2", "deepseekv3671b": "deepseek-v3",
    },
    "maxtext": {
        "deepseek216b": "deepseek-v2-lite", "deepseek2236b": "deepseek-v2", "deepseek3671b": "deepseek-v3",
        "mistral7b": "mistral-7b-v0.3", "llama3405b": "llama-3.1-405b",
    },
}  # fmt: skip
"""Texts that sizes are found by, by what frameworks call them in letters and digits, where that isn't ours; "": all."""


def named_sizes(framework: str, name: str) -> Transformer | None:
    """Returns the sizes of a decoder by a framework's name of it; None where it isn't known.

    >>> named_sizes("torchtitan", "llama3 8B") == named_sizes("maxtext", "llama3.1-8b") == model_size("llama-3.1-8b")
    True
    """
    spelled = _spelled(name)
    return transformer_size(_OTHERS[framework].get(spelled) or _OTHERS[""].get(spelled) or _ours().get(spelled, ""))


def _spelled(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


@functools.cache
def _ours() -> Mapping[str, str]:
    return {_spelled(name): name for name in known_models() if isinstance(model_size(name), Transformer)}
