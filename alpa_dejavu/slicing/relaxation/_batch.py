"""Many plans of one problem at once, as arrays: what they cost, and whether they are allowed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_table import RangeArray
from alpa_dejavu.problem import SlicingProblem, StageChoice

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def firsts_of(ends: IntArray) -> IntArray:
    """Returns the first layer of each stage, given one past each stage's last layer; both of shape (N, K)."""
    return np.concatenate([np.zeros_like(ends[:, :1]), ends[:, :-1]], axis=1)


def is_stage_of(ends: IntArray, count: IntArray) -> BoolArray:
    """Returns which of K places hold a stage, given each plan's number of stages; shape (N, K)."""
    return np.asarray(np.arange(ends.shape[1]) < count[:, None])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """N plans, each of which cuts L layers into up to K stages, as arrays.

    Attributes:
        ends: shape (N, K), one past each stage's last layer; L for stages that a plan doesn't have.
        submesh, config: shape (N, K), as the problem numbers them; 0 for stages that a plan doesn't have.
        count: shape (N,), how many stages each plan has.
    """

    ends: IntArray
    submesh: IntArray
    config: IntArray
    count: IntArray

    def __len__(self) -> int:
        return len(self.count)

    @classmethod
    def of(cls, plans: Sequence[Sequence[StageChoice]]) -> Batch:
        width = max((len(plan) for plan in plans), default=1) or 1
        ends, submesh, config = (np.zeros((len(plans), width), dtype=np.int64) for _ in range(3))
        for n, plan in enumerate(plans):
            ends[n] = plan[-1].last + 1
            for k, stage in enumerate(plan):
                ends[n, k], submesh[n, k], config[n, k] = stage.last + 1, stage.submesh, stage.config
        return cls(ends, submesh, config, np.array([len(plan) for plan in plans], dtype=np.int64))

    @property
    def firsts(self) -> IntArray:
        """Returns the first layer of each stage; shape (N, K)."""
        return firsts_of(self.ends)

    @property
    def is_stage(self) -> BoolArray:
        """Returns which places hold a stage; shape (N, K)."""
        return is_stage_of(self.ends, self.count)

    @property
    def counts_met(self) -> IntArray:
        """Returns the index of the first plan with each number of stages that any has, ascending."""
        return np.sort(np.unique(self.count, return_index=True)[1])

    def stages(self, n: int) -> tuple[StageChoice, ...]:
        rows = zip(self.firsts[n], self.ends[n] - 1, self.submesh[n], self.config[n], strict=True)
        return tuple(StageChoice(*map(int, row)) for row in list(rows)[: int(self.count[n])])

    def take(self, where: IntArray | BoolArray) -> Batch:
        """Returns some of the plans, by indices or a mask."""
        return Batch(self.ends[where], self.submesh[where], self.config[where], self.count[where])

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        width = max(batch.ends.shape[1] for batch in batches)
        more = [((0, 0), (0, width - batch.ends.shape[1])) for batch in batches]
        return cls(
            np.concatenate([np.pad(batch.ends, pad, mode="edge") for batch, pad in zip(batches, more, strict=True)]),
            np.concatenate([np.pad(batch.submesh, pad) for batch, pad in zip(batches, more, strict=True)]),
            np.concatenate([np.pad(batch.config, pad) for batch, pad in zip(batches, more, strict=True)]),
            np.concatenate([batch.count for batch in batches]),
        )

    def distinct(self) -> Batch:
        """Returns the plans without repeated ones, in the order in which they are first met."""
        rows = np.concatenate([self.ends, self.submesh, self.config, self.count[:, None]], axis=1).astype(np.int32)
        whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1] * 4))).ravel()
        _, first = np.unique(whole, return_index=True)
        return self.take(np.sort(first))

    def key(self, n: int) -> bytes:
        """Returns bytes that identify a plan, however many places for stages the batch has."""
        count = int(self.count[n])
        return np.concatenate([part[n, :count] for part in (self.ends, self.submesh, self.config)]).tobytes()


@final
class PlanTable:
    """The arrays of a slicing problem: they evaluate the stages of N plans of up to K stages at once."""

    def __init__(self, problem: SlicingProblem) -> None:
        self.problem = problem
        self._layers = problem.num_layers
        self._room = problem.max_n_succ_stages
        self._uses = problem.submesh_sizes[:, None] if problem.sites is None else problem.sites.uses
        self._available = np.array([problem.num_devices]) if problem.sites is None else problem.sites.available

    def entries(self, table: RangeArray, batch: Batch) -> FloatArray:
        """Returns each stage's entry in an array of the shape of the problem's costs, (L, L, S, C); shape (N, K)."""
        lasts = np.clip(batch.ends - 1, 0, self._layers - 1)
        firsts = np.clip(batch.firsts, 0, self._layers - 1)
        entries = table[firsts, lasts, batch.submesh, batch.config].astype(np.float64)
        return np.asarray(np.where(batch.is_stage, entries, 0.0))

    def costs_s(self, batch: Batch) -> FloatArray:
        """Returns each stage's seconds for one micro-batch, without transfers; shape (N, K)."""
        return self.entries(self.problem.costs_s, batch)

    def once_s(self, batch: Batch) -> FloatArray:
        """Returns each stage's seconds that come once a step, such as the update; shape (N, K)."""
        per_step = self.problem.per_step_s
        return np.zeros(batch.ends.shape) if per_step is None else self.entries(per_step, batch)

    def crossing_s(self, batch: Batch) -> FloatArray:
        """Returns a micro-batch's seconds of the way to each stage from the one before, and back; shape (N, K)."""
        crossed = np.zeros(batch.ends.shape)
        sites = self.problem.sites
        if sites is not None and crossed.shape[1] > 1:
            links = sites.links[batch.submesh[:, :-1], batch.submesh[:, 1:]]
            starts = np.clip(batch.firsts[:, 1:], 0, self._layers - 1)
            crossed[:, 1:] = np.where(batch.is_stage[:, 1:], sites.crossing_s[starts, links], 0.0)
        return crossed

    def devices(self, batch: Batch) -> FloatArray:
        """Returns the share of all devices that each stage takes; shape (N, K)."""
        return np.where(batch.is_stage, self.problem.submesh_sizes[batch.submesh], 0) / self.problem.num_devices

    def risk(self, batch: Batch) -> FloatArray:
        """Returns how many stages more than its memory allows follow each stage; shape (N, K)."""
        if self._room is None:
            return np.zeros(batch.ends.shape)
        followed = batch.count[:, None] - 1 - np.arange(batch.ends.shape[1])
        return np.asarray(np.where(batch.is_stage, np.maximum(followed - self.entries(self._room, batch), 0), 0.0))

    def allowed(self, batch: Batch) -> BoolArray:
        """Returns which plans keep to the problem's layers, devices, memory and number of stages; shape (N,)."""
        problem, is_stage = self.problem, batch.is_stage
        used = np.einsum("nk,nkr->nr", is_stage.astype(np.int64), self._uses[batch.submesh])
        total = used if problem.devices == "exactly" else np.minimum(used, self._available)
        fits = (total == self._available).all(axis=1) if problem.devices == "exactly" else (used == total).all(axis=1)
        if problem.sites is not None and problem.sites.packing is not None:
            packed = np.einsum("nk,nkr->nr", is_stage.astype(np.int64), problem.sites.packing[batch.submesh])
            fits &= (packed <= problem.sites.capacity).all(axis=1)
        ends = np.where(batch.count > 0, batch.ends[np.arange(len(batch)), np.maximum(batch.count - 1, 0)], 0)
        whole = (ends == self._layers) & ((batch.firsts < batch.ends) | ~is_stage).all(axis=1)
        if problem.num_stages is not None:
            whole &= batch.count == problem.num_stages
        finite = np.isfinite(self.costs_s(batch) + self.once_s(batch)).all(axis=1)
        return np.asarray(fits & whole & finite & (self.risk(batch) <= 0).all(axis=1))

    def totals_s(self, batch: Batch) -> FloatArray:
        """Returns the seconds of a step by the problem's named objective; (N,), infinite where not allowed."""
        problem, allowed = self.problem, self.allowed(batch)
        costs = np.where(allowed[:, None], self.costs_s(batch) + self.crossing_s(batch), 0.0)
        once = np.where(allowed[:, None], self.once_s(batch), 0.0).sum(axis=1)
        if problem.objective == "inference":
            totals = batch.count * costs.max(axis=1)
        elif problem.objective == "work":
            totals = problem.num_micro_batches * costs.sum(axis=1) + once
        else:
            totals = costs.sum(axis=1) + (problem.num_micro_batches - 1) * costs.max(axis=1) + once
        return np.asarray(np.where(allowed, totals, np.inf))
