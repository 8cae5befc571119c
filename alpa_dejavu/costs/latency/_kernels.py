"""The models of GPU kernels as a latency model of the planner."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from alpa_dejavu.clusters.gpus import Gpu, gpu_of
from alpa_dejavu.costs.kernels import (
    AttentionSizes,
    ExpertFigures,
    ExpertTokens,
    Fitted,
    GroupedFigures,
    InSteps,
    KernelFigures,
    attention_seconds,
    dtype_class,
    grouped_seconds,
    in_steps,
    kernel_figures,
    product_seconds,
    stream_seconds,
    width_bytes,
)
from alpa_dejavu.costs.latency._operator_shapes import (
    ATTENTION,
    GROUPED,
    STREAM,
    UNFOLDED,
    DistinctKernels,
    KernelKey,
    OperatorShapes,
    divided_attention,
    divided_grouped,
    divided_products,
)
from alpa_dejavu.costs.latency._roofline import AnalyticLatency, Latency, LatencyModel
from alpa_dejavu.problem import Device, FusedAttention, Operators

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped

_UNKNOWN = 0.5
"""The spread, as a share of the roofline, on a device that has no data sheet."""
UNFOLDED_SPREAD = (0.48, 0.29)
"""The spread of products of a kind that no model was fitted to, as convolutions are: standard deviations of the
logarithm, in common on a GPU and of a kernel's own, for linear layers by a model without them and the reverse."""
_BACKWARD, _FLASH2, _TF32 = 0.15, 0.1, 0.2
"""The further spread, in common, of attention's backward pass, of FlashAttention 2, and of products in TF32, of which
the first two are from papers and the last from products in 16 bits: assumptions."""
_BY_TENSOR = ("fitted to FP8 scaled by tensor", 0.15)
_UNLIKE = {
    "float4": ("fitted to products of 8 bits", 0.3), "float8_blocks": _BY_TENSOR, "float8_micro": _BY_TENSOR,
}  # fmt: skip
"""The dtypes of products that nothing was measured of: what their figures are from, and the further spread, in common:
an assumption. Those of 4 bits go by the data sheet's rate beside that of 8 bits."""


@final
@dataclasses.dataclass(frozen=True)
class KernelLatency(LatencyModel):
    """A latency model of operators by models of GPU kernels, for devices whose data sheet is known by their name; the
    roofline for all others.

    The rates of products and of memory are the device's, not the sheet's; a device that is slower in everything takes
    longer for everything. A product that is divided among devices takes no longer than the whole one. The measured
    floors of products in 8 and 16 bits, of attention and of grouped products have a launch in them; all other operators
    start a kernel in `Device.kernel_s`. A convolution is predicted as the matrix product that it is once its patches
    are unfolded; none was measured, so its spread is wider. Operands in 8 bits are taken as cast: whatever writes them
    casts them.
    """

    spread_from: ClassVar[str] = "kernels"

    figures: KernelFigures = dataclasses.field(default_factory=kernel_figures)
    in_steps: InSteps = dataclasses.field(default_factory=in_steps)
    _shapes: OperatorShapes = dataclasses.field(default_factory=OperatorShapes, init=False, repr=False, compare=False)

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Returns the predicted mean seconds of each operator on a device, and their standard deviation (spread)."""
        sheet = gpu_of(device.name)
        if sheet is None or not len(operators):
            mean = AnalyticLatency().predict(operators, device).mean_s
            return Latency(mean, _UNKNOWN * mean)
        kernels, (gpu, slowdown) = self._shapes.of(operators), _as_it_is(sheet, device)
        seconds, spread = np.zeros(len(kernels.shapes)), np.zeros(len(kernels.shapes))
        for key, places in kernels.groups().items():
            seconds[places] = slowdown * self._group_seconds(gpu, kernels, key, places)
            # The measured floor of other kinds of kernels has a launch in it.
            if key.kind == STREAM or (key.kind != ATTENTION and dtype_class(gpu, key.dtype) == "float32"):
                seconds[places] += device.kernel_s
            spread[places] = np.hypot(*self._spread(gpu, key))
        mean = seconds[kernels.of_operators] * operators.count * (operators.written_bytes > 0)
        return Latency(mean, mean * np.expm1(spread[kernels.of_operators]))

    def common_share(self, operators: Operators, device: Device) -> Float[np.ndarray, " operators"]:
        """Returns for each operator, on this device, the share of the variance of its latency error that all operators
        of its class (matrix products, or all others) have in common.
        """
        sheet = gpu_of(device.name)
        if sheet is None or not len(operators):
            return np.ones(len(operators))
        kernels, (gpu, _) = self._shapes.of(operators), _as_it_is(sheet, device)
        share = np.zeros(len(kernels.shapes))
        for key, places in kernels.groups().items():
            common, own = self._spread(gpu, key)
            share[places] = common**2 / max(common**2 + own**2, 1e-12)
        return share[kernels.of_operators]

    def footing(self, operators: Operators, device: Device) -> Shaped[np.ndarray, " operators"]:
        """Returns in a few words what the prediction of each operator on a device rests on."""
        sheet = gpu_of(device.name)
        if sheet is None or not len(operators):
            return np.full(len(operators), "data sheet")
        kernels, (gpu, _) = self._shapes.of(operators), _as_it_is(sheet, device)
        words = np.full(len(kernels.shapes), "measured", dtype="<U64")
        for key, places in kernels.groups().items():
            fitted = self._fitted(gpu, key)
            if key.kind == UNFOLDED:
                words[places] = "fitted to matrix products"
            elif key.kind != STREAM and key.dtype in _UNLIKE:
                words[places] = _UNLIKE[key.dtype][0]
            elif not fitted.is_measured(gpu):
                words[places] = "fitted to other generations"
            elif gpu.name not in fitted.gpus:
                words[places] = "measured on its generation"
        return words[kernels.of_operators]

    def _group_seconds(
        self, gpu: Gpu, kernels: DistinctKernels, key: KernelKey, places: Int[np.ndarray, " group"]
    ) -> Float[np.ndarray, " group"]:
        """Returns the seconds of distinct kernels of one kind, dtype and library."""
        if key.kind == STREAM:
            return stream_seconds(gpu, self.figures.streams.of(gpu), kernels.traffic[places])
        whole, share = kernels.sizes(places), kernels.share[places]
        seconds = self._matrix_seconds(gpu, key, _DIVIDED.get(key.kind, divided_products)(whole, share))
        # Divided work may fall on a worse shape of tiles, but the division that a library makes isn't slower than none.
        cut = np.flatnonzero(share < 1)
        seconds[cut] = np.minimum(seconds[cut], self._matrix_seconds(gpu, key, whole[cut]))
        backward = key.kind == ATTENTION and FusedAttention.of_text(key.kernel).backward
        return seconds * self.in_steps.factor(backward)

    def _matrix_seconds(
        self, gpu: Gpu, key: KernelKey, sizes: Float[np.ndarray, "group sizes"]
    ) -> Float[np.ndarray, " group"]:
        if key.kind == ATTENTION:
            kernel, figures = FusedAttention.of_text(key.kernel), self.figures.attention.of(gpu)
            return attention_seconds(gpu, figures, AttentionSizes(*sizes.T), kernel, dtype=key.dtype)
        products = self.figures.products[dtype_class(gpu, key.dtype)].of(gpu)
        if key.kind == GROUPED:
            tokens, experts, columns, inner = sizes.T
            grouped = ExpertFigures(self._grouped(gpu, key.dtype).of(gpu), products, self.figures.streams.of(gpu))
            balanced = ExpertTokens.balanced(tokens, experts)
            return grouped_seconds(gpu, key.dtype, grouped, balanced, inner, columns, hot=True)
        return product_seconds(gpu, key.dtype, products, sizes, cast=False, hot=True)

    def _grouped(self, gpu: Gpu, dtype: str) -> Fitted[GroupedFigures]:
        return self.figures.grouped.get(dtype_class(gpu, dtype), self.figures.grouped["half"])

    def _fitted(self, gpu: Gpu, key: KernelKey) -> Fitted[Any]:
        """The figures, with their errors, that a kind of kernels goes by."""
        if key.kind == STREAM:
            return self.figures.streams
        if key.kind == ATTENTION:
            return self.figures.attention
        if key.kind == GROUPED:
            return self._grouped(gpu, key.dtype)
        return self.figures.products[dtype_class(gpu, key.dtype)]

    def _spread(self, gpu: Gpu, key: KernelKey) -> tuple[float, float]:
        """How far a kind of kernels is off: standard deviations of the logarithm, in common and a kernel's own."""
        if key.kind == UNFOLDED:
            return UNFOLDED_SPREAD
        common, own = self._fitted(gpu, key).spread(gpu)
        wide = key.kind != STREAM and width_bytes(key.dtype) > 2
        further = [_TF32 * (wide and dtype_class(gpu, key.dtype) == "half")]
        further += [_UNLIKE[key.dtype][1]] if key.kind != STREAM and key.dtype in _UNLIKE else []
        if key.kind == ATTENTION:
            kernel = FusedAttention.of_text(key.kernel)
            further += [_BACKWARD * kernel.backward, _FLASH2 * (kernel.library == "flash2")]
        return math.hypot(common, *further), own


_DIVIDED = {ATTENTION: divided_attention, GROUPED: divided_grouped}


def _as_it_is(sheet: Gpu, device: Device) -> tuple[Gpu, float]:
    """The data sheet with a device's own rates of products and memory, and how many times slower the device is than
    that in everything.
    """
    slowdown = sheet.vector_flop_per_s / device.vector_flop_per_s
    nominal = device.slower(1 / slowdown)
    rates = {**sheet.flop_per_s, **nominal.flop_per_s}
    return dataclasses.replace(sheet, flop_per_s=rates, memory_bytes_per_s=nominal.memory_bytes_per_s), slowdown
