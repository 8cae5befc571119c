"""A graph whose arcs are stages; its ways from the first layer to behind the last one are slicings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.slicing._base import Effort
from alpa_dejavu.slicing._stages import FloatArray, IntArray


@final
@dataclasses.dataclass(eq=False)
class StageGraph:
    """A graph of N nodes and A arcs, in which an arc is a stage and a path from the first layer to the end is a
    slicing.

    A node is a layer, or a layer with the number of stages from it on, or with the group of submeshes of the stage
    before it, or with both. Nodes are in the order of their layers, arcs in that of their tails.

    Attributes:
        layers: shape (N,), the layer of each node; `num_layers` for nodes behind the last layer.
        num_layers: the number of layers, L.
        tail, head: shape (A,), the nodes where a stage begins, and where the next one does.
        size: shape (A,), how many devices the stage has, as a multiple of some unit.
        weight: shape (A,), what the stage adds to the sum over a path that is to be least.
        stage: shape (A,), the stage's index in a table of stages.
    """

    layers: IntArray
    num_layers: int
    tail: IntArray
    head: IntArray
    size: IntArray
    weight: FloatArray
    stage: IntArray

    def __len__(self) -> int:
        return len(self.tail)

    def of(self, which: NDArray[np.bool_]) -> StageGraph:
        """Returns the graph with only some of its arcs, given by a mask, in the same order."""
        count = np.count_nonzero(which)
        tail, head, size, stage = np.empty((4, count), dtype=np.int64)
        weight = np.empty(count)
        _copy(which, self.tail, self.head, self.size, self.weight, self.stage, tail, head, size, weight, stage)
        return StageGraph(self.layers, self.num_layers, tail, head, size, weight, stage)

    @functools.cached_property
    def num_starts(self) -> int:
        """Returns how many nodes are at the first layer; they come first."""
        return int(np.searchsorted(self.layers, 1))

    @functools.cached_property
    def leaving(self) -> list[int]:
        """Returns the index of the first arc that leaves each node, and then the number of all arcs."""
        return np.searchsorted(self.tail, np.arange(len(self.layers) + 1)).tolist()

    def rest(self, keys: NDArray[Any]) -> FloatArray:
        """Returns the least sum of arcs' keys over the paths from each node to the end; infinite where none is."""
        sums = np.full(len(self.layers), np.inf)
        sums[self.layers == self.num_layers] = 0.0
        _least_sums(self.tail[::-1], self.head[::-1], keys[::-1].astype(np.float64, copy=False), sums)
        return sums

    def since(self, keys: NDArray[Any]) -> FloatArray:
        """Returns the least sum of arcs' keys over the paths from the start to each node; infinite where none is."""
        sums = np.full(len(self.layers), np.inf)
        sums[: self.num_starts] = 0.0
        _least_sums(self.head, self.tail, keys.astype(np.float64, copy=False), sums)
        return sums

    def way(self, keys: FloatArray, rest: FloatArray) -> list[int]:
        """Returns the arcs of a shortest path by their keys, given what `rest` returns; [] if there is none."""
        starts = rest[: self.num_starts]
        if not np.isfinite(starts).any():
            return []
        node, arcs = int(starts.argmin()), list[int]()
        while self.layers[node] < self.num_layers:
            part = slice(self.leaving[node], self.leaving[node + 1])
            arcs.append(part.start + int((keys[part] + rest[self.head[part]]).argmin()))
            node = int(self.head[arcs[-1]])
        return arcs


@compiled("(i8[:], i8[:], f8[:], f8[::1])")
def _least_sums(to: IntArray, via: IntArray, keys: FloatArray, sums: FloatArray) -> None:
    """Lowers the sums of nodes by arcs, each of which leads to a node via one whose sum is known by then."""
    for arc in range(len(keys)):
        total = keys[arc] + sums[via[arc]]
        if total < sums[to[arc]]:
            sums[to[arc]] = total


@compiled("(b1[::1], i8[::1], i8[::1], i8[::1], f8[::1], i8[::1], i8[::1], i8[::1], i8[::1], f8[::1], i8[::1])")
def _copy(
    which: NDArray[np.bool_],
    tail: IntArray,
    head: IntArray,
    size: IntArray,
    weight: FloatArray,
    stage: IntArray,
    to_tail: IntArray,
    to_head: IntArray,
    to_size: IntArray,
    to_weight: FloatArray,
    to_stage: IntArray,
) -> None:
    n = 0
    for arc in range(len(which)):
        if which[arc]:
            to_tail[n], to_head[n], to_size[n] = tail[arc], head[arc], size[arc]
            to_weight[n], to_stage[n] = weight[arc], stage[arc]
            n += 1


def by_count(
    graph: StageGraph, more: IntArray, spare: IntArray, num_stages: int | None, most_arcs: int = Effort.most_arcs
) -> StageGraph | None:
    """Returns a graph with nodes that also tell apart how many stages follow; None if it would have more than
    `most_arcs`.

    An arc's stage is followed by more than `more` others, and by no more than `spare`, both of shape (A,). If
    `num_stages` is given, there are only paths of so many stages.
    """
    ones = np.ones(len(graph))
    fewest = np.maximum(graph.rest(ones)[graph.head], more + 1)
    most = np.minimum(-graph.rest(-ones)[graph.head], spare)
    if num_stages is not None:
        start = graph.layers[graph.tail] == 0
        fewest[start] = np.maximum(fewest[start], num_stages - 1)
        most[start] = np.minimum(most[start], num_stages - 1)
    numbers = np.maximum(most - fewest + 1, 0).astype(np.int64)
    fewest = np.where(numbers > 0, fewest, 0).astype(np.int64)
    if numbers.sum() > most_arcs:
        return None
    width = int((fewest + numbers).max(initial=1)) + 1
    which, tail, head = np.empty((3, numbers.sum()), dtype=np.int64)
    _counted(graph.tail, graph.head, fewest, numbers, width, which, tail, head)
    arrays: Iterator[Any] = (array[which] for array in (graph.size, graph.weight, graph.stage))
    return _renumbered(graph, width, tail, head, *arrays)


@compiled("(i8[::1], i8[::1], i8[::1], i8[::1], i8, i8[::1], i8[::1], i8[::1])")
def _counted(
    tail: IntArray,
    head: IntArray,
    fewest: IntArray,
    numbers: IntArray,
    width: int,
    which: IntArray,
    to_tail: IntArray,
    to_head: IntArray,
) -> None:
    """Fills in the arcs for each number of followers, in the order of their tails, with these and their heads."""
    begin, filled, places = 0, 0, np.zeros(width, np.int64)
    while begin < len(tail):
        end = begin
        places[:] = 0
        while end < len(tail) and tail[end] == tail[begin]:
            for followers in range(fewest[end], fewest[end] + numbers[end]):
                places[followers + 1] += 1
            end += 1
        for followers in range(width):
            filled, places[followers] = filled + places[followers], filled
        for arc in range(begin, end):
            for followers in range(fewest[arc], fewest[arc] + numbers[arc]):
                place = places[followers + 1]
                places[followers + 1] += 1
                which[place] = arc
                to_tail[place], to_head[place] = tail[arc] * width + followers + 1, head[arc] * width + followers
        begin = end


def by_group(
    graph: StageGraph,
    groups: IntArray,
    weights: Callable[[IntArray, IntArray], tuple[NDArray[np.bool_], FloatArray]],
    most_arcs: int = Effort.most_arcs,
) -> StageGraph | None:
    """Returns a graph with nodes that also tell apart the group of the stage before; None if it would have more than
    `most_arcs`.

    `groups` has each arc's own group, shape (A,). `weights` is a function of indices of arcs and the groups of the
    stages before them, which returns which of these pairs are allowed, and the weight of each.
    """
    width = int(groups.max(initial=0)) + 1
    arrives = np.zeros((graph.num_layers + 1, width), dtype=np.bool_)
    arrives[graph.head, groups] = True
    arrives[0, 0] = True
    if np.count_nonzero(arrives[graph.tail]) > most_arcs:
        return None
    which, before = np.nonzero(arrives[graph.tail])
    is_allowed, weight = weights(which, before)
    which, before, weight = which[is_allowed], before[is_allowed], weight[is_allowed]
    own = np.where(graph.head[which] == graph.num_layers, 0, groups[which])
    tail, head = graph.tail[which] * width + before, graph.head[which] * width + own
    order = np.lexsort((head, tail))
    which, weight = which[order], weight[order]
    return _renumbered(graph, width, tail[order], head[order], graph.size[which], weight, graph.stage[which])


def _renumbered(
    graph: StageGraph, width: int, tail: IntArray, head: IntArray, size: IntArray, weight: FloatArray, stage: IntArray
) -> StageGraph:
    """Returns a graph of the nodes that are used, where each of the former ones was `width` of them."""
    used = np.zeros(width * len(graph.layers), dtype=np.bool_)
    used[tail] = used[head] = True
    number = np.cumsum(used) - 1
    layers = graph.layers[np.flatnonzero(used) // width]
    return StageGraph(layers, graph.num_layers, number[tail], number[head], size, weight, stage)
