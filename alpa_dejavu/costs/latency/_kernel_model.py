"""Seconds of kernels on a GPU that need not have been seen: models of physics and trees, and how far off they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.latency._floors import Floors
from alpa_dejavu.costs.latency._kernels import Array, Kernels
from alpa_dejavu.costs.latency._product_models import FORMS, Form, ProductModels, weights_of_forms
from alpa_dejavu.costs.latency._streams import Streams
from alpa_dejavu.costs.latency._trees import roofline_of_tiles
from alpa_dejavu.costs.left_out_errors import Seconds, interval_ends

if TYPE_CHECKING:
    from alpa_dejavu.costs.fitted_format import KernelPartsData, KernelsData

_FOLDS = 5


@final
class KernelModel:
    """A fitted latency model of GPU kernels: products by tiles in waves and by trees, all others by their memory
    traffic.

    The two predictions of a product are averaged in logarithms, in forms that weigh by how they do on groups (GPUs, or
    kinds of kernels) that an inner fit had left out. The 90 % interval is conformal: quantiles of the errors on groups
    that were left out, by class of kernel and by whether the launch or the work decides its seconds. Neither the fit
    nor the weights of the forms that an error is of had seen its group.

    Attributes:
        left_out_errors: log(measured / predicted) of each kernel that it was fitted to, by a fit without its group.

    References:
        Varma and Simon, Bias in error estimation when using cross-validation for model selection, BMC Bioinformatics
        7:91, 2006.
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
        fold = labels % min(_FOLDS, len(np.unique(labels)))
        weights, errors = _weights_and_errors(kernels, measured, fold)
        self._point = _Point(weights).fit(kernels, measured)
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


def _weights_and_errors(kernels: Kernels, seconds: Array, fold: NDArray[np.int64]) -> tuple[dict[Form, float], Array]:
    """Returns the weights of the forms by their errors on folds left out, and each kernel's error, left out, by the
    weights that are found without its fold.
    """
    folds, product = np.unique(fold).tolist(), kernels.kind == "product"
    by_form, losses = np.zeros((len(kernels), len(FORMS))), {}
    if len(folds) > 1:
        for held in folds:
            out = fold == held
            inner = _Point(dict.fromkeys(FORMS, 1 / len(FORMS))).fit(kernels.take(~out), seconds[~out])
            by_form[out] = np.log(seconds[out])[:, None] - inner.by_form(kernels.take(out))
            if (out & product).any():
                losses[held] = np.abs(by_form[out & product]).mean(axis=0)
    errors = np.zeros(len(kernels))
    for held in folds:
        without = weights_of_forms([loss for other, loss in losses.items() if other != held])
        errors[fold == held] = by_form[fold == held] @ np.array([without.get(form, 0.0) for form in FORMS])
    return weights_of_forms(list(losses.values())), errors


def _common(errors: Array, labels: NDArray[np.int64]) -> float:
    """The share of errors' variance (around zero) that is common to a group."""
    whole = float((errors**2).mean())
    means = np.array([errors[labels == label].mean() for label in np.unique(labels)])
    return float(np.clip((means**2).mean() / whole, 0.0, 1.0)) if whole > 0 else 0.0


@final
class _Point:
    """The models of all classes, without an interval. Of a class that it wasn't fitted on it knows the roofline."""

    def __init__(self, weights: Mapping[Form, float]) -> None:
        self._weights = dict(weights)

    def fit(self, kernels: Kernels, seconds: Array) -> _Point:
        self.floors = Floors.fit(kernels, seconds)
        self.ops = sorted(set(kernels.op.tolist()))
        self._streams = {}
        kind = kernels.kind
        for name in ("map", "rows"):
            chosen = kind == name
            if chosen.any():
                self._streams[name] = Streams().fit(kernels.take(chosen), seconds[chosen], self.floors)
        products = kind == "product"
        self._products = None
        if products.any():
            self._products = ProductModels(self._weights).fit(kernels.take(products), seconds[products], self.floors)
        return self

    def log_seconds(self, kernels: Kernels) -> Array:
        return self.by_form(kernels) @ np.array(list(self._weights.values()))

    def by_form(self, kernels: Kernels) -> Array:
        """By each form of products, which are all the same for other kernels, shape (kernels, forms)."""
        result = np.zeros((len(kernels), len(self._weights)))
        kind = kernels.kind
        for name in np.unique(kind).tolist():
            chosen = kind == name
            part = kernels.take(chosen)
            if name == "product" and self._products is not None:
                result[chosen] = self._products.by_form(part)
            else:
                result[chosen] = self._streamed(name, part)[:, None]
        return result

    def _streamed(self, name: str, kernels: Kernels) -> Array:
        if name == "product":
            return roofline_of_tiles(kernels)
        known = self._streams.get(name) or next(iter(self._streams.values()), None)
        return np.log(self.floors.other + kernels.traffic_s) if known is None else known.log_seconds(kernels)

    def state(self) -> KernelPartsData:
        return {
            "ops": self.ops,
            "floors": self.floors.state(),
            "streams": {name: each.state() for name, each in self._streams.items()},
            "products": None if self._products is None else self._products.state(),
        }

    @classmethod
    def of_state(cls, state: KernelPartsData) -> _Point:
        products, floors = state["products"], Floors.of_state(state["floors"])
        found = None if products is None else ProductModels.of_state(products, floors)
        made = cls(weights_of_forms([]) if found is None else found.weights)
        made.ops, made.floors, made._products = list(state["ops"]), floors, found
        made._streams = {name: Streams.of_state(each, made.floors) for name, each in state["streams"].items()}
        return made
