"""Matrix products by what the processors do: tiles in waves, reading their operands through the cache.

Of all sizes of tiles, and of all ways to split the inner dimension, the one that the model finds fastest counts; the
library that chooses does the same. A few efficiencies are fitted, by kind of product.

References:
    Osama et al., Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU,
    PPoPP 2023 (what quantisation of tiles in waves costs).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np

from alpa_dejavu.costs.latency._floors import Floors
from alpa_dejavu.costs.latency._kernels import Array, Kernels
from alpa_dejavu.costs.latency._streams import smooth_maximum

if TYPE_CHECKING:
    from alpa_dejavu.costs.fitted_format import TilesData

_TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32), (32, 32), (16, 64), (64, 16))
_SPLITS = (1, 4, 16)
_AREAS = sorted({rows * columns for rows, columns in _TILES})
_BANDWIDTH, _BALANCE = 7e11, 18.0
_LOSS, _PRIOR = 0.1, 6.0
_ROWS_OF_GPU = 300

# What is fitted, its first value, and the weight of that as a prior (0: none).
_PARAMETERS = {
    "start": (np.log(1.5e-5), 0.0),
    "sharpness": (1.0, 1.0),
    "slowdown": (0.2, 0.0),
    "of_traffic": (0.2, 2.0),
    "rounding": (1.0, 0.5),
    "of_start_k": (np.log(16), 0.5),
    "of_split": (0.0, 0.5),
    "of_bandwidth": (0.0, 10.0),
    "of_balance": (0.0, 10.0),
    "of_reads": (-1.5, 0.0),
    "of_cache": (0.1, 5.0),
    "overlap": (1.0, 1.0),
    **{f"tile_{area}": (value, 2.0) for area, value in zip(_AREAS, (0.6, 0.45, 0.3, 0.15, 0.05), strict=True)},
}
_GUESS = np.array([value for value, _ in _PARAMETERS.values()])
_WEIGHTS = np.array([weight for _, weight in _PARAMETERS.values()])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Ways:
    """The costs of tiles before any efficiency; they broadcast to shape (products, ways to cut them)."""

    waves: Array
    whole_waves: Array
    depth: Array
    area: Array
    split: Array
    cycle_s: Array
    reads_s: Array
    result_s: Array

    @classmethod
    def of(cls, kernels: Kernels) -> _Ways:
        ways = [(*tile, split) for tile in _TILES for split in _SPLITS]
        rows, columns, split = (np.array(each, dtype=np.float64)[None] for each in zip(*ways, strict=True))
        batch, m, n, k = (getattr(kernels, name)[:, None] for name in ("batch", "m", "n", "k"))
        tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
        waves = tiles * split / kernels.num_sm[:, None]
        bandwidth = kernels.bandwidth[:, None]
        return cls(
            waves=waves,
            whole_waves=np.ceil(waves),
            depth=np.ceil(k / split),
            area=rows * columns,
            split=split,
            cycle_s=(2 * kernels.num_sm / kernels.rate)[:, None],
            reads_s=4 * tiles * k * (rows + columns) / bandwidth,
            result_s=4 * batch * m * n / bandwidth,
        )


@final
class Tiles:
    """A latency model of one kind of matrix product, by the tiles that a GPU computes in waves."""

    def fit(self, kernels: Kernels, seconds: Array, floors: Floors) -> Tiles:
        """Fits the model of matrix products to measured seconds by absolute errors of logarithms, to at most 300
        kernels of each GPU; `floors` has the least seconds of each kind of kernel.
        """
        from scipy.optimize import least_squares

        rng = np.random.default_rng(0)
        of_gpu = [np.flatnonzero(kernels.gpu == gpu) for gpu in np.unique(kernels.gpu)]
        chosen = np.concatenate([rng.permutation(each)[:_ROWS_OF_GPU] for each in of_gpu])
        rows, target = kernels.take(chosen), np.log(seconds[chosen])
        floor, ways = np.log(floors.seen(rows)), _Ways.of(rows)
        self._floors = floors

        def residuals(values: Array) -> Array:
            return np.r_[_log_s(values, rows, ways, floor) - target, _LOSS * _PRIOR * _WEIGHTS * (values - _GUESS)]

        self.values_ = least_squares(residuals, _GUESS, loss="soft_l1", f_scale=_LOSS, max_nfev=20).x
        return self

    def log_seconds(self, kernels: Kernels) -> Array:
        """Returns the logarithms of the predicted seconds of matrix products on a GPU that wasn't measured."""
        return _log_s(self.values_, kernels, _Ways.of(kernels), np.log(self._floors.expected(kernels.op)))

    def state(self) -> TilesData:
        """Returns the fitted parameters of the model of matrix products by name, as JSON's types."""
        return cast("TilesData", dict(zip(_PARAMETERS, self.values_.tolist(), strict=True)))

    @classmethod
    def of_state(cls, state: TilesData, floors: Floors) -> Tiles:
        """Returns the fitted model of matrix products with the parameters in `state`, as its method `state` gives them;
        `floors` has the least seconds of each kind of kernel.
        """
        made = cls()
        by_name: Mapping[str, Any] = state
        made._floors, made.values_ = floors, np.array([by_name[name] for name in _PARAMETERS], dtype=np.float64)
        return made


def _log_s(values: Array, kernels: Kernels, ways: _Ways, floor: Array) -> Array:
    of = dict(zip(_PARAMETERS, values.tolist(), strict=True))
    rounding = 1 / (1 + np.exp(-of["rounding"]))
    waves = rounding * ways.whole_waves + (1 - rounding) * np.maximum(ways.waves, 0.3)
    slowdowns = {area: of["slowdown"] + abs(of[f"tile_{area}"]) for area in _AREAS}
    slowdown = np.exp([[slowdowns[int(area)] for area in ways.area[0]]])
    compute = waves * ways.cycle_s * ways.area * (ways.depth + np.exp(of["of_start_k"])) * slowdown
    missed = np.exp(of["of_cache"] * np.clip(np.log(kernels.moved_bytes / kernels.l2_bytes), -3, 4))
    reads = ways.reads_s * np.exp(of["of_reads"]) * missed[:, None]
    cut = np.exp(smooth_maximum(np.log(compute), np.log(reads), 1 + np.exp(min(of["overlap"], 3.0))))
    cut = cut + (ways.split > 1) * np.exp(of["of_split"]) * ways.result_s * ways.split
    fastest = np.log(cut.min(axis=1))
    fastest -= of["of_bandwidth"] * np.log(kernels.bandwidth / _BANDWIDTH)
    fastest += of["of_balance"] * np.log(kernels.rate / kernels.bandwidth / _BALANCE)
    inside = smooth_maximum(fastest, np.log(kernels.cached_traffic_s) + of["of_traffic"], 3.0)
    whole = np.logaddexp(inside, of["start"])
    return smooth_maximum(whole, floor, 1 + np.exp(min(of["sharpness"], 3.0)))
