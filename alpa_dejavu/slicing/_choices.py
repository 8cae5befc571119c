"""The choices of a placed search: the problem's arrays by classes of sites, each class of equal sites once."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu._util.range_table import RangeArray, numbered
from alpa_dejavu.problem import Sites, SlicingProblem, StageChoice
from alpa_dejavu.slicing._base import Effort
from alpa_dejavu.slicing._stages import FloatArray, IntArray, unlike_links


@final
class Choices:
    """The arrays of a slicing problem of L layers, grouped by Q classes of equal sites, with at most P ways to run
    layers on each.

    A site is a submesh on hosts of certain kinds, and a way is a site of the class with a mesh config. Sites of a class
    take the same devices and have the same links to and from all others. Classes with equal links to what follows are
    of one of G groups: only the group matters to the next stage. Ways that another beats in cost, weight and followers
    are left out, and so are classes that have no others: one of the same class, or of one that takes no more of
    anything and is as near to all others.

    Attributes:
        uses: shape (Q, R), what a stage takes of each of R resources: devices of each kind of host; the sites'
            capacities; and one stage, if a number of stages is asked for.
        available: shape (R,), how much there is of each resource.
        exact: shape (R,), whether all of a resource has to be used.
        group: shape (Q,), the group of each class.
        crossing_s: shape (L, G, Q), seconds of the transfer from a stage of a group to one that begins with layer l on
            a class; row 0 is zero.
        costs_s: shape (L, L, Q, P), seconds of layers i..j without that transfer; inf where not to be taken.
        weights: shape (L, L, Q, P), what the objective sums over stages, without that transfer.
        crossing_weights: shape (L, G, Q), what the transfer adds to weights.
        onward_s: shape (L, Q), seconds that a stage whose last layer is l on a class waits at least while it sends.
        both_wait: whether stages wait while they send; if not, `onward_s` is zero.
        followers: shape (L, L, Q, P), how many stages may follow, at most as many as there are layers left.
    """

    def __init__(self, problem: SlicingProblem, sites: Sites) -> None:
        self.num_layers, self._num_configs = problem.num_layers, problem.costs_s.shape[3]
        links = unlike_links(sites)
        group = numbered(links)
        uses, self.available = sites.uses, sites.available
        self.exact = np.full(len(self.available), problem.devices == "exactly")
        if sites.packing is not None and sites.capacity is not None:
            uses = np.column_stack([uses, sites.packing])
            self.available = np.append(self.available, sites.capacity)
            self.exact = np.append(self.exact, np.zeros(len(sites.capacity), dtype=np.bool_))
        self._members = _members(numbered(np.column_stack([uses, group, links.T])))
        first = self._members[:, 0]
        self.uses = uses[first]
        self.crossing_s = sites.crossing_s[:, sites.links[np.ix_(first, first)]].copy()
        self.crossing_s[0] = 0.0
        useful = self._fill(problem)
        self.group: IntArray = numbered(group[first][useful][:, None])
        some = np.unique(self.group, return_index=True)[1]
        self.num_groups = len(some)
        self._members, self.uses = self._members[useful], self.uses[useful]
        self.crossing_s = np.ascontiguousarray(self.crossing_s[:, useful[some]][:, :, useful])
        times = {"inference": 0.0, "work": float(problem.num_micro_batches)}.get(str(problem.objective), 1.0)
        self.both_wait = sites.both_wait
        self.crossing_weights = self.crossing_s * (2 * times if self.both_wait else times)
        self.onward_s = np.zeros((self.num_layers, len(useful)))
        if self.both_wait:
            self.onward_s[:-1] = self.crossing_s[1:].min(axis=2)[:, self.group]
        self._bounds: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}
        if problem.num_stages is not None:
            self._add_stages(problem.num_stages)

    @classmethod
    def of(cls, problem: SlicingProblem, sites: Sites) -> Choices:
        """Returns the choices of a problem; those of the latest one are at hand for problems that differ from it in
        nothing but their number of stages.
        """
        fields = [getattr(problem, field.name) for field in dataclasses.fields(problem) if field.name != "num_stages"]
        content = [sites, *fields]
        latest = _latest[0] if _latest else None
        if latest is None or any(
            a is not b and not _equal_numbers(a, b) for a, b in zip(content, latest[0], strict=True)
        ):
            latest = content, cls(dataclasses.replace(problem, num_stages=None), sites)
            _latest[:] = [latest]
        choices = copy.copy(latest[1])
        if problem.num_stages is not None:
            choices._add_stages(problem.num_stages)
        return choices

    def _add_stages(self, num_stages: int) -> None:
        """Makes stages a resource of which there are so many, and all are used."""
        self.uses = np.column_stack([self.uses, np.ones(len(self.uses), dtype=np.int64)])
        self.available, self.exact = np.append(self.available, num_stages), np.append(self.exact, True)

    def _fill(self, problem: SlicingProblem) -> IntArray:
        """Sets the arrays of stages, without those that another beats; returns the classes that have any."""
        left = np.arange(self.num_layers - 1, -1, -1)
        costs_s = self._regrouped(problem.costs_s, np.inf)
        followers = np.minimum(self._regrouped(problem.followers, -1), left[None, :, None, None])
        costs_s[np.tril_indices(self.num_layers, -1)] = np.inf
        costs_s[:, :, (self.uses > self.available).any(axis=1)] = np.inf
        # Before the last layer at least one more stage has to follow.
        costs_s[followers < np.minimum(left, 1)[None, :, None, None]] = np.inf
        once = self._regrouped(problem.once_s, 0.0)
        weights = costs_s + once
        if problem.objective == "inference":
            weights = np.ones_like(costs_s)
        elif problem.objective == "work":
            weights = problem.num_micro_batches * costs_s + once
        ways = np.full(costs_s.shape, -1)
        num_ways = max(_unbeaten(costs_s, weights, followers, self._replaceable(), ways), 1)
        useful = np.flatnonzero((ways >= 0).any(axis=(0, 1, 3)))
        useful = useful if len(useful) else np.zeros(1, dtype=np.int64)
        self._ways = np.ascontiguousarray(ways[:, :, useful, :num_ways])
        self.costs_s, self.weights, self.followers = (
            np.ascontiguousarray(np.take_along_axis(table[:, :, useful], self._ways, axis=3))
            for table in (costs_s, weights, followers)
        )
        self.costs_s[self._ways < 0] = np.inf
        self._cheapest_s = self.costs_s.min(axis=(2, 3))
        return useful

    def _replaceable(self) -> NDArray[np.bool_]:
        """Returns which classes may stand for which others: they take no more of anything, and are as near to all that
        comes before or after; shape (Q, Q), the former first.
        """
        crossing_s, uses, exact = self.crossing_s, self.uses, self.exact
        may = (uses[:, None] <= uses).all(axis=2) & (uses[:, None, exact] == uses[:, exact]).all(axis=2)
        for a, b in np.argwhere(may).tolist():
            near = crossing_s[:, a] <= crossing_s[:, b], crossing_s[:, :, a] <= crossing_s[:, :, b]
            may[a, b] = near[0].all() and near[1].all()
        return may

    def _regrouped(self, table: RangeArray, filler: float) -> NDArray[Any]:
        """Returns an array of shape (L, L, S, C) in shape (L, L, Q, P), filled up where a class has fewer sites."""
        num_layers, num_classes = self.num_layers, len(self._members)
        regrouped = np.asarray(table[:, :, self._members])
        regrouped[:, :, self._members < 0] = filler
        return np.ascontiguousarray(regrouped.reshape(num_layers, num_layers, num_classes, -1))

    @functools.cached_property
    def names(self) -> tuple[IntArray, IntArray]:
        """Returns the submesh and the config of each way of each stage, both of shape (L, L, Q, P); those of some other
        one where it has fewer ways, which cost infinity.
        """
        member, config = np.divmod(np.maximum(self._ways, 0), self._num_configs)
        of_class = np.arange(len(self._members))[:, None]
        return np.maximum(self._members[of_class, member], 0), config

    @functools.cached_property
    def as_near(self) -> NDArray[np.bool_]:
        """Returns whether from a group it is as near as from another one to every stage that begins with a layer; shape
        (L, G, G), the nearer group first.
        """
        crossing_s = self.crossing_s
        return np.stack([(at[:, None] <= at).all(axis=2) for at in crossing_s])

    def reach(self, bound: float) -> IntArray:
        """Returns the most layers of a stage that begins with each layer within a bound, at least one; shape (L,)."""
        fits = self._cheapest_s <= bound  # what it sends and takes in aside
        return np.maximum((fits * np.arange(1, self.num_layers + 1)).max(axis=1) - np.arange(self.num_layers), 1)

    def stage(self, first: int, last: int, of_class: int, way: int) -> StageChoice:
        """Returns the stage of layers `first` to `last` on a class of sites in one of its ways."""
        member, config = divmod(int(self._ways[first, last, of_class, way]), self._num_configs)
        return StageChoice(first, last, int(self._members[of_class, member]), config)

    def bounds(
        self, most: int = Effort.most_bounds, buckets_per_e: int = Effort.buckets_per_e
    ) -> tuple[FloatArray, FloatArray]:
        """Returns two ascending arrays of the different costs, in seconds, that stages may have; they are equal if
        there are few.

        If there are more than `most`, close costs are put together (`buckets_per_e` intervals to a factor of e): the
        first array has the greatest cost of each interval, the second the least.
        """
        key = most, buckets_per_e
        if key not in self._bounds:
            self._bounds[key] = self._listed(*key)
        return self._bounds[key]

    def _listed(self, most: int, buckets_per_e: int) -> tuple[FloatArray, FloatArray]:
        received = _different(self.crossing_s.transpose(0, 2, 1))
        sent = np.zeros((self.num_layers, len(self.group), 1))
        if self.both_wait:  # nothing is sent after the last layer
            onward = self.crossing_s[1:, self.group]
            sent = _different(np.concatenate([onward, np.zeros((1, *onward.shape[1:]))]))
        ways = np.isfinite(self.costs_s).sum(axis=3)
        count = np.einsum("ijq,iq,jq->", ways, *(np.isfinite(part).sum(axis=2) for part in (received, sent)))
        if count > 4 * most:
            highest = sum(part[np.isfinite(part)].max() for part in (self.costs_s, received, sent))
            first, last = map(int, _logarithms(np.array([self._cheapest_s.min(), highest])) * buckets_per_e)
            greatest, least = np.full((2, last - first + 5), [[-np.inf], [np.inf]])
            _fill_buckets(self.costs_s, received, sent, buckets_per_e, first - 2, greatest, least)
            return greatest[greatest >= least], least[greatest >= least]
        values = np.zeros(count)
        _list_costs(self.costs_s, received, sent, values)
        values = np.unique(values)
        return (values, values) if len(values) <= most else _buckets(values, buckets_per_e)


_latest: list[tuple[list[object], Choices]] = []
"""The latest problem, as its sites and fields, and its choices; or nothing."""


def _equal_numbers(a: object, b: object) -> bool:
    return isinstance(a, (int, str)) and a == b


def _different(values: FloatArray) -> FloatArray:
    """Returns the different finite values along the last axis, ascending, and infinity for all others."""
    ascending = np.sort(np.ascontiguousarray(values), axis=-1)
    ascending[..., 1:][ascending[..., 1:] == ascending[..., :-1]] = np.inf
    return np.ascontiguousarray(np.sort(ascending, axis=-1))


_BOUNDS = "(f8[:, :, :, ::1], f8[:, :, ::1], f8[:, :, ::1], {})"


@compiled(_BOUNDS.format("i8, i8, f8[::1], f8[::1]"))
def _fill_buckets(
    costs: FloatArray, received: FloatArray, sent: FloatArray, per_e: int, first: int, greatest: FloatArray,
    least: FloatArray,
) -> None:  # fmt: skip
    """Sets the greatest and the least cost in each interval of logarithms, `per_e` of them to a factor of e, from the
    one numbered `first` on: of each way to run layers, with what it takes in and sends; infinite values end a row.
    """
    for i, j, q in np.ndindex(costs.shape[:3]):
        for way in range(costs.shape[3]):
            if np.isinf(costs[i, j, q, way]):
                break
            for taking in received[i, q]:
                if np.isinf(taking):
                    break
                for sending in sent[j, q]:
                    if np.isinf(sending):
                        break
                    cost = costs[i, j, q, way] + taking + sending
                    place = int(np.floor(np.log(max(cost, 2.3e-308)) * per_e)) - first
                    greatest[place] = max(greatest[place], cost)
                    least[place] = min(least[place], cost)


@compiled(_BOUNDS.format("f8[::1]"))
def _list_costs(costs: FloatArray, received: FloatArray, sent: FloatArray, values: FloatArray) -> None:
    """Sets the costs of which `_fill_buckets` tells the greatest and the least, one after the other."""
    n = 0
    for i, j, q in np.ndindex(costs.shape[:3]):
        for way in range(costs.shape[3]):
            if np.isinf(costs[i, j, q, way]):
                break
            for taking in received[i, q]:
                if np.isinf(taking):
                    break
                for sending in sent[j, q]:
                    if np.isinf(sending):
                        break
                    values[n] = costs[i, j, q, way] + taking + sending
                    n += 1


@compiled("(f8[:, :, :, ::1], f8[:, :, :, ::1], i8[:, :, :, ::1], b1[:, ::1], i8[:, :, :, ::1])")
def _unbeaten(
    costs: FloatArray, weights: FloatArray, followers: IntArray, replaceable: NDArray[np.bool_], ways: IntArray
) -> int:
    """Sets first the ways of each entry that no other beats, of its class or of one that may stand for it, the first
    of equals; returns the most of them.
    """
    most, num_classes, num_ways = 0, costs.shape[2], costs.shape[3]
    for i in range(len(costs)):
        for j in range(i, len(costs)):
            for q in range(num_classes):
                count = 0
                for n in range(num_ways):
                    cost, weight, spare = costs[i, j, q, n], weights[i, j, q, n], followers[i, j, q, n]
                    is_beaten, other = np.isinf(cost), 0
                    while not is_beaten and other < num_classes:
                        for m in range(num_ways if replaceable[other, q] else 0):
                            a, b, c = costs[i, j, other, m], weights[i, j, other, m], followers[i, j, other, m]
                            first = other < q or (other == q and m < n)
                            same = a == cost and b == weight and c == spare
                            if a <= cost and b <= weight and c >= spare and (first or not same):
                                is_beaten = True
                                break
                        other += 1
                    if not is_beaten:
                        ways[i, j, q, count] = n
                        count += 1
                most = max(most, count)
    return most


def _logarithms(values: FloatArray) -> FloatArray:
    return np.log(np.maximum(values, np.finfo(float).tiny))


def _buckets(values: FloatArray, buckets_per_e: int) -> tuple[FloatArray, FloatArray]:
    """Returns the greatest and the least of values that are close together."""
    place = np.floor(_logarithms(values) * buckets_per_e)
    starts = np.flatnonzero(np.diff(place, prepend=-np.inf))
    return values[np.append(starts[1:], len(values)) - 1], values[starts]


def _members(of_class: IntArray) -> IntArray:
    """Returns the sites of each class, filled up with -1; shape (Q, most)."""
    members = [np.flatnonzero(of_class == n) for n in range(int(of_class.max()) + 1)]
    most = max(map(len, members))
    return np.array([np.pad(sites, (0, most - len(sites)), constant_values=-1) for sites in members])


def alike_sites(problem: SlicingProblem) -> Sites:
    """Returns the sites of a problem on hosts that are alike, with nothing to cross."""
    sizes, num = problem.submesh_sizes, len(problem.submesh_sizes)
    nowhere = np.zeros((num, num), dtype=np.int64)
    return Sites(sizes[:, None], np.array([problem.num_devices]), nowhere, np.zeros((problem.num_layers, 1)))
