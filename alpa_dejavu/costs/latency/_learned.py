"""Learned kernels as a latency model of the planner: operators are looked at as the kernels that they are like."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.costs.latency._adapted import AdaptedKernels
from alpa_dejavu.costs.latency._analytic import AnalyticLatency
from alpa_dejavu.costs.latency._base import Latency, LatencyModel
from alpa_dejavu.costs.latency._kernels import Array, DataSheet
from alpa_dejavu.costs.latency._known_kernels import KernelSeconds, KnownKernels
from alpa_dejavu.costs.latency._operator_kernels import DistinctKernels, OperatorKernels
from alpa_dejavu.costs.latency._products import ProductCurve
from alpa_dejavu.problem import Device, Operators

UNMEASURED_KIND = (0.48, 0.29)
"""The spread of products of a kind that no model was fitted to, as convolutions are: standard deviations of the
logarithm of measured over predicted seconds, in common on a GPU and of a kernel's own, for linear layers by a model
without them and batched products likewise. `benchmarks/default_spreads.py` prints it."""
UNMEASURED_DTYPE = 0.31
"""The spread that is added where products run on tensor cores whose products weren't measured: of products in half
precision on V100 by a model of single precision and the rates of both. The same benchmark prints it."""
_UNKNOWN = 0.5
"""The spread, as a share of the roofline, on a device that has no data sheet."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LearnedLatency(LatencyModel):
    """A latency model of operators by a fitted model of GPU kernels, for devices whose data sheet is known by their
    name; the roofline for all others.

    The rates of products and of memory are the device's, not the sheet's; a device that is slower in everything takes
    longer for everything. Compiled programs start a kernel in `Device.kernel_s`, which replaces the launch that the
    kernel model learned (one from Python). No operator is predicted to take less than its roofline. A kernel is
    predicted once, in however many layers it is.

    A convolution is predicted as the matrix product that it is once its patches are unfolded. None was measured, so its
    spread is that of a kind of product that was left out of a fit. Spreads are wider, too, for products on tensor cores
    of a device whose products weren't measured.

    Attributes:
        model: a fitted `KernelModel`, or an `AdaptedKernels`: then `sheets` has only the GPU that it is adapted to.
        sheets: the data sheets of GPUs, by the names of devices.
        products: by the name of a device, then of a dtype: how the seconds of matrix products measured on the device
            differ from what the kernel model says.

    Raises ValueError for an `AdaptedKernels` with more than one sheet.
    """

    model: KernelSeconds
    sheets: Mapping[str, DataSheet]
    products: Mapping[str, Mapping[str, ProductCurve]] = dataclasses.field(default_factory=dict)
    _kernels: OperatorKernels = dataclasses.field(default_factory=OperatorKernels, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.model, AdaptedKernels) and len(self.sheets) > 1:
            raise ValueError(f"learned latency: the model is adapted to one GPU, but sheets has {sorted(self.sheets)}")

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Returns the predicted mean seconds of each operator on a device, and their standard deviation (spread)."""
        floor = AnalyticLatency().predict(operators, device).mean_s
        if device.name not in self.sheets or not len(operators):
            return Latency(floor, _UNKNOWN * floor)
        kernels, slowdown = self._kernels_of(operators, device)
        seconds, launch_s = self._known.predict(kernels.divided)
        work = np.maximum(seconds.mean - launch_s, 0.0)
        # Divided work may fall on a worse shape of tiles, but the division that a library makes isn't slower than none.
        cut = np.flatnonzero(kernels.divided.flop < kernels.whole.flop)
        undivided, launch_s = self._known.predict(kernels.whole.take(cut))
        work[cut] = np.minimum(work[cut], np.maximum(undivided.mean - launch_s, 0.0))
        work *= self._own_products(operators, device, kernels) * slowdown
        relative = ((seconds.upper - seconds.lower) / seconds.mean / (2 * REACH_90))[kernels.of_operators]
        further = np.where(self._on_unmeasured_cores(operators, device), UNMEASURED_DTYPE, 0.0)
        spread = np.hypot(np.log1p(relative), further)
        spread = np.where(_is_convolution(operators), np.maximum(spread, np.hypot(*UNMEASURED_KIND)), spread)
        starts = operators.written_bytes > 0
        once = np.where(starts, work[kernels.of_operators], 0.0) * operators.count
        mean = np.maximum(once + device.kernel_s * operators.count * starts, floor)
        return Latency(mean, mean * np.expm1(spread))

    def in_domain(self, operators: Operators, device: Device) -> NDArray[np.bool_]:
        """Returns whether each operator, on this device, is like what the model was fitted to, shape (operators,)."""
        if device.name not in self.sheets or not len(operators):
            return np.zeros(len(operators), dtype=np.bool_)
        kernels, _ = self._kernels_of(operators, device)
        return self._known.predict(kernels.divided)[0].in_domain[kernels.of_operators]

    def draws(self, operators: Operators, device: Device, count: int, rng: np.random.Generator) -> Array:
        """Draws random seconds of all operators on a device, with correlated errors, `count` times; shape (count,
        operators).

        Operators of one class on one device err together: of the variance of the logarithm the share that the fit
        found to be common to a group is drawn once for each class, the rest for each operator.
        """
        predicted = self.predict(operators, device)
        sigma = np.log1p(_relative(predicted))
        if device.name in self.sheets and len(operators):
            kernels, _ = self._kernels_of(operators, device)
            kinds = kernels.divided.kind[kernels.of_operators]
        else:
            kinds = np.full(len(operators), "map")
        names, codes = np.unique(kinds, return_inverse=True)
        common = np.array([self.model.common_variance.get(str(name), 1.0) for name in names])
        together = rng.standard_normal((count, len(names)))[:, codes]
        alone = rng.standard_normal((count, len(operators)))
        error = np.sqrt(common[codes]) * together + np.sqrt(1 - common[codes]) * alone
        return np.asarray(predicted.mean_s * np.exp(sigma * error))

    def common_share(self, operators: Operators, device: Device) -> Array:
        """Returns for each operator, on this device, the share of the variance of its latency error that all operators
        of its class (matrix products, or all others) have in common, shape (operators,).
        """
        share = np.array([self.model.common_variance.get(name, 1.0) for name in ("map", "product")])
        found = share[operators.is_product.astype(int)]
        # The products of a model are of much the same sizes, so that a rate that isn't known is the same for all.
        sigma = np.log1p(_relative(self.predict(operators, device)))
        cores = self._on_unmeasured_cores(operators, device)
        further = np.divide(UNMEASURED_DTYPE**2, sigma**2, out=np.zeros_like(sigma), where=cores & (sigma > 0))
        found = np.where(cores, further + (1 - further) * found, found)
        common, own = UNMEASURED_KIND
        return np.where(_is_convolution(operators), common**2 / (common**2 + own**2), found)

    def footing(self, operators: Operators, device: Device) -> NDArray[np.str_]:
        """Returns in a few words what the prediction of each operator on a device rests on, shape (operators,)."""
        if device.name not in self.sheets:
            return np.full(len(operators), "data sheet")
        found = np.full(len(operators), "learned", dtype="<U64")
        measured = operators.is_product & np.isin(operators.dtype, list(self.products.get(device.name, {})))
        found[measured] = "measured"
        found[self._on_unmeasured_cores(operators, device)] = "learned in single precision"
        found[_is_convolution(operators)] = "learned of matrix products"
        return found

    def _on_unmeasured_cores(self, operators: Operators, device: Device) -> NDArray[np.bool_]:
        """Returns which operators are products at a higher rate than that of the device's other units, in a dtype in
        which no product was measured there.
        """
        fast = [
            dtype
            for dtype in device.flop_per_s
            if device.rate(dtype) > 1.5 * device.vector_flop_per_s and dtype not in self.products.get(device.name, {})
        ]
        return operators.is_product & np.isin(operators.dtype, fast)

    @cached_property
    def _known(self) -> KnownKernels:
        return KnownKernels(self.model)

    def _kernels_of(self, operators: Operators, device: Device) -> tuple[DistinctKernels, float]:
        """Returns the kernels that operators run on the device as its data sheet has it, and how many times slower the
        device is.
        """
        sheet = self.sheets[device.name]
        slowdown = sheet.flop_per_s / device.vector_flop_per_s
        nominal = device.slower(1 / slowdown)
        own = dataclasses.replace(sheet, memory_bytes_per_s=nominal.memory_bytes_per_s)
        return self._kernels.of(operators, nominal, own), slowdown

    def _own_products(self, operators: Operators, device: Device, kernels: DistinctKernels) -> Array:
        """Returns the factor on each kernel's seconds: that of the device's own products, 1 for all other kernels."""
        factor = np.ones(len(kernels.first))
        product, dtype = kernels.divided.kind == "product", operators.dtype[kernels.first]
        for name, curve in self.products.get(device.name, {}).items():
            chosen = product & (dtype == name)
            factor[chosen] = curve.factor(np.maximum(operators.flop[kernels.first[chosen]], 1.0))
        return factor


def _is_convolution(operators: Operators) -> NDArray[np.bool_]:
    return np.array([record.kind == "conv" for record in operators.records], dtype=np.bool_)


def _relative(latency: Latency) -> Array:
    return np.divide(latency.spread_s, latency.mean_s, out=np.zeros_like(latency.mean_s), where=latency.mean_s > 0)
