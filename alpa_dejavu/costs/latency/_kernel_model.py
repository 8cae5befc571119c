"""Seconds of kernels on a GPU that need not have been seen: models of physics and trees, and how far off they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.latency._floors import Floors
from alpa_dejavu.costs.latency._kernels import Array, Kernels
from alpa_dejavu.costs.latency._streams import Streams
from alpa_dejavu.costs.latency._tiles import Tiles
from alpa_dejavu.costs.latency._trees import ShapeTrees, roofline_of_tiles
from alpa_dejavu.costs.left_out_errors import Seconds, interval_ends, left_out_errors

if TYPE_CHECKING:
    from alpa_dejavu.costs.fitted_format import KernelPartsData, KernelsData

_FOLDS = 4


@final
class KernelModel:
    """A fitted latency model of GPU kernels: products by tiles in waves and by trees, all others by their memory
    traffic.

    The two predictions of a product are averaged in logarithms. The 90 % interval is conformal: quantiles of the errors
    on groups (GPUs, or kinds of kernels) that an inner fit had left out, by class of kernel and by whether the launch
    or the work decides its seconds.

    Attributes:
        left_out_errors: log(measured / predicted) of each kernel that it was fitted to, by a fit without its group.
    """

    def fit(self, kernels: Kernels, seconds: ArrayLike, groups: ArrayLike | None = None) -> KernelModel:
        """Fits the kernel model to measured seconds; `groups` labels each kernel's group (None: its GPU), and the 90 %
        interval is made to hold for groups that weren't seen.

        Raises:
            ValueError: seconds aren't finite and above zero.
        """
        measured = np.asarray(seconds, dtype=np.float64)
        if measured.shape != (len(kernels),) or not (np.isfinite(measured) & (measured > 0)).all():
            raise ValueError(f"kernels: seconds must be {len(kernels)} finite numbers above zero; leave out what isn't")
        labels = kernels.gpu if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
        self._point = _Point().fit(kernels, measured)
        fold = labels % min(_FOLDS, len(np.unique(labels)))
        errors = left_out_errors(lambda some, seconds: _Point().fit(some, seconds), kernels, measured, fold)
        self.left_out_errors = errors
        regime = self._regime(kernels, self._point.log_seconds(kernels))
        self._ends = {name: interval_ends(errors[regime == name]) for name in np.unique(regime).tolist()}
        self._widest = interval_ends(errors)
        self.common_variance = {
            name: _common(errors[kernels.kind == name], labels[kernels.kind == name])
            for name in np.unique(kernels.kind).tolist()
        }
        self._most_s = float(np.maximum(kernels.compute_s, kernels.traffic_s).max())
        return self

    def predict(self, kernels: Kernels) -> Seconds:
        """Predicts the seconds of each kernel with a 90 % interval, and whether its kind and work are like the fitted
        ones.
        """
        log_s = self._point.log_seconds(kernels)
        ends = np.array([self._ends.get(name, self._widest) for name in self._regime(kernels, log_s).tolist()])
        known = np.isin(kernels.op, self._point.ops)
        work = np.maximum(kernels.compute_s, kernels.traffic_s)
        inside = known & (work <= 2 * self._most_s)
        return Seconds.of(log_s, ends.reshape(-1, 2), inside)

    def floor_s(self, kernels: Kernels) -> Array:
        """Returns the seconds of each kernel's launch, which are a part of its predicted seconds."""
        return self._point.floors.expected(kernels.op)

    @property
    def ops(self) -> tuple[str, ...]:
        """Returns the names of the kinds of GPU kernels that the model was fitted to, such as "softmax"."""
        return tuple(self._point.ops)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Returns the two ends of the 90 % interval of a kernel's actual seconds, as factors on the predicted ones, by
        class of kernel and by what decides its seconds (launch or work), such as "product work".
        """
        return {name: (float(np.exp(low)), float(np.exp(high))) for name, (low, high) in self._ends.items()}

    def state(self) -> KernelsData:
        """Returns the fitted kernel model as JSON's types, without the measurements."""
        return {
            "models": self._point.state(),
            "ends": {name: ends.tolist() for name, ends in self._ends.items()},
            "widest": self._widest.tolist(),
            "common_variance": dict(self.common_variance),
            "most_s": self._most_s,
        }

    @classmethod
    def of_state(cls, state: KernelsData) -> KernelModel:
        """Returns the fitted kernel model with the parameters in `state`, as its method `state` gives them.

        Raises:
            ValueError: parts of the model don't fit each other; says which.
        """
        made = cls()
        made._point = _Point.of_state(state["models"])
        made._ends = {name: np.array(ends, dtype=np.float64) for name, ends in state["ends"].items()}
        made._widest = np.array(state["widest"], dtype=np.float64)
        made.common_variance = {name: float(share) for name, share in state["common_variance"].items()}
        made._most_s = float(state["most_s"])
        return made

    def _regime(self, kernels: Kernels, log_s: Array) -> NDArray[np.str_]:
        floor = self._point.floors.expected(kernels.op)
        short = np.exp(log_s) < 1.2 * floor
        return np.char.add(kernels.kind, np.where(short, " launch", " work"))


def _common(errors: Array, labels: NDArray[np.int64]) -> float:
    """The share of errors' variance (around zero) that is common to a group."""
    whole = float((errors**2).mean())
    means = np.array([errors[labels == label].mean() for label in np.unique(labels)])
    return float(np.clip((means**2).mean() / whole, 0.0, 1.0)) if whole > 0 else 0.0


@final
class _Point:
    """The models of all classes, without an interval. Of a class that it wasn't fitted on it knows the roofline."""

    def fit(self, kernels: Kernels, seconds: Array) -> _Point:
        self.floors = Floors.fit(kernels, seconds)
        self.ops = sorted(set(kernels.op.tolist()))
        self._streams, self._tiles = {}, {}
        kind = kernels.kind
        for name in ("map", "rows"):
            chosen = kind == name
            if chosen.any():
                self._streams[name] = Streams().fit(kernels.take(chosen), seconds[chosen], self.floors)
        products = kind == "product"
        for op in np.unique(kernels.op[products]).tolist():
            chosen = kernels.op == op
            self._tiles[op] = Tiles().fit(kernels.take(chosen), seconds[chosen], self.floors)
        self._trees = ShapeTrees().fit(kernels.take(products), seconds[products]) if products.any() else None
        return self

    def log_seconds(self, kernels: Kernels) -> Array:
        result = np.zeros(len(kernels))
        kind = kernels.kind
        for name in np.unique(kind).tolist():
            chosen = kind == name
            part = kernels.take(chosen)
            if name == "product":
                result[chosen] = self._products(part)
                continue
            known = self._streams.get(name) or next(iter(self._streams.values()), None)
            result[chosen] = np.log(self.floors.other + part.traffic_s) if known is None else known.log_seconds(part)
        return result

    def state(self) -> KernelPartsData:
        return {
            "ops": self.ops,
            "floors": self.floors.state(),
            "streams": {name: each.state() for name, each in self._streams.items()},
            "tiles": {op: each.state() for op, each in self._tiles.items()},
            "shapes": None if self._trees is None else self._trees.state(),
        }

    @classmethod
    def of_state(cls, state: KernelPartsData) -> _Point:
        made = cls()
        made.ops, made.floors = list(state["ops"]), Floors.of_state(state["floors"])
        made._streams = {name: Streams.of_state(each, made.floors) for name, each in state["streams"].items()}
        made._tiles = {op: Tiles.of_state(each, made.floors) for op, each in state["tiles"].items()}
        shapes = state.get("shapes")
        made._trees = None if shapes is None else ShapeTrees.of_state(shapes)
        if (made._trees is None) == bool(made._tiles):
            found = f"{len(made._tiles)} kinds of tiles and {'no' if shapes is None else 'some'} shapes"
            raise ValueError(f"models has {found}, but must have both, or neither")
        return made

    def _products(self, kernels: Kernels) -> Array:
        if self._trees is None:
            return roofline_of_tiles(kernels)
        result = np.zeros(len(kernels))
        for op in np.unique(kernels.op).tolist():
            chosen = kernels.op == op
            part = kernels.take(chosen)
            tiles = [self._tiles[op]] if op in self._tiles else list(self._tiles.values())
            result[chosen] = np.mean([each.log_seconds(part) for each in tiles], axis=0)
        return (result + self._trees.log_seconds(kernels)) / 2
