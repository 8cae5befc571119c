"""Predictions of many operators at a time: those of all layers on all meshes in a few calls of a latency model."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu.costs.latency import Latency
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.problem import Device, Operators

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_AT_A_TIME = 1 << 18
"""Sets of operators are joined until they have about so many, which a latency model then predicts in one call."""


@final
class PredictedOperators:
    """A cache of the seconds that a latency model and a runtime predict for sets of operators on one device; alike
    layers share one set, which is predicted once.
    """

    def __init__(self, models: CostModels, device: Device) -> None:
        # Not the models, which would be in use then
        self._latency, self._runtime, self._device = models.latency, models.runtime, device
        self._numbers: dict[int, int] = {}
        self._sets: list[Operators] = []  # kept, so that their ids stay theirs
        self._latencies: list[Latency] = []
        self._totals_s: Float[np.ndarray, " sets"] = np.zeros(0)

    def ask(self, sets: Iterable[Operators]) -> None:
        """Predicts and caches the seconds of sets of operators that aren't cached yet, in a few large calls."""
        listed = list(sets)
        different = dict(zip(map(id, listed), listed, strict=True))
        for part in _batches([operators for key, operators in different.items() if key not in self._numbers]):
            joined = Operators.joined(part)
            ends = np.cumsum([len(operators) for operators in part])
            latency = self._runtime.latency(self._latency.predict(joined, self._device), joined, ends)
            of_sets = np.repeat(np.arange(len(part)), np.diff(ends, prepend=0))
            totals_s = np.bincount(of_sets, weights=latency.mean_s, minlength=len(part))
            self._totals_s = np.concatenate([self._totals_s, totals_s])
            self._numbers.update((id(operators), len(self._sets) + n) for n, operators in enumerate(part))
            self._sets += part
            of_parts = zip(*(np.split(values, ends[:-1]) for values in (latency.mean_s, latency.spread_s)), strict=True)
            self._latencies += [Latency(*seconds) for seconds in of_parts]

    def numbers(self, sets: Sequence[Operators]) -> Int[np.ndarray, " sets"]:
        """Returns the places among all sets of operators that were asked for, to which these belong from now on."""
        keys = list(map(id, sets))
        if not self._numbers.keys() >= set(keys):
            self.ask(sets)
        return np.fromiter(map(self._numbers.__getitem__, keys), np.intp, len(keys))

    def totals_s(self, sets: Sequence[Operators]) -> Float[np.ndarray, " sets"]:
        """Returns the seconds of each set's operators, one after the other."""
        numbers = self.numbers(sets)
        return self._totals_s[numbers]

    def latency(self, operators: Operators) -> Latency:
        """Returns the latency of each operator of a set."""
        return self._latencies[int(self.numbers([operators])[0])]


_PREDICTED: dict[int, dict[Device, PredictedOperators]] = {}


def predicted_operators(models: CostModels, device: Device) -> PredictedOperators:
    """Returns what cost models predict on a device: the same cache for as long as they are in use."""
    key = id(models)
    if key not in _PREDICTED:
        weakref.finalize(models, _PREDICTED.pop, key)
        _PREDICTED[key] = {}
    return _PREDICTED[key].setdefault(device, PredictedOperators(models, device))


def _batches(sets: Sequence[Operators]) -> Iterator[list[Operators]]:
    """Yields sets of operators in order, together as many as are predicted at a time, or one more."""
    part, left = list[Operators](), _AT_A_TIME
    for operators in sets:
        part.append(operators)
        left -= len(operators)
        if left <= 0:
            yield part
            part, left = [], _AT_A_TIME
    if part:
        yield part
