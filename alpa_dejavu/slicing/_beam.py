"""The placed search for one bound on the stages' costs: from the first layer on, the most promising beginnings.

A beginning is known by the resources that it has used and the group of its last stage. What the rest costs at least is
known from a relaxation. While there are no more beginnings than the beam is wide, none is lost and the search is exact;
of those that are lost the least bound is kept, so that the answer says what they may have been worth.
"""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import StageChoice
from alpa_dejavu.slicing._branch import ROUNDING, Answer
from alpa_dejavu.slicing._choices import Choices, FloatArray, IntArray
from alpa_dejavu.slicing._labels import Labels, joined, undominated
from alpa_dejavu.slicing._relaxed import Prices

PENDING = 32
"""From the beginnings at a layer on one group at most so many new ones are made for each place in the beam."""


@final
class Beam:
    """One search; `looked_at` counts the pairs of a beginning and a next stage that it compared."""

    def __init__(self, choices: Choices, bound: float, prices: Prices, below: float, width: int) -> None:
        self._choices, self._bound, self._prices = choices, bound, prices
        self._asked = below
        self._below = below * (1 - ROUNDING) if math.isfinite(below) else below
        self._width = width
        self._ends = np.arange(choices.num_layers) + choices.reach(bound)
        self._arrived: list[list[Labels]] = [[] for _ in range(choices.num_layers + 1)]
        self._kept: dict[int, Labels] = {}
        self._lost = math.inf
        self.looked_at = 0

    def run(self) -> Answer:
        """What no sum below what was asked for is below, and the slicing with the least sum that was found."""
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
            if self._arrived[layer]:
                labels = self._kept[layer] = self._narrowed(undominated(joined(self._arrived[layer]), choices.available))
                self._arrived[layer] = []
                for group in np.unique(labels.group):
                    self._leave(layer, int(group), labels, np.flatnonzero(labels.group == group))
        if not self._arrived[-1]:
            return min(self._asked, self._lost), ()
        ends = joined(self._arrived[-1])
        best = int(ends.weight.argmin())
        return min(float(ends.weight[best]), self._lost), self._stages(ends, best)

    def _narrowed(self, labels: Labels) -> Labels:
        """The most promising ones."""
        if len(labels) <= self._width:
            return labels
        order = np.argsort(labels.bound, kind="stable")
        self._lost = min(self._lost, float(labels.bound[order[self._width]]))
        return labels.of(order[: self._width])

    def _leave(self, layer: int, group: int, labels: Labels, which: IntArray) -> None:
        """Every next stage for the beginnings of a group."""
        next_stages = self._next_stages(layer, group, self._below - float(labels.bound[which].min()))
        if next_stages is None:
            return
        lengths, classes, ways, weights, dearer = next_stages
        bounds = labels.bound[which][:, None] + dearer
        self.looked_at += bounds.size
        label, stage = self._promising(bounds)
        order = np.argsort(lengths[stage], kind="stable")
        label, stage = label[order], stage[order]
        used = labels.used[which[label]] + self._choices.uses[classes[stage]]
        room = self._choices.room[layer, layer + lengths[stage], classes[stage], ways[stage]]
        may_follow = np.minimum(labels.may_follow[which[label]] - 1, room)
        over = lengths[stage] == self._choices.num_layers - 1 - layer
        suits = (used <= self._choices.available).all(axis=1) & (may_follow >= np.where(over, 0, 1))
        suits &= ~over | (used == self._choices.available)[:, self._choices.exact].all(axis=1)
        label, stage, used, may_follow = (x[suits] for x in (label, stage, used, may_follow))
        new = Labels(
            used=used,
            group=self._choices.group[classes[stage]],
            may_follow=may_follow,
            weight=labels.weight[which[label]] + weights[stage],
            bound=bounds[label, stage],
            origin=np.column_stack([np.full(len(label), layer), which[label]]),
            choice=np.column_stack([classes[stage], ways[stage]]),
        )
        found, starts = np.unique(lengths[stage], return_index=True)
        for length, start, end in zip(found, starts, [*starts, len(stage)][1:], strict=True):
            self._arrived[layer + int(length) + 1].append(new.of(slice(start, end)))

    def _promising(self, bounds: FloatArray) -> tuple[IntArray, IntArray]:
        """Pairs of a beginning and a stage that are below what is asked for, the best if they are very many."""
        label, stage = np.nonzero(bounds < self._below)
        most = PENDING * self._width
        if len(label) > most:
            values = bounds[label, stage]
            order = np.argpartition(values, most)
            self._lost = min(self._lost, float(values[order[most]]))
            label, stage = label[order[:most]], stage[order[:most]]
        return label, stage

    def _next_stages(self, layer: int, group: int, below: float) -> tuple[Any, ...] | None:
        """Stages that begin with a layer after a group, and make a slicing dearer by less than is asked for.

        How many layers follow the first, class, way, weight and by how much dearer; the least dear first.
        """
        choices = self._choices
        here = float(self._prices.rest[layer, group])
        if math.isinf(here):
            return None
        lasts = slice(layer, self._ends[layer])
        fits = choices.costs_s[layer, lasts] + choices.crossing_s[layer, group][:, None] <= self._bound
        weights = choices.weights[layer, lasts] + choices.crossing_weights[layer, group][:, None]
        dearer = weights + (self._prices.then[lasts, :, None] - here)
        lengths, classes = np.nonzero((fits & (dearer < below)).any(axis=2))
        weights = np.where(fits[lengths, classes], weights[lengths, classes], np.inf)
        cells, ways = np.nonzero(_sensible(weights, choices.room[layer, layer + lengths, classes]))
        dearer = np.maximum(dearer[lengths[cells], classes[cells], ways], 0.0)
        order = np.argsort(dearer, kind="stable")
        order = order[: int(np.searchsorted(dearer[order], below))]
        cells, ways = cells[order], ways[order]
        return lengths[cells], classes[cells], ways, weights[cells, ways], dearer[order]

    def _stages(self, labels: Labels, index: int) -> tuple[StageChoice, ...]:
        """The slicing that ends with a label."""
        stages: list[StageChoice] = []
        last = self._choices.num_layers - 1
        while last >= 0:
            (layer, before), (of_class, way) = labels.origin[index].tolist(), labels.choice[index].tolist()
            stages.insert(0, self._choices.stage(layer, last, of_class, way))
            labels, index, last = self._kept[layer], before, layer - 1
        return tuple(stages)


def _sensible(weights: FloatArray, room: IntArray) -> NDArray[np.bool_]:
    """Of N times P ways those of finite weight that no other of the P beats both in weight and in room."""
    sensible = np.isfinite(weights)
    for way in range(weights.shape[1]):
        other, its_room = weights[:, way, None], room[:, way, None]
        better = (other < weights) & (its_room >= room) | (other == weights) & (its_room > room)
        same = (other == weights) & (its_room == room)
        same[:, : way + 1] = False
        sensible &= ~(better | same)
    return sensible
