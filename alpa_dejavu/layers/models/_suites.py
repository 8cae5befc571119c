"""The models by name: facts about their sizes, from which the functions are made when they are asked for.

The sizes are those of Alpa's benchmark suites (`suite_manual_gpt.py`, `suite_manual_moe.py`, `suite_wresnet.py` of
Alpa 0.2.3), which are the ones of the paper's tables; gpt-13b is that of Brown et al., Language Models are Few-Shot
Learners, NeurIPS 2020, table 2.1.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from typing import Any

from alpa_dejavu.layers.models._sizes import GPT, MoE, WideResNet

SUITES: dict[str, GPT | MoE | WideResNet] = {
    "gpt-125m": GPT(768, 12, 12),
    "gpt-350m": GPT(1024, 24, 16),
    "gpt-760m": GPT(1536, 24, 16),
    "gpt-1.3b": GPT(2048, 24, 32),
    "gpt-2.6b": GPT(2560, 32, 32),
    "gpt-6.7b": GPT(4096, 32, 32),
    "gpt-13b": GPT(5120, 40, 40),
    "gpt-15b": GPT(5120, 48, 40),
    "gpt-39b": GPT(8192, 48, 64),
    "gpt-76b": GPT(10240, 60, 80),
    "moe-380m": MoE(768, 8, 8),
    "moe-690m": MoE(768, 8, 16),
    "moe-1.3b": MoE(768, 16, 16),
    "moe-2.4b": MoE(1024, 16, 16),
    "moe-7.1b": MoE(1280, 16, 32),
    "moe-10b": MoE(1536, 16, 32),
    "moe-27b": MoE(2048, 16, 48),
    "moe-70b": MoE(2048, 32, 64),
    "wresnet-250m": WideResNet(160, 2),
    "wresnet-500m": WideResNet(224, 2),
    "wresnet-1b": WideResNet(320, 2),
    "wresnet-2b": WideResNet(448, 2),
    "wresnet-4b": WideResNet(640, 2),
    "wresnet-6.8b": WideResNet(320, 16),
    "wresnet-13b": WideResNet(320, 16, (3, 4, 23, 3)),
}


def known_models() -> list[str]:
    """Returns the names of all known models (GPT, mixtures of experts, Wide-ResNet), smallest first in each family."""
    return list(SUITES)


def model_function(name: str) -> Callable[[int], Any]:
    """Returns a known model's function by name: it takes a batch size and returns `(train_step, (state, batch))`.

    State and batch are abstract arrays (`jax.ShapeDtypeStruct`).

    Raises:
        ValueError: there is no model of that name; near names are listed.
    """
    if name.lower() not in SUITES:
        close = difflib.get_close_matches(name.lower(), SUITES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there are {', '.join(SUITES)}."
        raise ValueError(f"there is no model named {name!r}; {hint} Your own model is given as 'module:function'.")
    size = SUITES[name.lower()]
    if isinstance(size, WideResNet):
        from alpa_dejavu.layers.models._wresnet import wresnet_step

        return functools.partial(wresnet_step, size)
    from alpa_dejavu.layers.models._transformer import transformer_step

    return functools.partial(transformer_step, size)
