"""Boosted trees on how far products are from a roofline of whole waves of tiles, by their shapes and by the GPU.

How far a GPU is as a whole (its median distance, by kind of product) is taken out before the trees are grown. On a GPU
that wasn't seen it is what GPUs of its generation are off, told by the size of their transistors, as a Gaussian process
says: the mean of all GPUs where none is alike.

References:
    Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 2.7 (a process around a mean).
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
_ALIKE = 0.5
"""How far apart, in logarithms of the transistors' size, GPUs are alike: a generation is a step of 0.3 to 0.6."""


@final
class ShapeTrees:
    """A latency model of matrix products: decision trees predict from a product's shape how many times its roofline it
    takes.

    Args:
        of_gpu: whether the trees may look at the GPU, too: at its transistors' size, and at its operations for a byte.
    """

    def __init__(self, of_gpu: bool = False) -> None:
        self._of_gpu = of_gpu

    def fit(self, kernels: Kernels, seconds: Array) -> ShapeTrees:
        """Fits decision trees to the logarithms of matrix products' measured seconds over their roofline's."""
        ratio = np.log(seconds) - roofline_of_tiles(kernels)
        self._offsets: dict[str, list[tuple[float, float]]] = {}
        for op in np.unique(kernels.op):
            for gpu in np.unique(kernels.gpu):
                chosen = (kernels.op == op) & (kernels.gpu == gpu)
                if chosen.any():
                    offset = float(np.median(ratio[chosen]))
                    self._offsets.setdefault(str(op), []).append((float(kernels.process_nm[chosen][0]), offset))
                    ratio[chosen] -= offset
        chosen = np.random.default_rng(0).permutation(len(kernels))[:_MOST_ROWS]
        self._ops = sorted(self._offsets)
        self._trees = Forest.grown(self._features(kernels)[chosen], ratio[chosen])
        return self

    def log_seconds(self, kernels: Kernels) -> Array:
        """Returns the logarithms of the predicted seconds of matrix products, shape (kernels,), without the offset of
        their GPU.
        """
        return np.asarray(roofline_of_tiles(kernels) + self._trees.predict(self._features(kernels)))

    def offset(self, kernels: Kernels, likeness: float) -> Array:
        """Returns for each product how far (in logarithms) its GPU is expected to be from the roofline as a whole.

        `likeness` is the variance of how far GPUs of a generation are off in common, over that of how far each is off
        besides: 0 takes all generations for equal.
        """
        result = np.zeros(len(kernels))
        for process in np.unique(kernels.process_nm).tolist():
            chosen = kernels.process_nm == process
            found = {op: _of_generation(each, process, likeness) for op, each in self._offsets.items()}
            other = float(np.median(list(found.values())))
            result[chosen] = [found.get(op, other) for op in kernels.op[chosen].tolist()]
        return result

    def state(self) -> ShapesData:
        """Returns the fitted model of matrix products as JSON's types: its decision trees, and for each kind of product
        of each GPU the size of the transistors and the median logarithm of measured over roofline seconds.
        """
        offsets = {op: [list(each) for each in of_gpus] for op, of_gpus in self._offsets.items()}
        return {"of_gpu": self._of_gpu, "offsets": offsets, "trees": self._trees.state()}

    @classmethod
    def of_state(cls, state: ShapesData) -> ShapeTrees:
        """Returns the fitted model of matrix products by their shapes, with the decision trees in `state`, as its
        method `state` gives them.

        Raises:
            ValueError: they aren't trees, or compare more features than products have.
        """
        made = cls(state["of_gpu"])
        made._offsets = {op: [(of[0], of[1]) for of in of_gpus] for op, of_gpus in state["offsets"].items()}
        made._ops = sorted(made._offsets)
        made._trees = Forest.of_state(state["trees"], _NUM_FEATURES + 2 * made._of_gpu)
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
        if self._of_gpu:
            sizes = [process for of_gpus in self._offsets.values() for process, _ in of_gpus if process > 0]
            usual = float(np.exp(np.mean(np.log(sizes)))) if sizes else 1.0
            process = np.where(kernels.process_nm > 0, kernels.process_nm, usual)
            columns += [np.log(process), np.log(kernels.rate / kernels.bandwidth)]
        return rounded(np.stack(columns, axis=1))


def _of_generation(of_gpus: list[tuple[float, float]], process: float, likeness: float) -> float:
    """Returns the offset that is expected of a GPU with transistors of this size (0: unknown) by those of others."""
    sizes, offsets = (np.array(each) for each in zip(*of_gpus, strict=True))
    within = np.linalg.inv(likeness * _alike(sizes[:, None], sizes) + np.eye(len(sizes)))
    mean = (within @ offsets).sum() / within.sum()
    return float(mean + likeness * _alike(process, sizes) @ within @ (offsets - mean))


def _alike(first: Array | float, second: Array) -> Array:
    known = (first > 0) & (second > 0)
    apart = np.log(np.where(known, first, 1.0) / np.where(known, second, 1.0)) / _ALIKE
    return np.asarray(known * np.exp(-(apart**2) / 2))


def _waves(kernels: Kernels) -> Array:
    tiles = np.ceil(kernels.m / _TILE) * np.ceil(kernels.n / _TILE) * kernels.batch
    return np.asarray(tiles / kernels.num_sm)


def roofline_of_tiles(kernels: Kernels) -> Array:
    """Returns the logarithms of matrix products' roofline seconds: a launch, then computing whole tiles at the
    sustained rate or moving the operands through memory, whichever takes longer.
    """
    tiles_s = np.maximum(_waves(kernels), 1) * 2 * _TILE**2 * kernels.k * kernels.num_sm / kernels.sustained
    return np.asarray(np.log(_START_S + 1.2 * np.maximum(tiles_s, kernels.cached_traffic_s)))
