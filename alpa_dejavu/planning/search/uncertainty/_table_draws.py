"""Whole cost tables in draws of prediction errors, and as stages of past runs have them.

A measured stage says something of each error that its prediction has: those that all stages share, such as the one of
all matrix products, and those that only layers on a mesh of that shape have. So a stage on four devices that took twice
as long as predicted makes other stages on four devices dearer than those on two.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray, stage_sum
from alpa_dejavu._util.ties import rounded
from alpa_dejavu.clusters.host_classes import kinds_of
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.planning.search._candidate import Candidate, Costs, config_of_stage
from alpa_dejavu.planning.search.uncertainty._errors import Errors, Factors
from alpa_dejavu.planning.search.uncertainty._resolved import Resolved, Resolver, WorkSeconds
from alpa_dejavu.planning.search.uncertainty._spreads import CLASSES, link_class
from alpa_dejavu.planning.search.uncertainty._steps import meet_plan
from alpa_dejavu.problem import NoShardingError, SearchSpace, StagePlan

if TYPE_CHECKING:
    from alpa_dejavu.calibration.history import PastRun

_NOISE = 0.1
"""How far off the measured seconds of a stage in a run are, as a share of them."""
_DRAWN = (
    ("compute_forward_s", "compute_backward_s", "collective_forward_s", "collective_backward_s"),
    ("synchronisation_s", "update_s"),
)
"""The columns of a table that have the factors of a micro-batch, and those of what comes once a step."""


def meet(table: CostTable, space: SearchSpace, resolver: Resolver) -> None:
    """Has a resolver number the prediction errors of every entry of a cost table and of its interstage transfers."""
    for _ in _configs(table, space, resolver):
        pass
    for link in range(0 if table.interstage is None else len(table.interstage.ends)):
        resolver.sent(table, link)


def redrawn(table: CostTable, space: SearchSpace, resolver: Resolver, factors: Factors, draw: int = 0) -> CostTable:
    """Returns a cost table with the prediction errors of one joint draw: entries times one factor for a micro-batch and
    another for what comes once a step, transfers times their own. The resolver has numbered the errors.
    """
    ratios = np.ones((2, *table.offered.shape))
    for s, c, resolved in _configs(table, space, resolver):
        variants, divided = factors.of_variants(resolved, draw), float(factors.divided(resolved)[draw])
        for n, part in enumerate((resolved.micro_batch, resolved.step)):
            before = _ranges(part, resolved, 1.0, np.ones(len(CLASSES)))
            after = _ranges(part, resolved, variants, factors.common[draw]) * divided
            np.divide(after, before, out=ratios[n, :, :, s, c], where=before > 0)
    columns: dict[str, Any] = {
        name: rounded(getattr(table, name) * ratios[n]) for n, names in enumerate(_DRAWN) for name in names
    }
    drawn = dataclasses.replace(table, **columns)
    if table.transfer is None:
        return drawn
    within, between = (float(factors.common[draw, link_class("send", ends)]) for ends in ((0, 0), (0, 1)))
    return drawn.with_transfer(table.transfer.scaled(within, between), space)


def _ranges(part: WorkSeconds, resolved: Resolved, variants: FloatArray | float, common: FloatArray) -> FloatArray:
    """Returns the seconds of layers i..j times the factors of variants and of classes; shape (L, L)."""
    seconds = stage_sum((part.of_variants * variants).sum(axis=1), resolved.of_stages)
    for number, ranges in part.of_ranges.items():
        seconds = seconds + ranges * common[number]
    return seconds


def _configs(table: CostTable, space: SearchSpace, resolver: Resolver) -> Iterator[tuple[int, int, Resolved]]:
    costs = table.stage_costs
    assert costs is not None, "a table that was priced keeps its prices"
    for s, (devices, configs) in enumerate(zip(table.devices, space.configs, strict=True)):
        for c, config in enumerate(configs):
            if config is not None and np.any(table.offered[:, :, s, c]):
                yield s, c, resolver.resolved(costs, devices, config)


def with_past_runs(costs: Costs, runs: Sequence[PastRun]) -> Costs:
    """Returns costs as they most probably are, given measured stages of past runs of the same shape."""
    resolver = Resolver(apart=True)
    meet(costs.table, costs.space, resolver)
    errors = errors_after(costs, runs, resolver)
    if errors.root is None:
        return costs
    return dataclasses.replace(costs, table=redrawn(costs.table, costs.space, resolver, errors.middle))


def errors_of(candidates: Sequence[Candidate], runs: Sequence[PastRun]) -> Errors:
    """Returns the distribution of errors of candidates of one shape, given the stages of past runs in their order."""
    resolver = Resolver(apart=True)
    for candidate in candidates:
        meet_plan(candidate, resolver)
    return errors_after(candidates[0].costs, runs, resolver)


def errors_after(costs: Costs, runs: Sequence[PastRun], resolver: Resolver) -> Errors:
    """Returns the distribution of errors after past runs in their order; the resolver has met all that is asked."""
    shape = costs.model.num_layers, costs.run.num_micro_batches, costs.run.schedule
    measured = []
    for run in runs:
        if (run.plan.num_layers, run.plan.num_micro_batches, run.plan.schedule) != shape or not run.stages:
            continue
        for stage, seconds in zip(run.plan.stages, run.stages, strict=True):
            if seconds.computing_s > 0 and seconds.predicted_computing_s > 0:
                resolved = _resolved(costs, stage, resolver)
                if resolved is not None:
                    measured.append((resolved, stage.layers, seconds.computing_s / seconds.predicted_computing_s))
    errors = Errors.unmeasured(resolver)
    for resolved, layers, ratio in measured:
        errors = errors.measured(resolved.micro_batch, resolved, *layers, ratio, _NOISE)
    return errors


def _resolved(costs: Costs, stage: StagePlan, resolver: Resolver) -> Resolved | None:
    """Returns the predicted seconds of a plan's stage in parts; None where this cluster or model has no such stage."""
    prices = costs.table.stage_costs
    assert prices is not None, "a table that was priced keeps its prices"
    numbers = costs.cluster.host_numbers
    config, on = config_of_stage(stage), None
    if any(kinds_of(costs.cluster)):
        if not numbers.keys() >= set(stage.hosts):
            return None
        on = [numbers[name] for name in stage.hosts]
    if stage.submesh.num_hosts > len(costs.cluster.hosts) or math.prod(config.shape) != stage.submesh.num_devices:
        return None
    try:
        if costs.model.sharding is not None:
            costs.model.sharding.prepare([config])
        return resolver.resolved(prices, prices.places.on_submesh(stage.submesh, on), config)
    except NoShardingError:
        return None
