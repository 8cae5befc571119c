"""Forward and backward of a whole layer of a transformer on a GPU, alone or shared among GPUs of a host.

A layer's seconds are those of its products, of its traffic and of what its devices exchange, each over what the data
sheet promises, and not under those of its launches. What the framework reaches of each promise is fitted; a GPU that
was measured on other models has its own deviations, one that wasn't has none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.left_out_errors import Array, Seconds, interval_ends, left_out_errors

if TYPE_CHECKING:
    from alpa_dejavu.costs.fitted_format import LayersData, SharedLayersData

_LOSS = 0.08
_FOLDS = 6
_SHARED = {
    "floor_s": 2e-3,
    "block_products": 1.2,
    "block_traffic": 10.0,
    "block_exchange": 2.0,
    "head_products": 1.2,
    "head_traffic": 8.0,
    "head_exchange": 0.5,
    "message_s": 2e-4,
    "through_host": 2.0,
    "tensor_cores": 1.2,
}
_WEIGHTS = np.array([0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 1.0])
"""How firmly the fit for all GPUs holds the values of `_SHARED`, its first ones: programs don't exceed a data sheet."""
_TERMS = ("products", "traffic", "exchange")
# How far a GPU's own products, traffic and exchange are from all GPUs' (standard deviations of logarithms).
_DEVIATIONS = np.array([0.4, 0.15, 0.3])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """A table of transformer layers as columns of shape (layers,), with the features of one device's share of a layer
    that its latency is predicted from.

    Attributes:
        gpu: the name of the chip.
        is_head: whether it is something else than a block of attention and products: the loss, or a normalisation.
        products_s: seconds of the matrix products, forward and backward, at the data sheet's rate.
        traffic_s: seconds of writing the activations that are kept for backward once, at the memory's rate.
        exchange_s: seconds of the tensor that tensor parallelism sums, once, at the links' rate.
        messages: how many devices share the layer, less one.
        through_host: whether what devices exchange goes through the host's memory, for want of links of their own.
        tensor_cores: whether the rate is that of tensor cores, of which programs reach less.
    """

    gpu: NDArray[np.str_]
    is_head: NDArray[np.bool_]
    products_s: Array
    traffic_s: Array
    exchange_s: Array
    messages: Array
    through_host: NDArray[np.bool_]
    tensor_cores: NDArray[np.bool_]

    def take(self, index: NDArray[np.bool_]) -> Blocks:
        """Returns the table with only those of its transformer layers that a boolean mask selects."""
        return Blocks(*(getattr(self, field.name)[index] for field in dataclasses.fields(self)))

    def __len__(self) -> int:
        return len(self.gpu)


@final
class BlockModel:
    """A fitted latency model of whole transformer layers: slowdowns of matrix products, of memory traffic and of the
    exchange between tensor-parallel devices, and a least time.
    """

    def fit(self, blocks: Blocks, seconds: ArrayLike, groups: ArrayLike) -> BlockModel:
        """Fits the model of transformer layers to measured seconds; `groups` labels each layer's group (such as its
        model), and the 90 % interval is made to hold for groups that weren't seen.

        Raises:
            ValueError: seconds aren't finite and above zero.
        """
        measured = np.asarray(seconds, dtype=np.float64)
        if not (np.isfinite(measured) & (measured > 0)).all():
            raise ValueError("layers: seconds must be finite and above zero; leave out what wasn't measured")
        self._point = _Point().fit(blocks, measured)
        fold = np.unique(np.asarray(groups), return_inverse=True)[1] % _FOLDS
        errors = left_out_errors(lambda some, seconds: _Point().fit(some, seconds), blocks, measured, fold, self._point)
        self._ends = interval_ends(errors)
        return self

    def predict(self, blocks: Blocks) -> Seconds:
        """Predicts the seconds of each transformer layer with a 90 % interval, and whether its GPU was fitted."""
        return Seconds.of(self._point.log_seconds(blocks), self._ends, np.isin(blocks.gpu, self._point.gpus))

    def state(self) -> LayersData:
        """Returns the fitted model of layers as JSON's types: logarithms of slowdowns and seconds, and each GPU's
        deviations.
        """
        shared, own = self._point.values_[: len(_SHARED)].tolist(), self._point.values_[len(_SHARED) :]
        of_gpu = dict(zip(self._point.gpus, own.reshape(-1, len(_TERMS)).tolist(), strict=True))
        shared_by_name = cast("SharedLayersData", dict(zip(_SHARED, shared, strict=True)))
        return {"shared": shared_by_name, "deviations": of_gpu, "ends": self._ends.tolist()}

    @classmethod
    def of_state(cls, state: LayersData) -> BlockModel:
        """Returns the fitted model of transformer layers with the parameters in `state`, as its method `state` gives
        them.
        """
        made, own = cls(), state["deviations"]
        shared: Mapping[str, Any] = state["shared"]
        made._point, made._ends = _Point(), np.array(state["ends"], dtype=np.float64)
        made._point.gpus = sorted(own)
        deviations = (number for gpu in made._point.gpus for number in own[gpu])
        made._point.values_ = np.array([*(shared[name] for name in _SHARED), *deviations], dtype=np.float64)
        return made


@final
class _Point:
    """The means of the seconds, without their intervals."""

    def fit(self, blocks: Blocks, seconds: Array) -> _Point:
        from scipy.optimize import least_squares

        self.gpus = sorted(set(blocks.gpu.tolist()))
        target = np.log(seconds)
        own = len(_TERMS) * len(self.gpus)
        guess = np.r_[np.log(list(_SHARED.values())), np.zeros(own)]
        weights = np.r_[_WEIGHTS, np.tile(1 / _DEVIATIONS, len(self.gpus))]

        def residuals(values: Array) -> Array:
            return np.r_[self._log_s(values, blocks) - target, _LOSS * weights * (values - guess)]

        self.values_ = least_squares(residuals, guess, loss="cauchy", f_scale=_LOSS, max_nfev=40).x
        return self

    def log_seconds(self, blocks: Blocks) -> Array:
        return self._log_s(self.values_, blocks)

    def _log_s(self, values: Array, blocks: Blocks) -> Array:
        floor, *shared = values[: len(_SHARED)]
        of_layer, of_head, message = np.array(shared[:3]), np.array(shared[3:6]), shared[6]
        own = np.vstack([values[len(_SHARED) :].reshape(len(self.gpus), len(_TERMS)), np.zeros(len(_TERMS))])
        codes = [self.gpus.index(name) if name in self.gpus else len(self.gpus) for name in blocks.gpu.tolist()]
        slowdown = np.exp(np.where(blocks.is_head[:, None], of_head, of_layer) + own[codes])
        slowdown[:, 0] *= np.where(blocks.tensor_cores, np.exp(shared[8]), 1.0)
        slowdown[:, 2] *= np.where(blocks.through_host, np.exp(shared[7]), 1.0)
        parts = np.stack([blocks.products_s, blocks.traffic_s, blocks.exchange_s], axis=1) * slowdown
        work = np.log(parts.sum(axis=1) + np.exp(message) * blocks.messages)
        start = floor + np.where(blocks.is_head, -1.5, 0.0)
        return np.asarray(np.logaddexp(3 * work, 3 * start) / 3)
