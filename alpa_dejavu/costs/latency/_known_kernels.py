"""Predictions of kernels by their values: whatever runs the same kernel again, it is predicted once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol, final

import numpy as np

from alpa_dejavu.costs.latency._kernels import Array, Kernels
from alpa_dejavu.costs.left_out_errors import Seconds

_AT_A_TIME = 2048
"""Kernels that are predicted in one call: what tiles and trees need beside them then stays in a processor's cache."""
_MOST_KNOWN = 1 << 20
_Value = tuple[str, bytes]


class KernelSeconds(Protocol):
    """A predictor of the seconds of kernels: a `KernelModel`, or one that is adapted to a GPU (`AdaptedKernels`)."""

    @property
    def common_variance(self) -> Mapping[str, float]:
        """Returns for each class of kernel ("product", "rows", "map") the share of the prediction errors' variance that
        all kernels of the class have in common.
        """
        ...

    def predict(self, kernels: Kernels) -> Seconds:
        """Predicts the seconds of each kernel, independently of the other kernels in the same call."""
        ...

    def floor_s(self, kernels: Kernels) -> Array:
        """Returns the seconds of each kernel's launch, which are a part of its predicted seconds."""
        ...


@final
class KnownKernels:
    """A cache of the seconds that a model of GPU kernels predicts, so that each kernel is predicted once."""

    def __init__(self, model: KernelSeconds) -> None:
        self._model = model
        self._places: dict[_Value, int] = {}
        self._known = np.zeros((0, 5))

    def predict(self, kernels: Kernels) -> tuple[Seconds, Array]:
        """Returns the predicted seconds of each kernel, and the seconds of its launch that are a part of them; kernels
        with equal figures get one prediction, whatever the number of their GPU.
        """
        values = _values(kernels)
        new: dict[_Value, int] = {}
        for place, value in enumerate(values):
            if value not in self._places:
                new.setdefault(value, place)
        if len(self._places) + len(new) > _MOST_KNOWN:
            self._places, self._known = {}, np.zeros((0, 5))
            new = {value: place for place, value in reversed(list(enumerate(values)))}
        rows = np.array(list(new.values()), dtype=np.intp)
        starts = range(0, len(rows), _AT_A_TIME)
        parts = [self._predicted(kernels.take(rows[start : start + _AT_A_TIME])) for start in starts]
        self._places |= {value: len(self._known) + n for n, value in enumerate(new)}
        self._known = np.concatenate([self._known, *parts])
        places = np.array([self._places[value] for value in values], dtype=np.intp)
        mean, lower, upper, in_domain, floor = self._known[places].T
        return Seconds(mean, lower, upper, in_domain.astype(np.bool_)), floor

    def _predicted(self, kernels: Kernels) -> Array:
        found = self._model.predict(kernels)
        return np.stack([found.mean, found.lower, found.upper, found.in_domain, self._model.floor_s(kernels)], axis=1)


def _values(kernels: Kernels) -> list[_Value]:
    """Returns for each kernel what tells it from others: its operator and all its figures but the GPU's number."""
    names = [field.name for field in dataclasses.fields(kernels) if field.name not in ("op", "gpu")]
    sizes = np.stack([getattr(kernels, name) for name in names], axis=1)
    numbers = sizes.view(f"V{sizes.itemsize * sizes.shape[1]}").ravel().tolist()
    return list(zip(kernels.op.tolist(), numbers, strict=True))
