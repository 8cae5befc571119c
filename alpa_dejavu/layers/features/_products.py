"""How many operations a matrix product or a convolution takes: XLA's way of counting.

References:
    `HloCostAnalysis::GetDotFlops` and `GetConvolutionFlops` in XLA (hlo_cost_analysis.cc).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def product_flop(
    primitive: str, params: Mapping[str, Any], operands: Sequence[Any], results: Sequence[Any]
) -> float | None:
    """Returns the operations of an equation that is a matrix product or a convolution; None for any other.

    The operands and results are atoms of a jaxpr, or values with a shape.
    """
    if primitive not in ("dot_general", "conv_general_dilated"):
        return None
    left, right, result = (tuple(getattr(x, "aval", x).shape) for x in (*operands[:2], results[0]))
    if primitive == "dot_general":
        contracted = params["dimension_numbers"][0][0]
        return 2.0 * math.prod(result) * math.prod(left[d] for d in contracted)
    return _convolution_flop(params, left, right, result)


def _convolution_flop(
    params: Mapping[str, Any], image: Sequence[int], kernel: Sequence[int], result: Sequence[int]
) -> float:
    """Two operations for each multiply-add that meets no padding and no dilation's hole."""
    numbers = params["dimension_numbers"]
    images, features, *image_space = numbers.lhs_spec
    kernel_features, _, *kernel_space = numbers.rhs_spec
    _, _, *result_space = numbers.out_spec
    valid = 1
    for n, (low, _) in enumerate(params["padding"]):
        valid *= _valid_positions(
            image[image_space[n]],
            kernel[kernel_space[n]],
            result[result_space[n]],
            params["window_strides"][n],
            low,
            params["lhs_dilation"][n],
            params["rhs_dilation"][n],
        )
    per_position = image[features] // params["feature_group_count"] * kernel[kernel_features]
    return 2.0 * per_position * (image[images] // params["batch_group_count"]) * valid


@functools.lru_cache(maxsize=4096)
def _valid_positions(image: int, kernel: int, result: int, stride: int, low: int, base: int, window: int) -> int:
    """Pairs of a result's and a kernel's position along one dimension that meet an element of the image."""
    where = np.arange(result)[:, None] * stride - low + np.arange(kernel)[None, :] * window
    return int(((where % base == 0) & (where >= 0) & (where < image * base)).sum())
