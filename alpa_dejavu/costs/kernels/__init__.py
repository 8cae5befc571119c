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
    figures_of,
    kernel_figures,
)
from alpa_dejavu.costs.kernels._grouped import ExpertFigures, ExpertTokens, grouped_seconds, grouped_traffic_seconds
from alpa_dejavu.costs.kernels._products import HEIGHTS, product_seconds, stream_seconds

__all__ = [
    "FILE", "HEIGHTS", "IN_STEPS_FILE", "AttentionFigures", "AttentionSizes", "ExpertFigures", "ExpertTokens", "Fitted",
    "GroupedFigures", "InSteps", "KernelFigures", "LeftOut", "ProductFigures", "StreamFigures", "attention_seconds",
    "check_fused", "dtype_class", "family", "figures_of", "grouped_seconds", "grouped_traffic_seconds", "has_fused",
    "in_steps", "kernel_figures", "matrix_rate", "product_seconds", "stream_seconds",
    "width_bytes",
]  # fmt: skip
