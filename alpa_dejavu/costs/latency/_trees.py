"""Boosted trees on how far products are from a roofline of whole waves of tiles, by their shapes alone.

What a GPU is as a whole (its median distance, by kind of product) is taken out before the trees are grown and put back
as the median over the GPUs: trees that could tell the GPUs apart would learn them by heart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu.costs.latency._forest import Forest, rounded
from alpa_dejavu.costs.latency._kernels import Array, Kernels

if TYPE_CHECKING:
    from alpa_dejavu.costs.fitted_format import ShapesData

_TILE = 64.0
_START_S = 2.5e-5
_MOST_ROWS = 5000
_NUM_FEATURES = 20


@final
class ShapeTrees:
    """A latency model of matrix products: decision trees predict from a product's shape how many times its roofline it
    takes.
    """

    def fit(self, kernels: Kernels, seconds: Array) -> ShapeTrees:
        """Fits decision trees to the logarithms of matrix products' measured seconds over their roofline's."""
        ratio = np.log(seconds) - roofline_of_tiles(kernels)
        offsets: dict[str, list[float]] = {}
        for op in np.unique(kernels.op):
            for gpu in np.unique(kernels.gpu):
                chosen = (kernels.op == op) & (kernels.gpu == gpu)
                if chosen.any():
                    offsets.setdefault(str(op), []).append(float(np.median(ratio[chosen])))
                    ratio[chosen] -= offsets[str(op)][-1]
        self._offsets = {op: float(np.median(each)) for op, each in offsets.items()}
        chosen = np.random.default_rng(0).permutation(len(kernels))[:_MOST_ROWS]
        self._ops = sorted(offsets)
        self._trees = Forest.grown(self._features(kernels)[chosen], ratio[chosen])
        return self

    def log_seconds(self, kernels: Kernels) -> Array:
        """Returns the logarithms of the predicted seconds of matrix products, shape (kernels,)."""
        other = float(np.median(list(self._offsets.values())))
        offset = np.array([self._offsets.get(op, other) for op in kernels.op.tolist()])
        return np.asarray(roofline_of_tiles(kernels) + offset + self._trees.predict(self._features(kernels)))

    def state(self) -> ShapesData:
        """Returns the fitted model of matrix products as JSON's types: its decision trees, and for each kind of product
        the median logarithm of measured over roofline seconds.
        """
        return {"offsets": dict(self._offsets), "trees": self._trees.state()}

    @classmethod
    def of_state(cls, state: ShapesData) -> ShapeTrees:
        """Returns the fitted model of matrix products by their shapes, with the decision trees in `state`, as its
        method `state` gives them.

        Raises:
            ValueError: they aren't trees, or compare more features than products have.
        """
        made = cls()
        made._offsets = {op: float(offset) for op, offset in state["offsets"].items()}
        made._ops = sorted(made._offsets)
        made._trees = Forest.of_state(state["trees"], _NUM_FEATURES)
        return made

    def _features(self, kernels: Kernels) -> Array:
        batch, m, n, k = kernels.batch, kernels.m, kernels.n, kernels.k
        columns = [np.log(each) for each in (batch, m, n, k, batch * m * n, batch * m * n * k)]
        columns.append(np.log(kernels.flop / kernels.moved_bytes))
        for tile in (128.0, 64.0, 32.0):
            tiles = np.ceil(m / tile) * np.ceil(n / tile) * batch
            waves = tiles / kernels.num_sm
            columns += [np.log(tiles * tile**2 / (batch * m * n)), np.clip(np.log(np.ceil(waves) / waves), 0, 3)]
        columns += [(n % 4 == 0) * 1.0, (k % 4 == 0) * 1.0, (m % 4 == 0) * 1.0, n % 2, k % 2, np.log(_waves(kernels))]
        columns.append((kernels.op == self._ops[0]) * 1.0)
        return rounded(np.stack(columns, axis=1))


def _waves(kernels: Kernels) -> Array:
    tiles = np.ceil(kernels.m / _TILE) * np.ceil(kernels.n / _TILE) * kernels.batch
    return np.asarray(tiles / kernels.num_sm)


def roofline_of_tiles(kernels: Kernels) -> Array:
    """Returns the logarithms of matrix products' roofline seconds: a launch, then computing whole tiles at the
    sustained rate or moving the operands through memory, whichever takes longer.
    """
    tiles_s = np.maximum(_waves(kernels), 1) * 2 * _TILE**2 * kernels.k * kernels.num_sm / kernels.sustained
    return np.asarray(np.log(_START_S + 1.2 * np.maximum(tiles_s, kernels.cached_traffic_s)))
