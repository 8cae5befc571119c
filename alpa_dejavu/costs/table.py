"""The cost table: every range of layers on every submesh with every config, by prefix sums and array operations.

Ranges that are alike stand in it once, as most of a large model's are: a range of equally many alike blocks costs the
same wherever it begins. An entry is what one micro-batch costs forward and backward. What a stage costs once a step
stands beside it. What crosses from stage to stage stands apart, since that depends on both. On unlike hosts a submesh
stands with those that it is on.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu._util.range_table import RangeArray, RangeKinds, RangeTable, common_kinds, numbered
from alpa_dejavu.clusters.host_classes import kinds_of, members_of_kinds
from alpa_dejavu.clusters.placement import devices_of_kinds
from alpa_dejavu.costs.interstage import InterstageTable, InterstageTransfer
from alpa_dejavu.costs.kept_prices import KeptPrices
from alpa_dejavu.costs.memory import MemoryLimits, StageMemory, successors_that_fit
from alpa_dejavu.costs.memory_margin import COUNTED, MemoryMargin
from alpa_dejavu.costs.runtime import CostModels, RuntimeProfile
from alpa_dejavu.costs.stage_costs import COST_KINDS, StageCostModel
from alpa_dejavu.costs.stage_devices import StageDevices, allowed_ranges
from alpa_dejavu.problem import Cluster, HostShare, Model, Run, SearchSpace, SlicingProblem, StageChoice
from alpa_dejavu.problem.slicing_problem import NO_LIMIT

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@final
@dataclasses.dataclass(frozen=True, eq=False)
class CostTable:
    """The costs of all stages of a model of L layers: entry (i, j, s, c) is of a stage of layers i..j on submesh s, one
    of S, with mesh config c, one of C. What has such entries is a `RangeTable`, or an array.

    Attributes:
        compute_forward_s, compute_backward_s: seconds of the operators of one micro-batch; finite everywhere, as the
            next four are.
        collective_forward_s, collective_backward_s: seconds of the collectives among the stage's devices, for one
            micro-batch.
        synchronisation_s, update_s: seconds once a step: of synchronising gradients; of the optimizer's update, and of
            what the runtime adds.
        offered: whether the search may take the stage.
        max_n_succ_stages: how many stages may follow before the stage's memory is full; -1: it doesn't fit.
        memory: `memory[s][c]` has the bytes of stages on submesh s with config c; None where there is no such config.
        memory_limit_bytes: the memory of the smallest device of each submesh.
        usable_bytes: what the margin leaves of it for stages whose peaks weren't measured.
        stage_costs: the model that predicted the entries; None where they were made otherwise.
        devices: the devices of each submesh, as `stage_costs` takes them.
        transfer: the model of transfers from stage to stage; None: they cost nothing.
        interstage: the seconds of these transfers from any submesh to any other; None: they cost nothing.
        margin: the memory margin, by which `max_n_succ_stages` reckons with more bytes than are counted from tensors,
            or leaves some free.
    """

    compute_forward_s: RangeArray
    compute_backward_s: RangeArray
    collective_forward_s: RangeArray
    collective_backward_s: RangeArray
    synchronisation_s: RangeArray
    update_s: RangeArray
    offered: RangeArray
    max_n_succ_stages: RangeArray
    memory: tuple[tuple[StageMemory | None, ...], ...]
    memory_limit_bytes: Float[FloatArray, " S"]
    usable_bytes: Float[FloatArray, " S"]
    stage_costs: StageCostModel | None = None
    devices: tuple[StageDevices, ...] = ()
    transfer: InterstageTransfer | None = None
    interstage: InterstageTable | None = None
    margin: MemoryMargin = COUNTED

    @property
    def compute_s(self) -> RangeArray:
        """Returns the seconds of each stage's operators for one micro-batch, forward and backward together."""
        return self.compute_forward_s + self.compute_backward_s

    @property
    def collective_s(self) -> RangeArray:
        """Returns the seconds of each stage's collectives for one micro-batch, forward and backward together."""
        return self.collective_forward_s + self.collective_backward_s

    @property
    def per_step_s(self) -> RangeArray:
        """Returns the seconds that each stage takes once a step: synchronising gradients, and the optimizer's
        update.
        """
        return self.synchronisation_s + self.update_s

    @property
    def costs_s(self) -> RangeArray:
        """Returns each stage's seconds of computing and collectives for one micro-batch; infinite where the search may
        not take the stage, or it doesn't fit in memory.
        """
        return self.compute_s + self.collective_s + _never(self.offered & (self.max_n_succ_stages >= 0))

    @property
    def compute_costs_s(self) -> FloatArray:
        """Returns Alpa's `compute_cost`: each stage's seconds for one micro-batch, with the transfer from the stage
        before it, which is taken to be on a submesh like its own.
        """
        return np.asarray(self.costs_s) + self._interstage_alike_s()[:-1, None, :, None]

    def _interstage_alike_s(self) -> FloatArray:
        """Seconds across the cuts before each layer and after the last one, between submeshes alike: (L + 1, S)."""
        seconds = np.zeros((len(self.offered) + 1, self.offered.shape[2]))
        if self.interstage is not None:
            alike = np.diagonal(self.interstage.links)
            seconds[:-1] = (self.interstage.forward_s + self.interstage.backward_s)[:, alike]
        return seconds

    def with_transfer(self, transfer: InterstageTransfer, space: SearchSpace) -> CostTable:
        """Returns the cost table, of the search space `space`, with another model of transfers between stages."""
        return dataclasses.replace(self, transfer=transfer, interstage=transfer.table(space))

    def with_memory(self, factor: float, run: Run) -> CostTable:
        """Returns the cost table, made for `run`, as if devices had `factor` times the usable memory."""
        return dataclasses.replace(
            self, max_n_succ_stages=self.successors(run, self.margin, factor * self.usable_bytes)
        )

    def successors(self, run: Run, margin: MemoryMargin, usable_bytes: Float[FloatArray, " S"]) -> RangeArray:
        """Returns how many stages may follow each stage before its memory is full (`max_n_succ_stages`), with another
        memory margin and other usable bytes of a device of each submesh.
        """
        return self._counts(
            lambda stage, s: successors_that_fit(margin.needed(stage), self.limits(s, float(usable_bytes[s])), run)
        )

    def holding(self, micro_batches: int) -> RangeArray:
        """Returns how many stages may follow each stage (`max_n_succ_stages`) if each keeps so many micro-batches,
        wherever it is: any number, or -1 where it doesn't fit.
        """
        return self._counts(
            lambda stage, s: np.where(self.limits(s).hold(self.margin.needed(stage), micro_batches), NO_LIMIT, -1)
        )

    def limits(self, submesh: int, device_bytes: float | None = None) -> MemoryLimits:
        """Returns the memory that a stage on a submesh may take of a device, and of the device's host; `device_bytes`
        in place of the usable bytes where they are given.
        """
        usable = float(self.usable_bytes[submesh]) if device_bytes is None else device_bytes
        return _limits(usable, self.devices[submesh].share if self.devices else None)

    def _counts(self, count: Callable[[StageMemory, int], NDArray[np.int64]]) -> RangeArray:
        """Returns how many stages may follow each stage, as `count` tells it of the memory of all stages on a submesh
        with a config; stages that have none stay as they are.
        """
        kept = [stage.resident for row in self.memory for stage in row if stage is not None]
        kinds = common_kinds([self.max_n_succ_stages, *kept])
        counts = kinds.table(self.max_n_succ_stages)
        for s, row in enumerate(self.memory):
            for c, stage in enumerate(row):
                if stage is not None:
                    counts.rows[:, s, c] = count(stage.mapped(lambda part: kinds.table(part).rows), s)
        return counts

    def interstage_s(
        self,
        stages: Sequence[StageChoice],
        space: SearchSpace,
        hosts: Sequence[Sequence[int]] | None = None,
        submesh_of: Sequence[int] | None = None,
    ) -> list[tuple[float, float]]:
        """Returns for each stage of a slicing the seconds of receiving one micro-batch: activations forward from the
        stage before it, and gradients backward from the stage behind it.

        Args:
            stages: the stages of the slicing, in the order of the layers.
            space: the search space that the table was made for.
            hosts: the indices of the hosts of each stage; None: any of the kinds that their submeshes take, and where
                there are enough, others than their neighbours'.
            submesh_of: the number of each stage's submesh among the pipeline's, where some have several: what stays
                on one takes no time. None: each stage has its own.
        """
        cuts = [(0.0, 0.0)]
        if self.interstage is None:
            cuts += [(0.0, 0.0)] * (len(stages) - 1)
        elif hosts is None or self.transfer is None:
            for before, after in itertools.pairwise(stages):
                cuts.append(self.interstage.seconds(after.first, before.submesh, after.submesh))
        else:
            counts = [space.submeshes[stage.submesh].devices_per_host for stage in stages]
            places = [[host for host in on for _ in range(n)] for on, n in zip(hosts, counts, strict=True)]
            for stage, (left, right) in zip(stages[1:], itertools.pairwise(places), strict=True):
                cuts.append(self.transfer.between(stage.first, left, right))
        for n, (own, following) in enumerate(itertools.pairwise(submesh_of or ()), 1):
            cuts[n] = (0.0, 0.0) if own == following else cuts[n]
        return [(ahead, back) for (ahead, _), (_, back) in zip(cuts, [*cuts[1:], (0.0, 0.0)], strict=True)]

    def part(self, submeshes: Sequence[int]) -> CostTable:
        """Returns the cost table with only some of its submeshes, given by their indices."""
        chosen = list(submeshes)
        columns = {name: getattr(self, name)[:, :, chosen] for name in (*COST_KINDS, "offered", "max_n_succ_stages")}
        return dataclasses.replace(
            self,
            **columns,
            memory=tuple(self.memory[s] for s in chosen),
            memory_limit_bytes=self.memory_limit_bytes[chosen],
            usable_bytes=self.usable_bytes[chosen],
            devices=tuple(self.devices[s] for s in chosen),
            interstage=self.interstage and self.interstage.of(chosen),
        )

    def slicing_problem(
        self,
        cluster: Cluster,
        space: SearchSpace,
        run: Run,
        hosts: Sequence[int] | None = None,
        senders_wait: bool = False,
    ) -> SlicingProblem:
        """Returns the slicing problem that a slicer solves: the stages' costs, the devices, and what a plan must keep
        to.

        On unlike hosts a plan may leave some unused: `hosts` says how many of each kind it may use, None: all. A
        transfer between two stages counts once, for the second stage; where `senders_wait`, as transfers aren't
        buffered, for the first one too: on alike hosts as if it led to a submesh like its own. Under a schedule with a
        smaller bubble than 1F1B's the objective is divided by its share of that. Where all devices share one CPU, a
        stage's cost counts by the share of the devices that its submesh has: a device's seconds are those of all of
        them computing at a time, so all of them are used.
        """
        sizes = np.array([submesh.num_devices for submesh in space.submeshes])
        unlike = space.hosts is not None
        available = devices_of_kinds(cluster, hosts)
        available = available if unlike else available.sum(keepdims=True)
        share = (sizes / cluster.num_devices)[:, None] if cluster.shared else np.ones((len(sizes), 1))
        # With a smaller bubble the sum of the stages' costs counts for less; more micro-batches have the same effect.
        bubble = 1.0 if cluster.shared else run.form.bubble
        costs, followers, once = self.costs_s, self.max_n_succ_stages, self.per_step_s
        sites = self.interstage and self.interstage.sites(cluster, space, run.num_micro_batches, available)
        if senders_wait and sites is not None and unlike and any(kinds_of(cluster)):
            sites = dataclasses.replace(sites, both_wait=True)
        elif senders_wait:
            sent_s = self._interstage_alike_s()[1:]
            kinds = common_kinds([costs, followers, once], np.broadcast_to(numbered(sent_s), (len(sent_s),) * 2))
            costs, followers, once = map(kinds.table, (costs, followers, once))
            costs = RangeTable(costs.rows + sent_s[kinds.lasts, :, None], costs.of_range)
        return SlicingProblem(
            costs_s=costs * share,
            submesh_sizes=sizes,
            num_devices=int(available.sum()),
            num_micro_batches=round(run.num_micro_batches / bubble),
            max_n_succ_stages=followers,
            per_step_s=once * share / bubble,
            devices="at most" if unlike and not cluster.shared else "exactly",
            objective="work" if cluster.shared else "inference" if run.schedule == "inference" else "training",
            sites=sites,
            families=_families(space),
        )


def cost_table(
    model: Model,
    cluster: Cluster,
    space: SearchSpace,
    run: Run,
    models: CostModels,
    margin: MemoryMargin = COUNTED,
    kept: KeptPrices | None = None,
) -> CostTable:
    """Returns the costs of all stages of a model on a cluster, for each submesh and config of a search space.

    A stage on unlike hosts takes as long as on the slowest of them, and has the memory of the smallest one: among the
    hosts that the search space names for its submesh, or among all hosts if it names none. `kept` has prices from
    before, and gets what it lacks.
    """
    kept = KeptPrices(model.num_layers) if kept is None else kept
    costs = StageCostModel(model, cluster, models, kept)
    named = space.hosts or [None] * len(space.submeshes)
    devices = tuple(costs.places.on_submesh(submesh, on) for submesh, on in zip(space.submeshes, named, strict=True))
    limits, usable = _memory_limits(models.runtime, cluster, space, margin)
    allowed = [allowed_ranges(model, submesh, cluster, space, s) for s, submesh in enumerate(space.submeshes)]
    pairs = dict.fromkeys(
        (on, config) for on, row in zip(devices, space.configs, strict=True) for config in row if config is not None
    )
    costs.price(pairs)
    costs.forget()  # what the table has, and all that it is made of, would take its memory several times
    kinds = kept.kinds.joined(RangeKinds.of_lengths(model.num_layers).split(np.array(allowed)).of_range)
    of_kinds = kept.kinds.of_range.ravel()[kinds.examples]
    memory = {}
    shape = len(kinds), len(space.submeshes), len(space.configs[0])
    seconds, successors = np.zeros((len(COST_KINDS), *shape)), np.full(shape, -1, dtype=np.int64)
    offered = np.zeros(shape, dtype=np.bool_)
    for s, (on, configs) in enumerate(zip(devices, space.configs, strict=True)):
        fitting = _limits(float(usable[s]), on.share)
        for c, config in enumerate(configs):
            if config is not None:
                of_stages, stage = costs.priced(on, config)
                seconds[:, :, s, c] = of_stages[:, of_kinds]
                stage = stage.mapped(lambda rows: rows[of_kinds])
                successors[:, s, c] = successors_that_fit(margin.needed(stage), fitting, run)
                offered[:, s, c] = kinds.rows(allowed[s])
                if config not in memory:
                    memory[config] = stage.mapped(lambda rows: RangeTable(rows, kinds.of_range))
    priced = {name: RangeTable(rows, kinds.of_range) for name, rows in zip(COST_KINDS, seconds, strict=True)}
    return CostTable(
        **priced, offered=RangeTable(offered, kinds.of_range),
        max_n_succ_stages=RangeTable(successors, kinds.of_range),
        memory=tuple(tuple(config and memory[config] for config in row) for row in space.configs),
        memory_limit_bytes=limits, usable_bytes=usable, stage_costs=costs, devices=devices, margin=margin,
        transfer=costs.interstage, interstage=costs.interstage.table(space),
    )  # fmt: skip


def _never(offered: RangeArray) -> RangeArray:
    """Returns 0 where a stage is offered, and infinity where it isn't."""
    if isinstance(offered, RangeTable):
        return RangeTable(np.where(offered.rows, 0.0, np.inf), offered.of_range)
    return np.where(offered, 0.0, np.inf)


def _families(space: SearchSpace) -> Bool[NDArray[np.bool_], "F S C"] | None:
    """Returns the families of a search space's entries; None where it has none."""
    if not space.families:
        return None
    families = np.zeros((len(space.families), len(space.submeshes), len(space.configs[0])), dtype=np.bool_)
    for n, family in enumerate(space.families):
        for entry in family:
            families[n][entry] = True
    return families


def _limits(device_bytes: float, share: HostShare | None) -> MemoryLimits:
    return MemoryLimits(device_bytes, *(() if share is None else (share.num_bytes, share.nvme_bytes)))


def _memory_limits(
    runtime: RuntimeProfile, cluster: Cluster, space: SearchSpace, margin: MemoryMargin
) -> tuple[Float[FloatArray, " S"], Float[FloatArray, " S"]]:
    """Returns the memory that each submesh's smallest device has, and that the margin leaves of one."""
    kinds, members = np.array(kinds_of(cluster)), members_of_kinds(cluster)
    hosts = runtime.hosts(cluster.hosts[of_kind[0]] for of_kind in members)
    every = [range(len(hosts))] * len(space.submeshes)
    used = every if space.hosts is None else [np.unique(kinds[list(numbers)]).tolist() for numbers in space.hosts]
    figures = np.array([(host.device.memory_bytes, margin.usable_bytes(host)) for host in hosts])
    has, leaves = np.array([figures[list(of_kinds)].min(axis=0) for of_kinds in used]).T
    return has, leaves
