"""The question that a slicer answers, and its answer."""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_table import RangeArray, RangeTable
from alpa_dejavu.problem import checks
from alpa_dejavu.problem._sites import Sites


class Objective(abc.ABC):
    """A measure of a slicing (the stages that layers are cut into), in seconds of any kind, that slicers make least:
    `SlicingProblem.objective` takes one in place of a name.

    Slicers that try plans ("exhaustive", "mcmc", "uniform") work with any; those that need a recurrence raise
    ValueError where they have none for it.
    """

    @abc.abstractmethod
    def total_s(self, problem: SlicingProblem, stages: tuple[StageChoice, ...]) -> float:
        """Returns the cost, in seconds, that an objective gives all stages of a slicing together, at least 0; infinite
        if the objective itself rules them out. The stages are in the order of the layers; the problem allows them, each
        at a finite cost.
        """


NO_LIMIT = 2**20
"""A number of succeeding stages that no pipeline reaches: Alpa's word for "memory sets no limit"."""
OBJECTIVES = ("training", "inference", "work")


@final
@dataclasses.dataclass(frozen=True)
class StageChoice:
    """A candidate stage: layers first..last (inclusive), with the indices of a submesh and its mesh config."""

    first: int
    last: int
    submesh: int
    config: int

    @property
    def entry(self) -> tuple[int, int, int, int]:
        """Returns the index (first, last, submesh, config) of the stage in arrays of shape (L, L, S, C)."""
        return self.first, self.last, self.submesh, self.config


@final
@dataclasses.dataclass(frozen=True, eq=False)
class SlicingProblem:
    """The problem of cutting L layers into stages, each with one of S submeshes and one of C mesh configs, so that an
    objective is least.

    Objective "training" is Alpa's: the sum of the stages' costs, plus (number of micro-batches - 1) times the largest,
    plus each stage's per-step cost once. "inference" is Alpa's too: the number of stages times the largest cost. "work"
    is for devices that share one CPU, where a pipeline takes as long as all its stages have work: the number of
    micro-batches times the sum of the costs, plus each stage's per-step cost once. Any other is an `Objective`, as
    `alpa_dejavu.slicing.makespan.Makespan` is.

    Attributes:
        costs_s: shape (L, L, S, C), seconds of one micro-batch, forward and backward, in a stage of layers i..j; inf
            where not offered. Like the other two of this shape it is an array, or a `RangeTable` that stands for one.
        submesh_sizes: shape (S,), the number of devices of each submesh.
        num_devices: the cluster's devices; a plan uses exactly that many ("at most" if `devices` says so).
        num_micro_batches: how many micro-batches a step has, B.
        max_n_succ_stages: shape (L, L, S, C), how many stages may follow before memory is full; -1: it never fits;
            None: memory sets no limit.
        per_step_s: shape (L, L, S, C), the seconds that a stage takes once a step; None: none.
        num_stages: if given, a plan has exactly that many stages.
        devices: whether a plan uses "exactly" or "at most" `num_devices`, and of each kind of host what `sites` has.
        sites: the hosts that submeshes are on, and the transfers between stages; None: hosts are alike, so that a
            submesh may be anywhere, and transfers take no time.
        families: shape (F, S, C), which submeshes with which configs are in each of F families: all stages of a plan
            are in one of them; None: any stages may go together.

    Raises ValueError for shapes that don't fit, NaN or negative costs and counts below one.

    References:
        Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning,
        OSDI 2022, section 5.
    """

    costs_s: RangeArray
    submesh_sizes: NDArray[np.int64]
    num_devices: int
    num_micro_batches: int
    max_n_succ_stages: RangeArray | None = None
    per_step_s: RangeArray | None = None
    num_stages: int | None = None
    devices: str = "exactly"
    objective: str | Objective = "training"
    sites: Sites | None = None
    families: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        owner = "slicing problem"
        costs, entries = _entries(self.costs_s, np.float64)
        sizes = np.asarray(self.submesh_sizes, dtype=np.int64)
        object.__setattr__(self, "costs_s", costs)
        object.__setattr__(self, "submesh_sizes", sizes)
        if costs.ndim != 4 or costs.shape[0] != costs.shape[1] or 0 in costs.shape or sizes.shape != costs.shape[2:3]:
            shapes = f"costs_s is {costs.shape} and submesh_sizes {sizes.shape}"
            raise ValueError(f"{owner}: {shapes}, not (L, L, S, C) and (S,)")
        if not (entries >= 0).all():
            where = tuple(int(x) for x in np.argwhere(~(np.asarray(costs) >= 0))[0])
            raise ValueError(f"{owner}: costs_s{where} is {costs[where]}; a cost is at least 0, or inf if not offered")
        if (sizes < 1).any():
            raise ValueError(f"{owner}: submesh_sizes is {sizes.tolist()}, but a submesh has at least one device")
        if self.max_n_succ_stages is not None:
            _check_whole(owner, "max_n_succ_stages", self.max_n_succ_stages)
            object.__setattr__(self, "max_n_succ_stages", _entries(self.max_n_succ_stages, np.int64)[0])
        if self.per_step_s is not None:
            once, entries = _entries(self.per_step_s, np.float64)
            object.__setattr__(self, "per_step_s", once)
            if not (entries >= 0).all():
                raise ValueError(f"{owner}: per_step_s has NaN or negative entries")
        for field in ("max_n_succ_stages", "per_step_s"):
            value = getattr(self, field)
            if value is not None and value.shape != costs.shape:
                raise ValueError(f"{owner}: {field} is {value.shape}, but costs_s is {costs.shape}")
        checks.count(owner, "num_devices", self.num_devices)
        checks.count(owner, "num_micro_batches", self.num_micro_batches)
        if self.num_stages is not None:
            checks.count(owner, "num_stages", self.num_stages)
        checks.one_of(owner, "devices", self.devices, ("exactly", "at most"))
        if not isinstance(self.objective, Objective) and self.objective not in OBJECTIVES:
            names = ", ".join(map(repr, OBJECTIVES))
            raise ValueError(f"{owner}: objective is {self.objective!r}, but must be one of {names}, or an Objective")
        if self.sites is not None:
            self.sites.check(costs.shape[0], sizes, self.num_devices)
        if self.families is not None and self.families.shape[1:] != costs.shape[2:]:
            raise ValueError(f"{owner}: families is {self.families.shape}, but must be (F, *{costs.shape[2:]})")

    def of_family(self, family: NDArray[np.bool_]) -> tuple[SlicingProblem, NDArray[np.intp], NDArray[np.intp]]:
        """Returns the problem of cutting layers into stages of one family alone, shape (S, C), with the submeshes and
        the configs that it has, by their indices here.
        """
        # An objective that is a function may know all choices by their indices.
        offered = np.ones_like(family) if isinstance(self.objective, Objective) else family
        submeshes, configs = (np.flatnonzero(offered.any(axis=axis)) for axis in (1, 0))
        rows, columns = submeshes[:, None], configs[None]
        entries, never = (slice(None), slice(None), rows, columns), np.where(family[rows, columns], 0.0, np.inf)
        tables = self.max_n_succ_stages, self.per_step_s
        followers, once = (None if table is None else table[entries] for table in tables)
        problem = dataclasses.replace(
            self,
            costs_s=self.costs_s[entries] + never,
            submesh_sizes=self.submesh_sizes[submeshes],
            max_n_succ_stages=followers,
            per_step_s=once,
            sites=self.sites and self.sites.part(submeshes.tolist()),
            families=None,
        )
        return problem, submeshes, configs

    def least_of_families_s(self) -> NDArray[np.float64]:
        """Returns for each family a bound below which none of its slicings costs, in seconds, shape (F,); 0 where the
        objective isn't "training".

        The largest of K stages isn't below a K-th of the least sum over all ways to cut the layers.
        """
        assert self.families is not None, "there are families"
        if self.objective != "training":
            return np.zeros(len(self.families))
        sizes = [self.submesh_sizes[family.any(axis=1)].min(initial=self.num_devices) for family in self.families]
        stages = np.clip(self.num_stages or self.num_devices // np.array(sizes), 1, self.num_layers)
        costs = self._least_of_families(self.costs_s)
        sums = _least_sums(costs), _least_sums(self._least_of_families(self.costs_s + self.once_s))
        largest = np.where(np.isfinite(sums[0]), sums[0], 0.0) / stages  # where nothing fits, the others are infinite
        return np.asarray(sums[1] + (self.num_micro_batches - 1) * largest)

    def _least_of_families(self, costs: RangeArray) -> NDArray[np.float64]:
        """Returns each family's least entry of each range, of entries of shape (L, L, S, C); shape (L, L, F)."""
        assert self.families is not None, "there are families"
        rows = costs.rows if isinstance(costs, RangeTable) else costs
        least = np.stack([rows[..., family].min(axis=-1, initial=np.inf) for family in self.families], axis=-1)
        return np.asarray(least[costs.of_range] if isinstance(costs, RangeTable) else least)

    @property
    def num_layers(self) -> int:
        """Returns L, the number of layers that are to be cut into stages."""
        return int(self.costs_s.shape[0])

    @property
    def followers(self) -> RangeArray:
        """Returns how many stages may follow each candidate stage before memory is full, shape (L, L, S, C); without
        `max_n_succ_stages`, there is no limit anywhere.
        """
        if self.max_n_succ_stages is None:
            return _filled(self.costs_s, NO_LIMIT)
        return self.max_n_succ_stages

    @property
    def once_s(self) -> RangeArray:
        """Returns the seconds that each candidate stage takes once a step, shape (L, L, S, C); zeros if not known."""
        return _filled(self.costs_s, 0.0) if self.per_step_s is None else self.per_step_s

    def total_s(self, stages: tuple[StageChoice, ...]) -> float:
        """Returns the problem's objective, in seconds, of a list of stages; infinite if the problem doesn't allow them.

        Raises:
            ValueError: the objective gave no number.
        """
        if not self._allows(stages):
            return math.inf
        costs = self.stage_costs_s(stages)
        if self.objective == "inference":
            return len(costs) * max(costs)
        once = sum(map(self.stage_once_s, stages))
        if isinstance(self.objective, Objective):
            total = float(self.objective.total_s(self, stages)) if math.isfinite(sum(costs) + once) else math.inf
            if math.isnan(total):
                raise ValueError(f"slicing problem: the objective {self.objective!r} gave nan for {stages}")
            return total
        if self.objective == "work":
            return self.num_micro_batches * sum(costs) + once
        return sum(costs) + (self.num_micro_batches - 1) * max(costs) + once

    def stage_costs_s(self, stages: Sequence[StageChoice]) -> list[float]:
        """Returns for each stage the seconds of one micro-batch, with the transfer from the stage before it, and where
        senders wait, too, with that to the next one.
        """
        costs = [float(self.costs_s[stage.entry]) for stage in stages]
        if self.sites is not None:
            for n, (before, stage) in enumerate(itertools.pairwise(stages), 1):
                crossed = self.sites.crossing(stage.first, before.submesh, stage.submesh)
                costs[n] += crossed
                costs[n - 1] += crossed if self.sites.both_wait else 0.0
        return costs

    def stage_once_s(self, stage: StageChoice) -> float:
        """Returns the seconds that a stage takes once a step, whatever the number of micro-batches."""
        return 0.0 if self.per_step_s is None else float(self.per_step_s[stage.entry])

    def _allows(self, stages: tuple[StageChoice, ...]) -> bool:
        starts = [s.first for s in stages]
        ends = [s.last + 1 for s in stages]
        used = sum(int(self.submesh_sizes[s.submesh]) for s in stages)
        most_successors = self.max_n_succ_stages
        return (
            bool(stages)
            and starts == [0, *ends[:-1]]
            and ends[-1] == self.num_layers
            and all(s.first <= s.last for s in stages)
            and (
                self.families is None
                or any(all(family[s.submesh, s.config] for s in stages) for family in self.families)
            )
            and (used == self.num_devices or (self.devices == "at most" and used < self.num_devices))
            and (self.sites is None or self.sites.hold([s.submesh for s in stages], self.devices))
            and self.num_stages in (None, len(stages))
            and (
                most_successors is None
                or all(len(stages) - 1 - n <= most_successors[stage.entry] for n, stage in enumerate(stages))
            )
        )


def _least_sums(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the least sums of ranges' costs, shape (L, L, F), over all ways to cut the layers into ranges."""
    sums = np.zeros((len(costs) + 1, costs.shape[2]))
    for end in range(1, len(sums)):
        sums[end] = (sums[:end] + costs[:end, end - 1]).min(axis=0)
    return sums[-1]


def _entries(values: Any, dtype: type[np.generic]) -> tuple[RangeArray, NDArray[Any]]:
    """Returns an array, or a table, with entries of a type, and an array that has all these entries."""
    if isinstance(values, RangeTable):
        table = values if values.dtype == dtype else RangeTable(values.rows.astype(dtype), values.of_range)
        return table, table.rows
    array = np.asarray(values, dtype=dtype)
    return array, array


def _filled(like: RangeArray, value: float) -> RangeArray:
    if isinstance(like, RangeTable):
        return RangeTable(np.full(like.rows.shape, value, dtype=type(value)), like.of_range)
    return np.full(like.shape, value, dtype=type(value))


def _check_whole(owner: str, field: str, value: Any) -> None:
    """Raises ValueError unless all are whole numbers, of whatever type."""
    entries = value.rows if isinstance(value, RangeTable) else np.asarray(value)
    if entries.dtype.kind in "iu":
        return
    if not (np.isfinite(entries) & (entries == np.floor(entries))).all():
        whole = np.asarray(value)
        where = tuple(int(x) for x in np.argwhere(~(np.isfinite(whole) & (whole == np.floor(whole))))[0])
        why = f"{field}{where} is {whole[where]}"
        raise ValueError(f"{owner}: {why}; give whole numbers: -1 where it never fits, {NO_LIMIT} for no limit")


@final
@dataclasses.dataclass(frozen=True)
class Slicing:
    """A slicer's answer to a slicing problem: the stages, their cost, and a lower bound of the cost of any slicing.

    Attributes:
        stages: in the order of the layers; empty if the problem has no solution, or the slicer found none.
        lower_bound_s: no slicing costs less; equal to `cost_s` if the slicer is exact.
        iterations: how many candidates, or rounds, the slicer took.
    """

    stages: tuple[StageChoice, ...]
    cost_s: float
    lower_bound_s: float
    iterations: int
    seconds: float

    @classmethod
    def of(
        cls,
        problem: SlicingProblem,
        stages: tuple[StageChoice, ...],
        lower_bound_s: float = 0.0,
        iterations: int = 0,
        seconds: float = 0.0,
    ) -> Slicing:
        """Returns the slicing that consists of these stages, with the problem's objective as its cost and a bound that
        is at most that cost.

        `lower_bound_s`, `iterations` and `seconds` become the attributes of these names. A bound of 0 promises nothing.
        """
        cost_s = problem.total_s(stages)
        return cls(stages, cost_s, min(lower_bound_s, cost_s), iterations, seconds)

    @property
    def found(self) -> bool:  # pylint: disable=disallowed-name
        """Returns whether the slicer found any stages."""
        return bool(self.stages)

    @property
    def gap(self) -> float:
        """Returns by how much at most the slicing's cost may exceed the best possible one, as a share of the bound."""
        if self.cost_s == self.lower_bound_s:
            return 0.0
        return math.inf if self.lower_bound_s <= 0 else self.cost_s / self.lower_bound_s - 1
