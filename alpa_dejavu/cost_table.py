"""The cost table: every range of layers on every submesh with every config, by prefix sums and array operations.

An entry is what one micro-batch costs forward and backward. What a stage costs once a step stands beside it. On unlike
hosts a submesh stands with those that it is on, and what crosses from stage to stage apart: that depends on both.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._allowed_ranges import allowed_ranges
from alpa_dejavu._ranges import FloatArray
from alpa_dejavu._site_prices import memory_limits, site_prices, slowest_device
from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.crossing import Crossings, crossings
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory import StageMemory, successors_that_fit
from alpa_dejavu.memory_margin import COUNTED, MemoryMargin
from alpa_dejavu.placement import devices_of_kinds, kinds_of_sites
from alpa_dejavu.pricing import KINDS, Pricing
from alpa_dejavu.problem import (
    Cluster,
    MeshConfig,
    Model,
    Run,
    SearchSpace,
    Sites,
    SlicingProblem,
    StageChoice,
    Submesh,
)

__all__ = ["CostTable", "cost_table"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class CostTable:
    """Arrays of shape (L, L, S, C); entry (i, j, s, c) is about layers i..j on submesh s with config c.

    Attributes:
        compute_forward_s, compute_backward_s: operators of one micro-batch; finite everywhere, as the next ones are.
        collective_forward_s, collective_backward_s: among the stage's devices, for one micro-batch.
        boundary_forward_s, boundary_backward_s: taking in what neighbouring stages send, for one micro-batch; zero
            where `crossings` has it.
        synchronisation_s, update_s: once a step: of gradients; the optimizer, and what the runtime adds.
        offered: whether the search may take the entry.
        max_n_succ_stages: how many stages may follow before memory is full; -1: it doesn't fit.
        memory: of submesh s with config c, None where there is no such config.
        memory_limit_bytes: of each device of submesh s, shape (S,).
        usable_bytes: what the margin leaves of it for stages whose peaks weren't measured, shape (S,).
        pricing: what the entries are made of; None where they were made otherwise.
        margin: by which `max_n_succ_stages` reckons with more memory than the analytic count, or leaves some free.
        on_sites: on unlike hosts, what the entries of each submesh are made of.
        crossings: on unlike hosts, what crosses from stage to stage.
    """

    compute_forward_s: FloatArray
    compute_backward_s: FloatArray
    collective_forward_s: FloatArray
    collective_backward_s: FloatArray
    boundary_forward_s: FloatArray
    boundary_backward_s: FloatArray
    synchronisation_s: FloatArray
    update_s: FloatArray
    offered: NDArray[np.bool_]
    max_n_succ_stages: NDArray[np.int64]
    memory: tuple[tuple[StageMemory | None, ...], ...]
    memory_limit_bytes: FloatArray
    usable_bytes: FloatArray
    pricing: Pricing | None = None
    margin: MemoryMargin = COUNTED
    on_sites: tuple[Pricing, ...] = ()
    crossings: Crossings | None = None

    @property
    def compute_s(self) -> FloatArray:
        """Operators, forward and backward."""
        return self.compute_forward_s + self.compute_backward_s

    @property
    def collective_s(self) -> FloatArray:
        """Collectives, forward and backward."""
        return self.collective_forward_s + self.collective_backward_s

    @property
    def boundary_s(self) -> FloatArray:
        """Transfers from neighbours, forward and backward; see `taken_s` for those on unlike hosts."""
        return self.boundary_forward_s + self.boundary_backward_s

    @property
    def per_step_s(self) -> FloatArray:
        """What comes once a step."""
        return self.synchronisation_s + self.update_s

    @property
    def costs_s(self) -> FloatArray:
        """Alpa's `compute_cost`: infinite where not offered, or where memory doesn't do."""
        total = self.compute_s + self.collective_s + self.boundary_s
        return np.where(self.offered & (self.max_n_succ_stages >= 0), total, np.inf)

    def pricing_of(self, submesh: int) -> Pricing:
        """What the entries of a submesh are made of."""
        assert self.pricing is not None, "a table that was priced keeps its prices"
        return self.on_sites[submesh] if self.on_sites else self.pricing

    def taken_s(
        self, stages: Sequence[StageChoice], space: SearchSpace, hosts: Sequence[Sequence[int]] | None = None
    ) -> list[tuple[float, float]]:
        """What each stage takes to take in what its neighbours send, forward and backward, for one micro-batch.

        Args:
            stages: of a slicing.
            space: of the table.
            hosts: of each stage; used where hosts are unlike. None: any of their submeshes' kinds.
        """
        if self.crossings is None:
            entries = [stage.entry for stage in stages]
            return [(float(self.boundary_forward_s[e]), float(self.boundary_backward_s[e])) for e in entries]
        crossed = [(0.0, 0.0)]
        if hosts is None:
            for one, other in itertools.pairwise(stages):
                crossed.append(self.crossings.expected_s(other.first, one.submesh, other.submesh))
        else:
            assert self.pricing is not None, "crossings were priced"
            places = [(space.submeshes[stage.submesh], on) for stage, on in zip(stages, hosts, strict=True)]
            for n, (before, after) in enumerate(itertools.pairwise(places), 1):
                crossed.append(self.crossings.placed_s(self.pricing, stages[n].first, before, after))
        return [(ahead, back) for (ahead, _), (_, back) in zip(crossed, [*crossed[1:], (0.0, 0.0)], strict=True)]

    def part(self, submeshes: Sequence[int]) -> CostTable:
        """The table of some of its submeshes, by their index; of alike hosts alone, since others stand for kinds."""
        chosen = list(submeshes)
        columns = {name: getattr(self, name)[:, :, chosen] for name in (*KINDS, "offered", "max_n_succ_stages")}
        memory, limits = tuple(self.memory[s] for s in chosen), self.memory_limit_bytes[chosen]
        return dataclasses.replace(self, **columns, memory=memory, memory_limit_bytes=limits)

    def slicing_problem(
        self, cluster: Cluster, space: SearchSpace, run: Run, hosts: Sequence[int] | None = None
    ) -> SlicingProblem:
        """What a slicer is asked.

        On unlike hosts a plan may leave some unused. `hosts`: how many of each kind (`host_kinds`) it may use.

        Where all devices share one CPU, an entry counts by the share of the machine that its submesh has: a device's
        seconds are those of all of them computing at a time, so all of them are used. What a micro-batch waits for
        between stages is hidden by the work on others, except while the pipeline fills and drains: once a step it
        counts in full.
        """
        sizes = np.array([submesh.num_devices for submesh in space.submeshes])
        objective = "inference" if run.schedule == "inference" else "training"
        available = devices_of_kinds(cluster, hosts)
        share = (sizes / cluster.num_devices)[:, None] if cluster.shared else np.ones((len(sizes), 1))
        return SlicingProblem(
            costs_s=self.costs_s * share,
            submesh_sizes=sizes,
            num_devices=int(available.sum()),
            num_micro_batches=run.num_micro_batches,
            max_n_succ_stages=self.max_n_succ_stages,
            per_step_s=self.per_step_s * share + self.boundary_s * (1 - share),
            devices="exactly" if self.crossings is None or cluster.shared else "at most",
            objective="work" if cluster.shared else objective,
            sites=None if self.crossings is None else self._sites(self.crossings, cluster, space, run, available),
        )

    def _sites(
        self, crossed: Crossings, cluster: Cluster, space: SearchSpace, run: Run, available: NDArray[np.int64]
    ) -> Sites:
        """Where the submeshes are; on a shared CPU what crosses counts as `slicing_problem` says of it."""
        links, seconds = crossed.links, crossed.forward_s + crossed.backward_s
        if cluster.shared:
            share = np.array([submesh.num_devices / cluster.num_devices for submesh in space.submeshes])
            counted = share + (1 - share) / run.num_micro_batches
            seconds = (seconds[:, :, None] * counted).reshape(len(seconds), -1)
            links = links * len(share) + np.arange(len(share))
        return Sites(kinds_of_sites(space, cluster), available, links, seconds)


def cost_table(
    model: Model,
    cluster: Cluster,
    space: SearchSpace,
    run: Run,
    latency: LatencyModel,
    communication: CommunicationModel,
    margin: MemoryMargin = COUNTED,
) -> CostTable:
    """The table of a model on a cluster; see `CostTable`.

    Layers on unlike hosts are costed on the slowest of them, and take the smallest one's memory: of the hosts of their
    submesh where the space names them, else of all.
    """
    pricing = Pricing(model, cluster, slowest_device(cluster.hosts), latency, communication)
    on_sites = site_prices(pricing, space)
    limits, usable = memory_limits(cluster, space, margin)
    shape = (model.num_layers, model.num_layers, len(space.submeshes), len(space.configs[0]))
    seconds = np.zeros((len(KINDS), *shape))
    room = np.full(shape, -1, dtype=np.int64)
    offered = np.zeros(shape, dtype=np.bool_)
    memory: list[tuple[StageMemory | None, ...]] = []
    known: dict[tuple[int, float, float, Submesh], int] = {}
    for one in dict.fromkeys(on_sites or [pricing]):
        one.prepare(_choices(space, [n for n in range(shape[2]) if not on_sites or on_sites[n] is one]))
    for s, (submesh, configs) in enumerate(zip(space.submeshes, space.configs, strict=True)):
        here = on_sites[s] if on_sites else pricing
        allowed = allowed_ranges(model, submesh, cluster, space, s)
        like = known.setdefault((id(here), float(limits[s]), float(usable[s]), submesh), s)
        if on_sites and like < s and space.configs[like] == configs:
            memory.append(memory[like])
            seconds[..., s, :], room[:, :, s] = seconds[..., like, :], room[:, :, like]
            offered[:, :, s, [config is not None for config in configs]] = allowed[:, :, None]
            continue
        kept = [None if config is None else here.memory(config) for config in configs]
        memory.append(tuple(kept))
        for c, (config, stage) in enumerate(zip(configs, kept, strict=True)):
            if config is None or stage is None:
                continue
            offered[:, :, s, c] = allowed
            seconds[..., s, c] = here.seconds(submesh, config)
            room[:, :, s, c] = successors_that_fit(margin.needed(stage), float(usable[s]), run)
    priced = dict(zip(KINDS, seconds, strict=True))
    return CostTable(
        **priced, offered=offered, max_n_succ_stages=room, memory=tuple(memory), memory_limit_bytes=limits,
        usable_bytes=usable, pricing=pricing, margin=margin, on_sites=on_sites,
        crossings=crossings(pricing, space) if on_sites else None,
    )


def _choices(space: SearchSpace, submeshes: Sequence[int]) -> Iterator[tuple[Submesh, MeshConfig]]:
    for n in submeshes:
        yield from ((space.submeshes[n], config) for config in space.configs[n] if config is not None)
