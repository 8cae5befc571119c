"""Pairs of published steps on unlike GPUs: how often the order that `compare` tells is the measured one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.planning.search.uncertainty import CLASSES, ON_ANY_GPU
from published._jobs import Job

__all__ = ["orders_of_pairs"]

_SURE = 0.9
_ENDS = {"ours": ("lower", "upper"), "sheets": ("sheets_lower", "sheets_upper")}


def orders_of_pairs(jobs: Sequence[Job], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns for each way to reckon the number of pairs of one model by one framework on unlike GPUs, for equally many
    devices; the share whose predicted order is the measured one; how many are told, with 90 %; and their share.

    Errors are normal in their logarithms by each prediction's own interval, and have in common what frameworks are off.
    """
    pairs = [
        (first, second)
        for first, second in itertools.combinations(range(len(jobs)), 2)
        if jobs[first].gpu.name != jobs[second].gpu.name
        and (jobs[first].size, rows[first]["runtime"]) == (jobs[second].size, rows[second]["runtime"])
    ]
    judged: dict[str, list[tuple[float, bool]]] = {}
    for pair in pairs:
        both = [_Side(jobs[n], rows[n]) for n in pair]
        sooner = both[0].seconds("measured_s") < both[1].seconds("measured_s")
        for of, share, is_first in _reckoned(*both):
            judged.setdefault(of, []).append((share, is_first == sooner))
    return [{"of": of, **_shares(found)} for of, found in judged.items()]


class _Side:
    """A step with its predictions, for one sample and one device."""

    def __init__(self, job: Job, row: Mapping[str, Any]) -> None:
        self._row, self._each = row, job.cluster.num_devices / job.batch
        self._common = ON_ANY_GPU[CLASSES.index("runtime")] * (job.runtime.spread or 0.0) ** 2

    def seconds(self, name: str) -> float:
        return float(self._row[name]) * self._each

    def own_variance(self, ground: str) -> float:
        low, high = (self._row[name] for name in _ENDS[ground])
        return (math.log(high / low) / (2 * REACH_90)) ** 2 - self._common


def _reckoned(a: _Side, b: _Side) -> Iterator[tuple[str, float, bool]]:
    """Yields each way to reckon, how probable it finds the first step to be the shorter one, and if it ranks it so."""

    def before(of_a: str, of_b: str) -> float:
        spread = math.sqrt(a.own_variance(of_a) + b.own_variance(of_b))
        return NormalDist().cdf(math.log(b.seconds(of_b) / a.seconds(of_a)) / spread)

    both = before("ours", "ours")
    yield "both by models of kernels", both, both > 0.5
    alike = before("sheets", "sheets")
    for unlike in (before("sheets", "ours"), before("ours", "sheets")):
        yield "one by its data sheet as if alike", unlike, unlike > 0.5
        yield "one by its data sheet on both grounds", sorted((unlike, alike, 0.5))[1], alike > 0.5


def _shares(found: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    told = [right for share, right in found if max(share, 1 - share) >= _SURE]
    return {
        "pairs": len(found), "holds": sum(right for _, right in found) / len(found), "told": len(told),
        "told_holds": sum(told) / len(told) if told else None,
    }  # fmt: skip
