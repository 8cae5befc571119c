"""Predictions of many at a time: operators of all layers in a few calls, sizes of a collective in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.communication import CommunicationModel, Group
from alpa_dejavu.costs.latency import Latency, LatencyModel
from alpa_dejavu.problem import Device, Operators

__all__ = ["SentSeconds", "latencies"]

_Key = tuple[str, tuple[int, ...], int]
"""Collective, hosts of the group, and groups at a time."""


def latencies(
    model: LatencyModel, many: Sequence[Operators], device: Device, at_a_time: int = 1 << 16
) -> list[Latency]:
    """Returns a latency model's prediction on a device for each of many sets of operators, in their order; sets are
    joined until they have about `at_a_time` operators, which the model then predicts in one call.
    """
    predictions: list[Latency] = []
    for part in _parts(many, at_a_time):
        whole = model.predict(Operators.joined(part), device)
        ends = np.cumsum([len(operators) for operators in part]).tolist()
        predictions += [
            Latency(whole.mean_s[start:end], whole.spread_s[start:end])
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
    return predictions


def _parts(many: Sequence[Operators], at_a_time: int) -> list[list[Operators]]:
    """Returns the sets in parts, in order, with not many more than `at_a_time` operators in each."""
    parts: list[list[Operators]] = []
    left = 0
    for operators in many:
        if left <= 0:
            parts.append([])
            left = at_a_time
        parts[-1].append(operators)
        left -= len(operators)
    return parts


@final
class SentSeconds:
    """A cache of the seconds that a communication model predicts for collectives on one cluster: each number of bytes
    is predicted once for each group of devices.
    """

    def __init__(self, model: CommunicationModel) -> None:
        self._model = model
        self._known: dict[_Key, tuple[FloatArray, FloatArray]] = {}

    def ask(self, wanted: Iterable[tuple[str, FloatArray, Group]]) -> None:
        """Predicts and caches what isn't cached yet, in one call of the model for each kind of collective and group;
        `wanted` has the names of collectives, their sizes in bytes, and their groups.
        """
        sizes: dict[_Key, list[FloatArray]] = {}
        groups: dict[_Key, Group] = {}
        for collective, num_bytes, group in wanted:
            key = collective, group.hosts, group.concurrent
            sizes.setdefault(key, []).append(num_bytes.ravel())
            groups[key] = group
        for key, parts in sizes.items():
            sizes_before, seconds = self._known.get(key, (np.zeros(0), np.zeros(0)))
            new = np.setdiff1d(np.concatenate(parts), sizes_before)
            if len(new):
                whole = np.concatenate([sizes_before, new])
                all_seconds = np.concatenate([seconds, self._model.seconds(key[0], new, groups[key])])
                order = np.argsort(whole)
                self._known[key] = whole[order], all_seconds[order]

    def seconds(self, collective: str, num_bytes: FloatArray, group: Group) -> FloatArray:
        """Returns the seconds of one collective of a group for each size in bytes, in the shape of `num_bytes`."""
        key = collective, group.hosts, group.concurrent
        seconds = self._looked_up(key, num_bytes)
        if seconds is None:
            self.ask([(collective, num_bytes, group)])
            seconds = self._looked_up(key, num_bytes)
        assert seconds is not None, "it was asked for just now"
        return seconds

    def _looked_up(self, key: _Key, num_bytes: FloatArray) -> FloatArray | None:
        if key not in self._known:
            return None if num_bytes.size else np.zeros_like(num_bytes)
        sizes, seconds = self._known[key]
        places = np.minimum(np.searchsorted(sizes, num_bytes), len(sizes) - 1)
        return seconds[places] if (sizes[places] == num_bytes).all() else None
