"""A train step cut into layers by the rule of Alpa's `AutoLayerOption`, without Alpa.

`trace` turns a model function into jaxprs, and `cut_into_layers` gives each layer its forward, backward and update
jaxpr. They need jax, so names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.layers._arguments import concrete
    from alpa_dejavu.layers._cluster import EquationClusters
    from alpa_dejavu.layers._cut import LayeredStep, cut_into_layers, most_layers, step_digest
    from alpa_dejavu.layers._resolve import resolve, trusted_model
    from alpa_dejavu.layers._trace import TracedStep, trace
    from alpa_dejavu.layers.attention.counted import AttentionFound, attention_of
    from alpa_dejavu.layers.attention.fused import with_attention

__all__ = [
    "AttentionFound",
    "EquationClusters",
    "LayeredStep",
    "TracedStep",
    "attention_of",
    "concrete",
    "cut_into_layers",
    "most_layers",
    "resolve",
    "step_digest",
    "trace",
    "trusted_model",
    "with_attention",
]

_HOME = {
    "concrete": "_arguments",
    "EquationClusters": "_cluster",
    **dict.fromkeys(("LayeredStep", "cut_into_layers", "most_layers", "step_digest"), "_cut"),
    **dict.fromkeys(("resolve", "trusted_model"), "_resolve"),
    **dict.fromkeys(("TracedStep", "trace"), "_trace"),
    **dict.fromkeys(("AttentionFound", "attention_of"), "attention.counted"),
    "with_attention": "attention.fused",
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
