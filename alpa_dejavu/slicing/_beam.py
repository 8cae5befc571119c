"""The placed search for one bound on the stages' costs: from the first layer on, the most promising beginnings.

A beginning is known by the resources that it has used and the group of its last stage. What the rest costs at least is
known from a relaxation. One that costs no more than another, and leaves as much of everything, makes the other one
needless. While there are no more beginnings than the beam is wide, none is lost and the search is exact; of those that
are lost the least bound is kept, so that the answer says what they may have been worth. The same goes for what is left
where a beam is stopped because it has worked enough.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.slicing._branch import ROUNDING, BoundedAnswer
from alpa_dejavu.slicing._choices import Choices, FloatArray, IntArray
from alpa_dejavu.slicing._relaxed import ENTRIES, PricedBound

PENDING = 64
"""From the beginnings at a layer at most so many new ones are made for each place in the beam."""
PAIRS, LAYER = 100, 20
"""So many pairs of a beginning and a next stage, or of two beginnings, are compared in the time in which ten beginnings
are made; and so many are made in that of a layer without any."""
_MOST_WIDTH = 2**40


@final
class Beam:
    """A beam search for the cheapest slicing, layer by layer, which keeps only the most promising partial slicings.

    `work` counts the partial slicings that were made, and what takes as long.

    Args:
        choices: the stages to choose from.
        bound: the most seconds that a stage may cost.
        prices: a relaxation's lower bounds, by which partial slicings are compared.
        below: only slicings whose stages' weights have a sum below it are looked for.
        width: how many partial slicings are kept at each layer.
        most: the search stops at about so much work.
    """

    def __init__(
        self, choices: Choices, bound: float, prices: PricedBound, below: float, width: int, most: float = math.inf
    ) -> None:
        self._choices, self._bound, self._prices, self._below = choices, bound, prices, below
        self._width, self._most = min(width, _MOST_WIDTH), most
        self.work = 0.0

    def run(self) -> BoundedAnswer:
        """Returns a lower bound on the summed stage weights of any slicing within the bound on stages (`below` at
        most), and the slicing with the least sum that was found; () if none was.
        """
        choices, prices = self._choices, self._prices
        below = self._below * (1 - ROUNDING) if math.isfinite(self._below) else self._below
        ends = np.arange(choices.num_layers) + choices.reach(self._bound)
        farthest = choices.crossing_s.max(axis=2) if choices.both_wait else np.zeros(choices.crossing_s.shape[:2])
        least, lost, self.work, stages = _searched(
            choices.costs_s, choices.weights, choices.followers, choices.crossing_s, choices.crossing_weights,
            choices.uses, choices.available, choices.exact, choices.group, choices.as_near, choices.onward_s, farthest,
            prices.rest, prices.then, ends, prices.value, self._bound, below, self._width, float(self._most),
        )  # fmt: skip
        if not len(stages):
            return min(self._below, lost), ()
        return min(least, lost), tuple(choices.stage(*stage) for stage in stages.tolist())


_GROUP, _MAY_FOLLOW, _LAYER, _BEFORE, _CLASS, _WAY, _NEXT = range(7)
"""Facts of a partial slicing: the group of its last stage; how many stages may follow for memory's sake; the layer
behind it; the partial slicing before its last stage; that stage's class of sites and way; the next one in a list."""
_WEIGHT, _LEAST, _LAST_S = range(3)
"""Sums of a partial slicing: what the objective sums over its stages, a lower bound on that of a whole slicing, and the
last stage's seconds without what it sends on."""


def _twice(rows):  # type: ignore[no-untyped-def]
    longer = np.empty((2 * len(rows), rows.shape[1]), rows.dtype)
    longer[: len(rows)] = rows
    return longer


@compiled(
    "(f8[:, :, :, ::1], f8[:, :, :, ::1], i8[:, :, :, ::1], f8[:, :, ::1], f8[:, :, ::1], i8[:, ::1], i8[::1],"
    "b1[::1], i8[::1], b1[:, :, ::1], f8[:, ::1], f8[:, ::1], f8[:, ::1], f8[:, ::1], i8[::1], f8, f8, f8, i8, f8)",
    _twice,
)
def _searched(
    costs: FloatArray,
    weights: FloatArray,
    followers: IntArray,
    crossing: FloatArray,
    crossing_weights: FloatArray,
    uses: IntArray,
    available: IntArray,
    exact: NDArray[np.bool_],
    group: IntArray,
    as_near: NDArray[np.bool_],
    onward: FloatArray,
    farthest: FloatArray,
    rest: FloatArray,
    then: FloatArray,
    ends: IntArray,
    value: float,
    bound: float,
    below: float,
    width: int,
    most: float,
) -> tuple[float, float, float, IntArray]:
    """Returns the least weight of a slicing, the least bound of the partial ones that were lost, the work, and that
    slicing's stages as rows of first layer, last layer, class and way.
    """
    num_layers, num_groups, num_classes = crossing.shape
    num_ways, num_resources = costs.shape[3], len(available)
    used = np.zeros((1024, num_resources), np.int64)
    facts = np.full((1024, 7), -1, np.int64)
    sums = np.zeros((1024, 3))
    waits = bool((farthest > 0).any())
    heads = np.full(num_layers + 1, -1, np.int64)
    heads[0] = facts[0, _GROUP] = facts[0, _LAYER] = 0
    facts[0, _MAY_FOLLOW], sums[0, _LEAST] = num_layers, value
    size, unused, lost, work = 1, -1, np.inf, 0.0
    kept, least_of_group = np.empty(0, np.int64), np.empty(num_groups)
    begins = np.empty(num_groups + 1, np.int64)
    for layer in range(num_layers):
        count, label = 0, heads[layer]
        while label >= 0:
            count, label = count + 1, facts[label, _NEXT]
        if count == 0:
            continue
        arrived, bounds, label = np.empty(count, np.int64), np.empty(count), heads[layer]
        for n in range(count - 1, -1, -1):
            arrived[n], bounds[n], label = label, sums[label, _LEAST], facts[label, _NEXT]
        if work > most:
            lost = min(lost, bounds.min())
            continue
        # Those that others make needless have no lower bounds than these.
        if len(kept) < min(width, count):
            kept = np.empty(min(width, count), np.int64)
        num_kept, is_full = 0, False
        for n in np.argsort(bounds, kind="mergesort"):
            label, needless = arrived[n], is_full
            for place in range(0 if is_full else num_kept):
                other = kept[place]
                if (
                    sums[other, _WEIGHT] <= sums[label, _WEIGHT]
                    and facts[other, _MAY_FOLLOW] >= facts[label, _MAY_FOLLOW]
                    and as_near[layer, facts[other, _GROUP], facts[label, _GROUP]]
                    and (
                        sums[other, _LAST_S] <= sums[label, _LAST_S]
                        or sums[other, _LAST_S] + farthest[layer, facts[other, _GROUP]] <= bound
                    )
                ):
                    needless = True
                    for r in range(num_resources):
                        more = used[other, r] - used[label, r]
                        if more > 0 or (exact[r] and more < 0):
                            needless = False
                            break
                    if needless:
                        work += (place + 1) / PAIRS
                        break
            if not needless and num_kept == width:
                lost, is_full, needless = min(lost, bounds[n]), True, True
            if needless:
                facts[label, _NEXT], unused = unused, label
            else:
                work += num_kept / PAIRS
                kept[num_kept] = label
                num_kept += 1
        # The stages that may be next after each group, the least dear first.
        least_of_group[:] = np.inf
        for place in range(num_kept):
            of_group = facts[kept[place], _GROUP]
            least_of_group[of_group] = min(least_of_group[of_group], sums[kept[place], _LEAST])
        entries, dearer, own = np.empty((64, 3), np.int64), np.empty((64, 1)), np.empty((64, 1))
        total = 0
        for before in range(num_groups):
            begins[before] = total
            if np.isinf(least_of_group[before]) or np.isinf(rest[layer, before]):
                continue
            spare = below - least_of_group[before]
            work += (ends[layer] - layer) * num_classes * num_ways / ENTRIES
            for last in range(layer, ends[layer]):
                for of_class in range(num_classes):
                    crossed = crossing[layer, before, of_class]
                    added = crossing_weights[layer, before, of_class]
                    waited, later = onward[last, of_class], then[last, of_class] - rest[layer, before]
                    for way in range(num_ways):
                        if np.isinf(costs[layer, last, of_class, way]):  # the next ones are none either
                            break
                        if costs[layer, last, of_class, way] + crossed + waited <= bound:
                            weight = weights[layer, last, of_class, way] + added
                            more = max(weight + later, 0.0)
                            if more < spare:
                                if total == len(entries):
                                    entries, dearer, own = _twice(entries), _twice(dearer), _twice(own)
                                entries[total, 0], entries[total, 1], entries[total, 2] = last, of_class, way
                                dearer[total, 0], own[total, 0] = more, weight
                                total += 1
            order = begins[before] + np.argsort(dearer[begins[before] : total, 0], kind="mergesort")
            entries[begins[before] : total] = entries[order]
            dearer[begins[before] : total] = dearer[order]
            own[begins[before] : total] = own[order]
        begins[num_groups] = total
        # The best new beginnings, if there are very many.
        limit, pairs = below, 0
        for place in range(num_kept):
            label = kept[place]
            for n in range(begins[facts[label, _GROUP]], begins[facts[label, _GROUP] + 1]):
                if sums[label, _LEAST] + dearer[n, 0] >= below:
                    break
                pairs += 1
        if pairs > PENDING * width:
            values, pairs = np.empty(pairs), 0
            for place in range(num_kept):
                label = kept[place]
                for n in range(begins[facts[label, _GROUP]], begins[facts[label, _GROUP] + 1]):
                    if sums[label, _LEAST] + dearer[n, 0] >= below:
                        break
                    values[pairs] = sums[label, _LEAST] + dearer[n, 0]
                    pairs += 1
            limit = np.partition(values, PENDING * width)[PENDING * width]
            lost = min(lost, limit)
        work += LAYER + pairs / PAIRS
        for place in range(num_kept):
            label = kept[place]
            for n in range(begins[facts[label, _GROUP]], begins[facts[label, _GROUP] + 1]):
                if sums[label, _LEAST] + dearer[n, 0] >= limit:
                    break
                last, of_class, way = entries[n]
                is_whole = last == num_layers - 1
                may_follow = min(facts[label, _MAY_FOLLOW] - 1, followers[layer, last, of_class, way])
                suits = may_follow >= (0 if is_whole else 1)
                crossed = crossing[layer, facts[label, _GROUP], of_class]
                suits &= not waits or sums[label, _LAST_S] + crossed <= bound
                for r in range(num_resources):
                    left = available[r] - used[label, r] - uses[of_class, r]
                    suits &= left >= 0 and not (is_whole and exact[r] and left > 0)
                if not suits:
                    continue
                if unused >= 0:
                    new, unused = unused, facts[unused, _NEXT]
                else:
                    if size == len(facts):
                        used, facts, sums = _twice(used), _twice(facts), _twice(sums)
                    new, size = size, size + 1
                work += 10 / PAIRS
                for r in range(num_resources):
                    used[new, r] = used[label, r] + uses[of_class, r]
                facts[new, _GROUP], facts[new, _MAY_FOLLOW], facts[new, _LAYER] = group[of_class], may_follow, last + 1
                facts[new, _BEFORE], facts[new, _CLASS], facts[new, _WAY] = label, of_class, way
                facts[new, _NEXT], heads[last + 1] = heads[last + 1], new
                sums[new, _WEIGHT] = sums[label, _WEIGHT] + own[n, 0]
                sums[new, _LEAST] = sums[label, _LEAST] + dearer[n, 0]
                sums[new, _LAST_S] = costs[layer, last, of_class, way] + crossed
    best, label = -1, heads[num_layers]
    while label >= 0:
        if best < 0 or sums[label, _WEIGHT] <= sums[best, _WEIGHT]:
            best = label
        label = facts[label, _NEXT]
    count, label = 0, best
    while label > 0:
        count, label = count + 1, facts[label, _BEFORE]
    stages, label = np.empty((count, 4), np.int64), best
    for n in range(count - 1, -1, -1):
        stages[n, 0], stages[n, 1] = facts[facts[label, _BEFORE], _LAYER], facts[label, _LAYER] - 1
        stages[n, 2], stages[n, 3] = facts[label, _CLASS], facts[label, _WAY]
        label = facts[label, _BEFORE]
    return (sums[best, _WEIGHT] if best >= 0 else np.inf), lost, work, stages
