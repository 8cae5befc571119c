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


def dot_flop(params: Mapping[str, Any], left: Sequence[int], num_results: float) -> float:
    """Counts a matrix product's operations: two for each element of the result and each contracted element.

    Args:
        params: the parameters of the product's `dot_general` equation.
        left: the shape of its first operand.
        num_results: the number of elements of its result.
    """
    contracted = params["dimension_numbers"][0][0]
    return 2.0 * num_results * math.prod(left[d] for d in contracted)


def convolution_flop(
    params: Mapping[str, Any], image: Sequence[int], kernel: Sequence[int], result: Sequence[int]
) -> float:
    """Counts a convolution's operations: two for each multiply-add that meets no padding and no dilation's hole.

    Args:
        params: the parameters of the convolution's `conv_general_dilated` equation.
        image: the shape of its first operand.
        kernel: the shape of its second operand.
        result: the shape of its result.
    """
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
