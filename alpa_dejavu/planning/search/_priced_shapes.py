"""Costs and candidates of shapes on one cluster, each worked out once."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.phases import phase
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu._util.range_table import common_kinds
from alpa_dejavu._util.search_watch import candidate_priced, candidates_begun, is_stopped
from alpa_dejavu._util.ties import least
from alpa_dejavu.costs.kept_prices import KeptPrices
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.planning.search._candidate import Candidate, Costs, alone, best_first, fitting
from alpa_dejavu.planning.search._polish import polished
from alpa_dejavu.planning.search._pricing import priced
from alpa_dejavu.planning.search._remat_parts import with_parts
from alpa_dejavu.planning.search._shapes import Shape, ShapeSearch
from alpa_dejavu.planning.task import Clock, PlanningTask, SpaceRules
from alpa_dejavu.problem import (
    Device,
    MeshConfig,
    Model,
    NoPlanError,
    NoShardingError,
    Run,
    SearchSpace,
    Sharding,
    StageChoice,
    Submesh,
)
from alpa_dejavu.problem.run import ALPA_SCHEDULES, schedule_form
from alpa_dejavu.sharding.transformers import TransformerSharding
from alpa_dejavu.simulation.breakdown import AS_FAST
from alpa_dejavu.simulation.step import sending
from alpa_dejavu.slicing import Dynamic, Slicer

__all__ = ["PricedShapes", "is_small", "least_work_s"]

Entry: TypeAlias = tuple[Submesh, tuple[int, ...], MeshConfig]
"""A submesh, the hosts that it is on, and a config of it."""

_SURE, _DOUBT = 2.0, 3e-3
"""Plans priced by a scaled model rival the best one within so many times what scaling was seen to make steps too long,
and at least within what it was seen to be off, or this share; they are then priced at their own micro-batch. Plans for
which a scaled model has too little memory are, too, if they would fit with so many times what its bytes were seen to be
off."""
_FAR = 1.5
"""Costs by which plans take over so many times the best one's step are forgotten but for these plans' own: of thousands
of devices and many layers they are gigabytes."""
_HOPELESS, _ALSO, _NEAR, _BRIEFLY = 1.25, 1.05, 1.02, 0.25
"""Of many unlike hosts, plans that take so many times the best one's step aren't looked for: those of any number of
stages, those of another number, and those by which the best one may be beaten yet. All but the first are looked for
with a share of a slicer's effort."""
_SAME_BYTES = 0.01
"""Bytes of scaled models that are off by less are taken as they are."""
_SMALL = {False: 256, True: 64}
"""Up to so many layers times devices all shapes are looked at, on all numbers of hosts; unlike hosts take longer."""
_MANY, _FIRST, _RIVAL = 32, 12, 1.02
"""Of more configs so many are priced first, and of the others only those by whose bounds a plan takes less than so many
times the best one's step."""
_FINALISTS = 3
"""About so many shapes are priced once more, at their own micro-batch."""
_POLISHED = 3
"""So many of the best candidates have their cuts moved, as long as that makes their simulated steps shorter."""


@final
class PricedShapes:
    """A store of stage costs and best plans on one cluster, by numbers of layers, micro-batches and stages.

    It begins with costs that are known for other schedules, or on a larger cluster, where they hold here, too.
    """

    def __init__(self, task: PlanningTask, clock: Clock, costs: Iterable[Costs] = ()) -> None:
        self.task, self.clock = task, clock
        self._costs: dict[tuple[int, int], Costs] = {}
        self._best: dict[Shape, Candidate | None] = {}
        self._errors: dict[bool, list[float]] = {}  # of steps, by whether they were scaled from the first micro-batch
        self._bytes_off = 0.0
        self._forgotten_work_s = math.inf
        self._scaled_from: dict[tuple[int, int], int] = {}  # samples in the micro-batch that was traced
        self._corrected: set[tuple[int, int]] = set()  # whose seconds were corrected by what an exact price was off
        self._looked_at: set[Shape] = set()
        for other in costs:
            key = other.model.num_layers, other.run.num_micro_batches
            part = other if other.cluster is task.cluster and not other.partial else other.on(task.cluster)
            if key not in self._costs and part is not None:
                self._costs[key] = part.under(task.schedule)
                self._scaled_from[key] = task.source.nearest(key[0], task.micro_batch(key[1]))

    @property
    def priced(self) -> list[Costs]:
        """Returns the stage costs worked out so far, one for each pair of numbers of layers and micro-batches."""
        return list(self._costs.values())

    def searched(self, search: ShapeSearch, exactly: bool = True) -> list[Candidate]:
        """Returns the candidate plans that a search over numbers of layers, micro-batches and stages finds, best first.

        The best plan and its rivals are priced with the model traced at their own micro-batch; with `exactly` False
        they may stay priced by a model that was scaled from another micro-batch.
        """
        finalists = _FINALISTS if exactly and self.task.source.traces else 0
        candidates_begun()
        while not is_stopped() and (shape := search.ask()) is not None:
            anew = all(other.layers != shape.layers for other in search.told)
            candidate = self.candidate(shape)
            search.tell(
                shape, *(math.inf, 0) if candidate is None else (candidate.step_s, len(candidate.slicing.stages))
            )
            self._forget_far()
            if not shape.stages:
                again, further = search.left
                candidate_priced(candidate is not None, (again, further + finalists), anew)
        while exactly and not is_stopped() and (scaled := self._finalist() or self._short_of_memory()) is not None:
            self._price_again(scaled)
            finalists = max(finalists - 1, 1)
            candidate_priced(True, (0, finalists), anew=True)
        # Of plans that differ in layers alone, those that weren't the best ones weren't priced exactly.
        plans = best_first(plan for shape, plan in self._best.items() if _key(shape) not in self._corrected)
        slicer = self.task.slicer
        if not isinstance(slicer, Dynamic):  # who asks for another search gets what that finds
            return plans
        if self.task.unlike:  # of alike hosts those are among them already
            near = self.within(_NEAR)
            filled = [costs.filled(near) for costs in dict.fromkeys(plan.costs for plan in plans[:_POLISHED])]
            plans = best_first([*plans, *(fitting(plan) for plan in filled if plan is not None)])
        configs = is_small(self.task) and self.task.schedule in ALPA_SCHEDULES
        return [*(polished(plan, configs) for plan in plans[:_POLISHED]), *plans[_POLISHED:]]

    def candidate(self, shape: Shape) -> Candidate | None:
        """Returns the best plan, simulated, with given numbers of layers, micro-batches and stages; or None."""
        if shape not in self._best:
            offers = list(self._offers(shape))
            phase(f"slicing {shape.layers} layers, {shape.micro_batches} micro-batches")
            slicer = self.within(_ALSO) if shape.stages else self.within(_HOPELESS, share=1.0)
            plans = best_first(costs.sliced(slicer, shape.stages or None) for costs in offers)
            self._best[shape] = plans[0] if plans else None
            self.clock.lap("slicing")
        return self._best[shape]

    def within(self, times: float, share: float = _BRIEFLY) -> Slicer:
        """Returns the task's slicer; on many unlike hosts one that looks, with a share of its effort, only for plans
        that take less than so many times the best one's step.
        """
        slicer, form = self.task.slicer, schedule_form(self.task.schedule)
        if not isinstance(slicer, Dynamic) or not self._limited:
            return slicer
        return slicer.within(times * self._best_s / form.bubble, share)

    @functools.cached_property
    def _limited(self) -> bool:
        """Whether hosts are unlike and many, and the closed form counts what senders and receivers wait, so that it is
        close to a step.
        """
        waits = sending(self.task.schedule) == "blocking" and not self.task.prices.models.runtime.overlap.streams
        return waits and self.task.unlike and not is_small(self.task)

    @property
    def _best_s(self) -> float:
        return min((plan.step_s for plan in self._best.values() if plan is not None), default=math.inf)

    def _forget_far(self) -> None:
        """Keeps of costs by which every plan is far from the best one what these plans need alone."""
        far_s = _FAR * self._best_s
        for key in list(self._costs):
            plans = {shape: plan for shape, plan in self._best.items() if plan is not None and _key(shape) == key}
            if plans and all(plan.step_s > far_s for plan in plans.values()):
                self._forgotten_work_s = min(self._forgotten_work_s, _work_s(self._costs.pop(key)))
                self._best.update((shape, alone(plan)) for shape, plan in plans.items())

    def _offers(self, shape: Shape) -> Iterator[Costs]:
        """The costs of all stages that plans of a shape may have; those of a stage on all devices may stand apart."""
        try:
            costs = self.costs(shape.layers, shape.micro_batches)
        except NoPlanError:  # no submesh is on these hosts
            return
        yield costs
        if costs.partial and shape.stages <= 1 and is_small(self.task):  # solving for such meshes takes long
            space = self.task.space.space(self.task.cluster, self.task.micro_batch(shape.micro_batches))
            whole = [s for s, submesh in enumerate(space.submeshes) if submesh.num_devices == costs.cluster.num_devices]
            if whole:
                alone = self._of(costs.model, space.part(whole), costs.run, costs.exact)
                yield dataclasses.replace(alone, partial=True)

    def costs(self, layers: int, count: int, exactly: bool = False) -> Costs:
        """Returns the costs of all stages of a model cut into `layers` layers, with the batch in `count` micro-batches.

        If the model was traced at another micro-batch, it is scaled to this one; with `exactly` it is traced anew.
        """
        key, task, micro_batch = (layers, count), self.task, self.task.micro_batch(count)
        if key not in self._costs or (exactly and not self._costs[key].exact):
            exact = exactly or micro_batch == task.source.micro_batch or not task.source.scales
            self._scaled_from[key] = micro_batch if exact else task.source.nearest(layers, micro_batch)
            model = (task.source.exact if exact else task.source.scaled)(layers, micro_batch)
            self.clock.lap("features")
            space = task.space.space(task.cluster, micro_batch)
            self._costs[key] = self._of(model, space, Run(count, task.schedule), exact)
        return self._costs[key]

    def _of(self, model: Model, space: SearchSpace, run: Run, exact: bool) -> Costs:
        samples, models = self.task.micro_batch(run.num_micro_batches), self.task.prices.models
        kept = self.task.source.prices(model.num_layers, samples, exact, models)
        if model.sharding is not None:
            phase(f"sharding {len(model.layers)} layers")
            space = _fitting(_divisible(model.sharding, space), model.sharding, self.task, run)
            space, kept = self._hopeful(model, space, run, kept)
            self.clock.lap("sharding")
        phase(f"costs of stages, {len(model.layers)} layers, {run.num_micro_batches} micro-batches")
        costs = priced(self.task, model, self.task.cluster, space, run, exact, kept=kept)
        self.clock.lap("cost table")
        return costs

    def _hopeful(
        self, model: Model, space: SearchSpace, run: Run, kept: KeptPrices | None
    ) -> tuple[SearchSpace, KeptPrices | None]:
        """Returns the space without the configs that a bound on their steps rules out, and the prices of some of them.

        Where a plan's stages are alike, each of K devices in a row computes and exchanges a K-th of all layers at least
        for each micro-batch. Those of the least bounds are priced first: their best plan is one to be beaten.
        """
        task, configs = self.task, [config for row in space.configs for config in row if config is not None]
        if not space.families or len(configs) <= _MANY or task.unlike or task.cluster.shared or task.learned:
            return space, kept
        costs, seconds = StageCostModel(model, task.cluster, task.prices.models), dict[object, float]()
        bounds = dict[MeshConfig, float]()
        alike = [
            (costs.places.on_submesh(submesh, None), dataclasses.replace(config, zero=0, sharded=0), config)
            for submesh, row in zip(space.submeshes, space.configs, strict=True)
            for config in row
            if config is not None
        ]
        costs.prepare((devices, plain) for devices, plain, _ in alike)
        for devices, plain, config in alike:
            key = devices, plain.division_key, plain.remat, plain.remat_share
            if key not in seconds:
                seconds[key] = float(costs.exposed_s(devices, plain).sum())
            stages = task.cluster.num_devices // (plain.data_parallel * plain.tensor_parallel)
            bounds[config] = seconds[key] * run.num_micro_batches / stages
        order, first, plan = sorted(bounds, key=bounds.__getitem__), set[MeshConfig](), None
        kept = KeptPrices(model.num_layers) if kept is None else kept
        while plan is None and len(first) < len(order):
            first = set(order[: max(_FIRST, _FIRST * len(first))])
            some = space.filtered(first.__contains__).compacted()
            plan = priced(task, model, task.cluster, some, run, kept=kept).sliced(task.slicer)
        rival_s = _RIVAL * min(self._best_s, math.inf if plan is None else plan.step_s)
        hopeful = space.filtered(lambda config: config in first or bounds[config] <= rival_s)
        return hopeful.compacted(), kept

    def _finalist(self) -> Shape | None:
        """The best shape that was priced by another micro-batch's model, if it may be the best one; of several hosts,
        where plans of more layers are preferred, the one of most layers among those that are as fast.
        """
        best = {shape: plan for shape, plan in self._best.items() if plan is not None}
        scaled = {
            shape: plan.step_s for shape, plan in best.items() if not plan.costs.exact and _key(shape) in self._costs
        }
        if not scaled or not self.task.source.traces:
            return None
        as_fast = AS_FAST if len(self.task.cluster.hosts) > 1 else 0.0
        exact = [plan for plan in best.values() if plan.costs.exact]
        exact_s = min((plan.step_s for plan in exact), default=math.inf)
        finest = max((p.model.num_layers for p in exact if p.step_s <= exact_s * (1 + as_fast)), default=0)

        def may_win(shape: Shape) -> bool:
            if _key(shape) in self._corrected:
                return scaled[shape] <= exact_s * (1 + (as_fast if shape.layers > finest else -as_fast))
            return scaled[shape] <= self._best_s * (1 + self._doubt(_key(shape)))

        rivals = [shape for shape in scaled if may_win(shape)]
        if as_fast and rivals:
            near_s = min(scaled[shape] for shape in rivals) * (1 + as_fast)
            most = max(shape.layers for shape in rivals if scaled[shape] <= near_s)
            rivals = [shape for shape in rivals if shape.layers == most]
        return least(rivals, key=lambda shape: scaled[shape]) if rivals else None

    def _doubt(self, key: tuple[int, int]) -> float:
        """The share by which scaled steps may be off, by what those from the same micro-batch were, or all of them.

        The first micro-batch may have too few samples to be divided as larger ones are, so that it says less of these.
        """
        of_first = self._is_of_first(key)
        errors = self._errors.get(of_first) or [error for errors in self._errors.values() for error in errors]
        return max([_DOUBT, *(max(_SURE * error, -error) for error in errors)])

    def _is_of_first(self, key: tuple[int, int]) -> bool:
        return self._scaled_from[key] == self.task.source.micro_batch

    def _short_of_memory(self) -> Shape | None:
        """A shape that would beat the best one, were its scaled model's bytes as far off as others were seen to be."""
        best = best_first(self._best.values())
        if not best or self._bytes_off < _SAME_BYTES or not self.task.source.traces:
            return None
        bound = best[0].step_s * (1 - AS_FAST)
        for shape in sorted(self._best, reverse=True):
            costs = self._costs.get((shape.layers, shape.micro_batches))
            if costs is None or shape.stages or costs.exact or shape in self._looked_at:
                continue
            self._looked_at.add(shape)
            more_memory = costs.table.with_memory(1 + _SURE * self._bytes_off, costs.run)
            plan = dataclasses.replace(costs, table=more_memory).sliced(self.within(_NEAR))
            self.clock.lap("slicing")
            if plan is not None and plan.step_s < bound:
                return shape
        return None

    def _price_again(self, shape: Shape) -> None:
        """Prices a number of layers and micro-batches at its own micro-batch, or first by a model of a nearer one that
        was traced since, and slices again what was sliced.

        An exact price says how far scaled ones are off on each submesh: those of more or fewer layers are corrected.
        """
        key, samples = _key(shape), self.task.micro_batch(shape.micro_batches)
        nearest, before = self.task.source.nearest(shape.layers, samples), self._costs[key]
        alike = [other for other in self._costs if other != key and other[1] == key[1]]
        alike = [other for other in alike if self._scaled_from[other] == self._scaled_from[key]]
        of_first = self._is_of_first(key)
        exactly = self._limited or nearest in (samples, self._scaled_from[key])  # many unlike hosts take long to slice
        if not exactly:
            del self._costs[key]
        costs, far_s = self.costs(*key, exactly=exactly), _FAR * self._best_s
        self._corrected.discard(key)
        for other, scaled in self._plans(key):
            if self._limited and other.stages and (scaled is None or scaled.step_s > _NEAR * far_s / _FAR):
                self._best[other] = None
                continue
            del self._best[other]
            if (again := self.candidate(other)) is not None and exactly and again.step_s <= far_s:
                too_long, bytes_off = _scaling_errors(before, again)
                self._errors.setdefault(of_first, []).append(too_long)
                self._bytes_off = max(self._bytes_off, bytes_off)
        self._correct(alike, _ratios(before, costs))

    def _correct(self, keys: Iterable[tuple[int, int]], ratios: Mapping[Entry, float]) -> None:
        """Multiplies the steps of scaled plans by how many times as long their slowest stages take, if they take as
        many times as long as all layers do on the same submeshes.
        """
        for key in keys:
            if self._costs[key].exact or key in self._corrected:
                continue
            self._corrected.add(key)
            for shape, plan in self._plans(key):
                if plan is not None:
                    self._best[shape] = dataclasses.replace(plan, simulated_s=plan.step_s * _factor(plan, ratios))

    def _plans(self, key: tuple[int, int]) -> list[tuple[Shape, Candidate | None]]:
        return [(shape, plan) for shape, plan in self._best.items() if _key(shape) == key]

    @property
    def least_work_s(self) -> float:
        """Returns a lower bound on the device-seconds that any plan computes in a step; 0 where devices are unlike.

        It is the least sum over stages of seconds times devices, over all ways to cut the layers into stages.
        """
        return 0.0 if self.task.unlike else min([self._forgotten_work_s, *map(_work_s, self._costs.values())])


def _divisible(sharding: Sharding, space: SearchSpace) -> SearchSpace:
    """The space without the configs on whose meshes the model can't be divided."""

    def solved(config: MeshConfig) -> bool:
        try:
            sharding.prepare([config])
        except NoShardingError:
            return False
        return True

    return space.filtered(solved)


def _key(shape: Shape) -> tuple[int, int]:
    return shape.layers, shape.micro_batches


def _ratios(scaled: Costs, exact: Costs) -> dict[Entry, float]:
    """Returns how many times as long as by scaling all layers take on each submesh with each config."""
    by_scaling, exactly = (
        {entry: _working_s(costs.table, StageChoice(0, costs.model.num_layers - 1, *place)) for place, entry in choices}
        for costs in (scaled, exact)
        for choices in (_choices(costs.space).items(),)
    )
    return {entry: seconds / by_scaling[entry] for entry, seconds in exactly.items() if by_scaling.get(entry)}


def _factor(plan: Candidate, ratios: Mapping[Entry, float]) -> float:
    """Returns how many times as long a plan's slowest stage takes, given that for each submesh and config."""
    choices = _choices(plan.space)
    factors = [ratios.get(choices[stage.submesh, stage.config], 1.0) for stage in plan.slicing.stages]
    seconds = [_working_s(plan.table, stage) for stage in plan.slicing.stages]
    return max(map(operator.mul, seconds, factors)) / max(seconds)


def _fitting(space: SearchSpace, sharding: Sharding, task: PlanningTask, run: Run) -> SearchSpace:
    """Returns the space without the configs with which as many stages as there are submeshes of one size can't keep all
    of a transformer; if that leaves none, the leanest one. Where only blocks that are computed again fit, shares
    of them are added, if the framework has that. Other models, and stages that may be unlike, are left to their prices.
    """
    if not isinstance(sharding, TransformerSharding) or not space.families or task.margin.residuals is not None:
        return space
    devices = task.cluster.num_devices
    usable = max(map(task.margin.usable_bytes, task.prices.models.runtime.hosts(task.cluster.hosts)))
    alpa = run.schedule in ALPA_SCHEDULES
    missing = dict[MeshConfig, float]()
    kinds = functools.cache(lambda config: np.array(sharding.blocks(config)))
    ends = functools.cache(lambda config: np.array(sharding.ends(config)))

    def stages_of(config: MeshConfig) -> int:
        return devices // (config.data_parallel * config.tensor_parallel)

    @functools.cache
    def fits(config: MeshConfig) -> bool:
        in_flight = np.array([run.in_flight(n) if alpa else 0 for n in range(stages_of(config))])
        none, whole = config.remat_ends if config.remat_share < 1 else (config, config)
        blocks = kinds(none) + (kinds(whole) - kinds(none)) * config.remat_share
        missing[config] = max(resident + temporary + at_hand for _, resident, _, temporary, at_hand in blocks)
        free = np.full(len(in_flight), usable)
        if config.offload.any or not _all_fit(blocks, in_flight, free, 0.0, 0.0):
            return config.offload.any
        (table, *_), (head, of_head, computing, gathered) = ends(whole)
        free[-1] -= table
        free[0] -= head + of_head * in_flight[0]
        return _all_fit(blocks, in_flight, free, computing, gathered)

    rules = task.space.restriction if isinstance(task.space, SpaceRules) else None
    if rules is not None and rules.limits.remat_of_some:
        space = with_parts(space, sharding.size.num_blocks, stages_of, fits)
    left = space.filtered(fits)
    if any(config is not None for row in left.configs for config in row):
        return left
    leanest = least(missing, key=lambda config: missing[config])
    return space.filtered(lambda config: config == leanest)


def _all_fit(
    blocks: FloatArray, in_flight: NDArray[np.signedinteger], free: FloatArray, computing: float, gathered: float
) -> bool:
    """Returns whether the blocks of each kind fit in what is free in stages, the last one first, which has a head that
    takes so much while it is computed, and so much for its parameters.
    """
    for count, resident, per_micro_batch, temporary, at_hand in blocks:
        left = free - temporary - at_hand
        left[0] -= max(computing - temporary, 0.0) + max(gathered - at_hand, 0.0)
        if np.floor(left.clip(0.0) / (resident + per_micro_batch * in_flight) * (1 + 1e-9)).sum() < count:
            return False
    return True


def _scaling_errors(scaled: Costs, exact: Candidate) -> tuple[float, float]:
    """Returns the share by which the scaled model makes a plan's slowest stage too slow, and its largest too large."""
    by_scaling, exactly = [(0.0, 0.0)], [(0.0, 0.0)]
    entries = {choice: entry for entry, choice in _choices(scaled.space).items()}
    choices = _choices(exact.space)
    for n, stage in enumerate(exact.slicing.stages):
        entry = entries.get(choices[stage.submesh, stage.config])
        if entry is not None:  # partial costs lack submeshes that take long to solve
            scaled_stage = dataclasses.replace(stage, submesh=entry[0], config=entry[1])
            in_flight = exact.run.in_flight(len(exact.slicing.stages) - 1 - n)
            by_scaling.append(_seconds_and_bytes(scaled.table, scaled_stage, in_flight))
            exactly.append(_seconds_and_bytes(exact.table, stage, in_flight))
    most = np.max(exactly, axis=0)
    errors = np.divide(np.max(by_scaling, axis=0), most, out=np.ones(2), where=most > 0) - 1
    return float(errors[0]), max(float(errors[1]), 0.0)


def _choices(space: SearchSpace) -> dict[tuple[int, int], Entry]:
    hosts = space.hosts or [()] * len(space.submeshes)
    return {
        (s, c): (space.submeshes[s], hosts[s], config)
        for s, row in enumerate(space.configs)
        for c, config in enumerate(row)
        if config is not None
    }


def _seconds_and_bytes(table: CostTable, stage: StageChoice, in_flight: int) -> tuple[float, float]:
    memory = table.memory[stage.submesh][stage.config]
    assert memory is not None, "the space offers the stage's config"
    return _working_s(table, stage), float(memory.peak(in_flight)[stage.first, stage.last])


def _working_s(table: CostTable, stage: StageChoice) -> float:
    """The seconds of a stage's computing and collectives for one micro-batch."""
    parts = table.compute_forward_s, table.compute_backward_s, table.collective_forward_s, table.collective_backward_s
    return sum(float(part[stage.entry]) for part in parts)


def _work_s(costs: Costs) -> float:
    """The least device-seconds of a step, over all cuts into stages, whether or not their submeshes fit together."""
    sizes = np.array([submesh.num_devices for submesh in costs.space.submeshes])[:, None]
    table = costs.table  # what crosses between stages may be less on fewer hosts
    kinds = common_kinds([work := table.costs_s * sizes])
    stages = kinds.table(work).rows.min(axis=(1, 2))[kinds.of_range]
    best = np.zeros(len(stages) + 1)
    for end in range(1, len(best)):
        best[end] = (best[:end] + stages[:end, end - 1]).min()
    return float(best[-1]) * costs.run.num_micro_batches


def least_work_s(costs: Costs, device: Device) -> float:
    """Returns a lower bound on the device-seconds that any plan computes in a step on hosts of one kind of device; 0
    where the costs don't tell.
    """
    hosts, on = costs.cluster.hosts, costs.space.hosts
    chosen = [s for s, numbers in enumerate(on or ()) if all(hosts[n].device == device for n in numbers)]
    if not chosen:
        return 0.0
    return _work_s(dataclasses.replace(costs, space=costs.space.part(chosen), table=costs.table.part(chosen)))


def is_small(task: PlanningTask) -> bool:
    """Returns whether layers times devices are so few that a search can try plans of every shape."""
    return task.layers[-1] * task.cluster.num_devices <= _SMALL[task.unlike]
