"""The placed search for one bound on the stages' costs: from the first layer on, the most promising beginnings.

A beginning is known by the resources that it has used and the group of its last stage. What the rest costs at least is
known from a relaxation. While there are no more beginnings than the beam is wide, none is lost and the search is exact;
of those that are lost the least bound is kept, so that the answer says what they may have been worth. The same goes for
what is left where a beam is stopped because it has worked enough.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import StageChoice
from alpa_dejavu.slicing._branch import ROUNDING, BoundedAnswer
from alpa_dejavu.slicing._choices import Choices, FloatArray, IntArray
from alpa_dejavu.slicing._relaxed import ENTRIES, PricedBound

PENDING = 64
"""From the beginnings at a layer at most so many new ones are made for each place in the beam."""
PAIRS, LAYER = 100, 1000
"""So many pairs of a beginning and a next stage are compared, and so many beginnings made, in the time of one and of a
layer without any."""
CHUNK = 4_000_000
"""The number of pairs that are compared at a time."""


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
        self._choices, self._bound, self._prices = choices, bound, prices
        self._asked = below
        self._below = below * (1 - ROUNDING) if math.isfinite(below) else below
        self._width = width
        self._ends = np.arange(choices.num_layers) + choices.reach(bound)
        self._arrived: list[list[Labels]] = [[] for _ in range(choices.num_layers + 1)]
        self._kept: dict[int, Labels] = {}
        self._lost = math.inf
        self._most = most
        self.work = 0.0

    def run(self) -> BoundedAnswer:
        """Returns a lower bound on the summed stage weights of any slicing within the bound on stages (`below` at
        most), and the slicing with the least sum that was found; () if none was.
        """
        choices = self._choices
        self._arrived[0].append(
            Labels(
                used=np.zeros((1, len(choices.available)), dtype=np.int64),
                group=np.zeros(1, dtype=np.int64),
                may_follow=np.array([choices.num_layers]),
                weight=np.zeros(1),
                bound=np.array([self._prices.value]),
                origin=np.full((1, 2), -1),
                choice=np.full((1, 2), -1),
            )
        )
        for layer in range(choices.num_layers):
            arrived, self._arrived[layer] = self._arrived[layer], []
            if self.work > self._most:
                self._lost = min([self._lost, *(float(part.bound.min(initial=math.inf)) for part in arrived)])
            elif arrived:
                self._kept[layer] = self._narrowed(undominated(joined(arrived), choices.available))
                self._leave(layer, self._kept[layer])
        if not self._arrived[-1]:
            return min(self._asked, self._lost), ()
        ends = joined(self._arrived[-1])
        best = int(ends.weight.argmin())
        return min(float(ends.weight[best]), self._lost), self._stages(ends, best)

    def _narrowed(self, labels: Labels) -> Labels:
        """Returns the most promising beginnings, as many as the beam is wide."""
        if len(labels) <= self._width:
            return labels
        order = np.argsort(labels.bound, kind="stable")
        self._lost = min(self._lost, float(labels.bound[order[self._width]]))
        return labels.of(order[: self._width])

    def _leave(self, layer: int, labels: Labels) -> None:
        """Makes new beginnings from those at a layer, with every next stage."""
        groups, row = np.unique(labels.group, return_inverse=True)
        lengths, classes, ways, weights, dearer = self._next_stages(layer, groups, labels)
        self.work += LAYER + len(labels) * len(lengths) / PAIRS
        label, stage, bound = self._promising(labels.bound, row, dearer)
        order = np.argsort(lengths[stage], kind="stable")
        label, stage, bound = label[order], stage[order], bound[order]
        used = labels.used[label] + self._choices.uses[classes[stage]]
        spare = self._choices.followers[layer, layer + lengths[stage], classes[stage], ways[stage]]
        may_follow = np.minimum(labels.may_follow[label] - 1, spare)
        over = lengths[stage] == self._choices.num_layers - 1 - layer
        suits = (used <= self._choices.available).all(axis=1) & (may_follow >= np.where(over, 0, 1))
        suits &= ~over | (used == self._choices.available)[:, self._choices.exact].all(axis=1)
        label, stage, bound, used, may_follow = (x[suits] for x in (label, stage, bound, used, may_follow))
        new = Labels(
            used=used,
            group=self._choices.group[classes[stage]],
            may_follow=may_follow,
            weight=labels.weight[label] + weights[row[label], stage],
            bound=bound,
            origin=np.column_stack([np.full(len(label), layer), label]),
            choice=np.column_stack([classes[stage], ways[stage]]),
        )
        distinct, starts = np.unique(lengths[stage], return_index=True)
        for length, start, end in zip(distinct, starts, [*starts, len(stage)][1:], strict=True):
            self._arrived[layer + int(length) + 1].append(new.of(slice(start, end)))

    def _promising(
        self, bounds: FloatArray, row: IntArray, dearer: FloatArray
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """Returns pairs of a beginning and a stage below what is asked for, and their bounds; the best if very many.

        Beginning n has bounds[n], and a stage makes it dearer by what is in dearer[row[n]].
        """
        step = max(1, CHUNK // max(dearer.shape[1], 1))
        pairs = []
        for start in range(0, len(bounds), step):
            some = slice(start, start + step)
            sums = bounds[some, None] + dearer[row[some]]
            label, stage = np.nonzero(sums < self._below)
            values = sums[label, stage]
            most = PENDING * self._width
            self.work += min(len(label), most)
            if len(label) > most:
                order = np.argsort(values, kind="stable")
                self._lost = min(self._lost, float(values[order[most]]))
                label, stage, values = label[order[:most]], stage[order[:most]], values[order[:most]]
            pairs.append((label + start, stage, values))
        labels, stages, values = map(np.concatenate, zip(*pairs, strict=True))
        return labels, stages, values

    def _next_stages(self, layer: int, groups: IntArray, labels: Labels) -> tuple[Any, ...]:
        """Returns N stages that begin with a layer, and make a slicing dearer by less than is asked for.

        How many layers follow the first, class and way, each of shape (N,); weight after a stage of each group, and by
        how much dearer it makes the slicing (inf where it isn't one to take), of shape (groups, N).
        """
        choices, lasts = self._choices, slice(layer, self._ends[layer])
        rest = self._prices.rest[layer, groups]
        spare = self._below - np.array([labels.bound[labels.group == group].min() for group in groups])
        fits = choices.costs_s[layer, lasts] + choices.crossing_s[layer, groups][:, None, :, None] <= self._bound
        weights = choices.weights[layer, lasts] + choices.crossing_weights[layer, groups][:, None, :, None]
        weights = np.where(fits, weights, np.inf)
        self.work += fits.size / ENTRIES
        dearer = weights + (self._prices.then[lasts, :, None] - rest[:, None, None, None])
        lengths, classes = np.nonzero((dearer < spare[:, None, None, None]).any(axis=(0, 3)))
        weights, dearer = weights[:, lengths, classes], np.maximum(dearer[:, lengths, classes], 0.0)
        dearer[~_sensible(weights, choices.followers[layer, layer + lengths, classes])] = np.inf
        cells, ways = np.nonzero((dearer < spare[:, None, None]).any(axis=0))
        return lengths[cells], classes[cells], ways, weights[:, cells, ways], dearer[:, cells, ways]

    def _stages(self, labels: Labels, index: int) -> tuple[StageChoice, ...]:
        """Returns the slicing that ends with a label."""
        stages: list[StageChoice] = []
        last = self._choices.num_layers - 1
        while last >= 0:
            (layer, before), (of_class, way) = labels.origin[index].tolist(), labels.choice[index].tolist()
            stages.insert(0, self._choices.stage(layer, last, of_class, way))
            labels, index, last = self._kept[layer], before, layer - 1
        return tuple(stages)


def _sensible(weights: FloatArray, spare: IntArray) -> NDArray[np.bool_]:
    """Returns which ways have a finite weight, (groups, N, P), that no other beats and leaves as much room, (N, P)."""
    sensible = np.isfinite(weights)
    for way in range(weights.shape[2]):
        other, its_spare = weights[:, :, way, None], spare[:, way, None]
        better = (other < weights) & (its_spare >= spare) | (other == weights) & (its_spare > spare)
        same = (other == weights) & (its_spare == spare)
        same[:, :, : way + 1] = False
        sensible &= ~(better | same)
    return sensible


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Labels:
    """N partial slicings, each of which cuts the first layers into stages, as arrays.

    Attributes:
        used: shape (N, R), how much they use of each of R resources, such as devices of a kind of host.
        group: shape (N,), the group of submeshes with equal links that the last stage is on.
        may_follow: shape (N,), how many stages may still follow for memory's sake.
        weight: shape (N,), what the objective sums over stages, so far.
        bound: shape (N,), a lower bound on that sum for any whole slicing that begins so.
        origin: shape (N, 2), the layer where the last stage begins, and which partial slicing there it follows.
        choice: shape (N, 2), the last stage's class of submeshes, and which of its submeshes and configs it has.
    """

    used: IntArray
    group: IntArray
    may_follow: IntArray
    weight: FloatArray
    bound: FloatArray
    origin: IntArray
    choice: IntArray

    def __len__(self) -> int:
        return len(self.weight)

    def of(self, which: IntArray | slice) -> Labels:
        return Labels(*(getattr(self, name)[which] for name in _NAMES))


_NAMES = tuple(field.name for field in dataclasses.fields(Labels))


def joined(parts: list[Labels]) -> Labels:
    return Labels(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))


def undominated(labels: Labels, available: IntArray) -> Labels:
    """Returns, of partial slicings that use equally much of each resource and end with the same group of submeshes, the
    cheapest; dearer ones stay if more stages may follow them. `available` is how much there is of each resource.
    """
    words = _words(np.column_stack([labels.used, labels.group]), [*available.tolist(), int(labels.group.max())])
    order = np.lexsort((-labels.may_follow, labels.weight, *words))
    new = np.zeros(len(order), dtype=np.bool_)
    new[0] = True
    for word in words:
        new[1:] |= np.diff(word[order]) != 0
    run = np.cumsum(new)
    step = int(labels.may_follow.max()) + 1
    most = np.maximum.accumulate(run * step + labels.may_follow[order])
    more = np.diff(most, prepend=-1) > 0
    return labels.of(order[more])


def _words(columns: IntArray, greatest: list[int]) -> list[IntArray]:
    """Returns whole numbers that are equal where the rows are, as few as 62 bits each allow."""
    words: list[IntArray] = []
    capacity = math.inf
    for column, size in zip(columns.T, greatest, strict=True):
        capacity *= size + 1
        if capacity >= 2**62:
            words.append(column.copy())
            capacity = size + 1
        else:
            words[-1] = words[-1] * (size + 1) + column
    return words
