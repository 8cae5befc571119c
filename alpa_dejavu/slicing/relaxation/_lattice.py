"""A problem as what the relaxations are computed on: small arrays of fixed shapes, in units of about one step.

What competes within a class of sites is thinned out first: of the ways to run layers there (a site of the class and a
config) only those stay that are cheapest, cheapest with what comes once a step, or leave the most room in memory.
Shapes are rounded up, so that few programs are compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_table import RangeArray
from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing._choices import Choices, alike_sites
from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray, IntArray, firsts_of, is_stage_of

NEVER = 1e4
"""The weight, in units, of what isn't offered."""
COUNTS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256)
"""Shapes are rounded up to one of these, or to a multiple of 64."""
DRAWN_AT = (1.0, 10.0, 100.0)
"""Temperatures at which plans are drawn, in terms of the coldest."""
WIDER, LEAST_RANGE = 1.5, 3.0
"""Bounds are looked for up to so many times what the largest of stages that are alike costs, and at least up to so many
times what any plan's has to."""
OVERRUN = 1.0
"""The penalty, in units, for each stage by which memory is expected to be overrun."""
SMALL, FEWEST, GROUPS, RESOURCES = 8, 48, 8, 4
"""Problems of so few layers share a program if they have no more choices, groups and resources than that."""


class Arrays(NamedTuple):
    """A slicing problem's arrays as JAX programs take them, by L layers, Z choices, G groups and R resources, all
    rounded up; times are in units of `Lattice.unit_s` seconds.

    A choice is a class of sites (submeshes with the same devices and links) with a way to run layers there (one of them
    with a config). A group is of classes with equal links to what follows. Resources are devices of a kind of host.

    Attributes:
        cost: shape (L, L, Z), the time of a stage of layers i..j that counts for the largest stage.
        weight: shape (L, L, Z), what the objective sums over stages; `NEVER` where not offered.
        followers: shape (L, L, Z), how many stages may follow.
        entry: shape (L, G, Z), what the transfer from a stage of a group adds to a weight.
        entry_cost: shape (L, Z), what that transfer adds to a cost, on the mean over the groups.
        uses: shape (Z, R), the share of each resource that a choice takes.
        group: shape (Z, G), the group of each choice, one-hot.
        steepness, share: what a unit over the bound on the largest stage costs, and a unit of the bound itself; as B -
            1.
        per_stage: how often the bound counts for each stage: once in inference, else never.
        exact, offered: shape (R,), 1 where all of a resource has to be used; 1 where there is any.
    """

    cost: Any
    weight: Any
    followers: Any
    entry: Any
    entry_cost: Any
    uses: Any
    group: Any
    steepness: Any
    share: Any
    per_stage: Any
    exact: Any
    offered: Any
    num_layers: Any


def rounded_up(count: int) -> int:
    """Returns an array dimension rounded up to one of a few sizes, so that few programs are compiled."""
    return next((size for size in COUNTS if size >= count), -(-count // 64) * 64)


@final
class Lattice:
    """A slicing problem prepared for the relaxations: its ways to run stages, but those that are hardly of use, and its
    `Arrays`.

    Attributes:
        choices: the problem's arrays by Q classes of sites (submeshes with the same devices and links).
        way: shape (L, L, Q, W), for layers i..j, which ways to run them on a class (a submesh and config) are kept.
        reference, highest: about how much the largest stage costs at least, and at most, in units of time.
    """

    def __init__(self, problem: SlicingProblem) -> None:
        self.problem = problem
        self.choices = choices = Choices(problem, problem.sites or alike_sites(problem))
        costs, num_layers = choices.costs_s, problem.num_layers
        self.num_kinds = 1 if problem.sites is None else len(problem.sites.available)
        finite = np.isfinite(costs)
        left = np.arange(num_layers - 1, -1, -1)
        self.limited = bool((finite & (choices.followers < left[None, :, None, None])).any())
        kept = [costs.argmin(axis=3)]
        if problem.per_step_s is not None:
            kept.append(choices.weights.argmin(axis=3))
        if self.limited:
            kept.append(np.where(finite, choices.followers, -2).argmax(axis=3))
        self.way: IntArray = np.stack(kept, axis=-1)
        at_least = float(_cheapest_around(costs.min(axis=(2, 3))).max())
        self.feasible = bool(np.isfinite(at_least)) and bool((choices.available >= 0).all())
        reference_s = max(at_least, self._balanced(costs)) if self.feasible else 1.0
        self.unit_s = (reference_s or 1.0) * (problem.num_micro_batches + 3)
        self.reference = (reference_s or 1.0) / self.unit_s
        alike_s = min(self._alike(costs), float(costs.max(initial=0.0, where=finite)))
        self.highest = max(WIDER * alike_s / self.unit_s, LEAST_RANGE * self.reference)
        self.arrays = self._arrays(problem)

    def thin(self, table: NDArray[Any]) -> NDArray[Any]:
        """Returns the entries of an array over all ways to run stages, (L, L, Q, P), for the kept ones: (L, L, Z)."""
        kept = np.take_along_axis(table, self.way, axis=3)
        return kept.reshape(*kept.shape[:2], -1)

    def by_ways(self, table: RangeArray) -> NDArray[Any]:
        """Returns an array of the problem, (L, L, S, C), by class of sites and way: (L, L, Q, P)."""
        layers = np.arange(self.problem.num_layers)
        submesh, config = self.choices.names
        return np.asarray(table)[layers[:, None, None, None], layers[:, None, None], submesh, config]

    def _balanced(self, costs: FloatArray) -> float:
        """Returns the cost of a stage if each layer has the devices that it makes best use of, and all are busy."""
        shares = self.choices.uses / np.maximum(self.choices.available, 1)
        busy = costs * shares.max(axis=1)[None, None, :, None]
        lengths = np.maximum(np.arange(len(costs))[None, :] - np.arange(len(costs))[:, None] + 1, 1)
        total = float(_cheapest_around(busy.min(axis=(2, 3)) / lengths).sum())
        return total if np.isfinite(total) else 0.0

    def _alike(self, costs: FloatArray) -> float:
        """Returns the least cost of the largest stage if all have as many layers, and devices of one class."""
        least, size, available = np.inf, len(costs), self.choices.available
        for q, uses in enumerate(self.choices.uses):
            if (uses <= available).all():
                used = uses > 0
                count = min(int((available[used] // uses[used]).min()), size)
                ends = np.round(np.linspace(0, size, count + 1)).astype(np.int64)
                least = min(least, float(costs[ends[:-1], ends[1:] - 1, q].min(axis=1).max()))
        return least

    def _arrays(self, problem: SlicingProblem) -> Arrays:
        choices, unit_s = self.choices, self.unit_s
        num_layers, ways = problem.num_layers, self.way.shape[3]
        size = rounded_up(max(num_layers, SMALL))
        chosen = len(choices.group) * ways
        small = size == SMALL
        width = rounded_up(max(chosen, FEWEST) if small else chosen)
        groups = rounded_up(max(choices.num_groups, GROUPS)) if small or choices.num_groups > 1 else 1

        def padded(table: NDArray[Any], *shape: int, filler: float) -> NDArray[np.float32]:
            out = np.full(shape, filler, dtype=np.float32)
            out[tuple(slice(n) for n in table.shape)] = np.nan_to_num(table, posinf=filler)
            return out

        costs, weights = self.thin(choices.costs_s) / unit_s, self.thin(choices.weights)
        scale = 1.0 if problem.objective == "inference" else unit_s
        weights = np.where(np.isfinite(costs), weights / scale, np.inf)
        per_stage = 1.0 if problem.objective == "inference" else 0.0
        if per_stage:
            weights = np.where(np.isfinite(costs), 0.0, np.inf)
        entry = np.repeat(choices.crossing_weights / unit_s, ways, axis=2)
        entry_cost = np.repeat(choices.crossing_s.mean(axis=1) / unit_s, ways, axis=1)
        uses = np.repeat(choices.uses / np.maximum(choices.available, 1), ways, axis=0)
        resources = max(len(choices.available), RESOURCES if small else 1)
        group = np.eye(groups)[np.repeat(choices.group, ways)]
        waits = problem.num_micro_batches - 1.0
        steepness, share = {"inference": (8.0, 0.0), "work": (0.0, 0.0)}.get(str(problem.objective), (waits, waits))
        return Arrays(
            padded(np.where(np.isfinite(costs), costs, 0.0), size, size, width, filler=0.0),
            padded(weights, size, size, width, filler=NEVER),
            padded(np.minimum(self.thin(choices.followers), size), size, size, width, filler=0.0),
            padded(entry, size, groups, width, filler=0.0),
            padded(entry_cost, size, width, filler=0.0),
            padded(uses, width, resources, filler=0.0),
            padded(group, width, groups, filler=0.0),
            np.float32(steepness),
            np.float32(share),
            np.float32(per_stage),
            padded(choices.exact.astype(np.float64), resources, filler=0.0),
            padded((choices.available > 0).astype(np.float64), resources, filler=0.0),
            np.int32(num_layers),
        )

    def batch(self, ends: IntArray, chosen: IntArray, count: IntArray) -> Batch:
        """Returns N plans as a `Batch`, given each stage's end and choice, shape (N, K), and the numbers of stages."""
        of_class, way = np.divmod(np.where(is_stage_of(ends, count), chosen, 0), self.way.shape[3])
        first, last = self._layers(ends)
        return self.of_ways(ends, of_class, self.way[first, last, of_class, way], count)

    def _layers(self, ends: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the first and the last layer of each stage, shape (N, K); some layer where there is no stage."""
        last = self.problem.num_layers - 1
        return np.clip(firsts_of(ends), 0, last), np.clip(ends - 1, 0, last)

    def of_ways(self, ends: IntArray, of_class: IntArray, way: IntArray, count: IntArray) -> Batch:
        """Returns the same given the class of sites of each stage and the way to run it there, of shape (N, K)."""
        is_stage = is_stage_of(ends, count)
        first, last = self._layers(ends)
        submesh, config = (names[first, last, of_class, way] for names in self.choices.names)
        return Batch(ends, np.where(is_stage, submesh, 0), np.where(is_stage, config, 0), count)


def _cheapest_around(costs: FloatArray) -> FloatArray:
    """Returns for each layer the least entry of a stage that has it; (L, L) to (L,)."""
    least = np.minimum.accumulate(costs, axis=0)
    return np.diagonal(np.minimum.accumulate(least[:, ::-1], axis=1)[:, ::-1])
