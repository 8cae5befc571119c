"""Models of GPU kernels, a small one for each kind: matrix products, fused attention, grouped products of experts, and
operators that are bound by memory.

In: the sizes of kernels, a GPU's data sheet, and the figures of its generation, which were fitted to measurements.
Out: seconds. `alpa_dejavu.costs.latency.KernelLatency` is the latency model of operators that they make together.
"""

from __future__ import annotations

from alpa_dejavu.costs.kernels._attention import AttentionSizes, attention_seconds, check_fused, has_fused
from alpa_dejavu.costs.kernels._classes import (
    IN_STEPS_FILE,
    InSteps,
    dtype_class,
    family,
    in_steps,
    matrix_rate,
    width_bytes,
)
from alpa_dejavu.costs.kernels._figures import (
    FILE,
    AttentionFigures,
    Fitted,
    GroupedFigures,
    KernelFigures,
    LeftOut,
    ProductFigures,
    StreamFigures,
    data_of,
    figures_of,
    kernel_figures,
    units,
)
from alpa_dejavu.costs.kernels._grouped import (
    ExpertFigures,
    ExpertTokens,
    experts_seconds,
    grouped_seconds,
    tokens_of_fullest,
)
from alpa_dejavu.costs.kernels._products import product_seconds, stream_seconds

__all__ = [
    "FILE", "IN_STEPS_FILE", "AttentionFigures", "AttentionSizes", "ExpertFigures", "ExpertTokens", "Fitted",
    "GroupedFigures", "InSteps", "KernelFigures", "LeftOut", "ProductFigures", "StreamFigures", "attention_seconds",
    "check_fused", "data_of", "dtype_class", "experts_seconds", "family", "figures_of", "grouped_seconds", "has_fused",
    "in_steps", "kernel_figures", "matrix_rate", "product_seconds", "stream_seconds", "tokens_of_fullest", "units",
    "width_bytes",
]  # fmt: skip
