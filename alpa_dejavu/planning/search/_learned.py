"""Costs as stages of past runs have them: a stage that was measured corrects what is predicted of it and of its like.

A factor on all of a model's layers would change no choice. Here a measured stage says something of each error that its
prediction has: those that all stages share, such as the one of all matrix products, and those that only layers on a
mesh of that shape have. So a stage on four devices that took twice as long as predicted makes other stages on four
devices dearer than those on two. Each layer has an error of its own besides, so that of alike layers some may be dearer
than others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from alpa_dejavu.clusters.host_classes import kinds_of
from alpa_dejavu.planning.search._candidate import Candidate, Costs, config_of_stage
from alpa_dejavu.planning.search.uncertainty import Errors, Resolver, meet, redrawn
from alpa_dejavu.planning.search.uncertainty._resolved import Resolved
from alpa_dejavu.planning.search.uncertainty._steps import meet_plan
from alpa_dejavu.problem import NoShardingError, StagePlan

if TYPE_CHECKING:
    from alpa_dejavu.calibration.history import PastRun

__all__ = ["errors_after", "errors_of", "with_past_runs"]

_NOISE = 0.1
"""How far off the measured seconds of a stage in a run are, as a share of them."""


def with_past_runs(costs: Costs, runs: Sequence[PastRun]) -> Costs:
    """Returns costs as they most probably are, given the measured stages of past runs.

    Runs of another number of layers or of micro-batches say nothing here, and neither do runs without measured stages.
    """
    resolver = Resolver(apart=True)
    meet(costs.table, costs.space, resolver)
    errors = errors_after(costs, runs, resolver)
    if errors.root is None:
        return costs
    return dataclasses.replace(costs, table=redrawn(costs.table, costs.space, resolver, errors.middle))


def errors_of(candidates: Sequence[Candidate], runs: Sequence[PastRun]) -> tuple[Errors, Resolver]:
    """Returns the distribution of the prediction errors of candidate plans, given the measured stages of past runs, and
    the object that has numbered these errors.

    Args:
        candidates: the plans, of one number of layers and of micro-batches.
        runs: the past runs in the order in which they ran.
    """
    resolver = Resolver(apart=True)
    for candidate in candidates:
        meet_plan(candidate, resolver)
    return errors_after(candidates[0].costs, runs, resolver), resolver


def errors_after(costs: Costs, runs: Sequence[PastRun], resolver: Resolver) -> Errors:
    """Returns the distribution of prediction errors after the stages of past runs were measured.

    Args:
        costs: the predicted costs.
        runs: the past runs in the order in which they ran.
        resolver: the object that numbers the errors, and has met all stages that are asked about.
    """
    seen = list(_seen(costs, runs, resolver))
    errors = Errors.unmeasured(resolver)
    for resolved, (first, last), ratio in seen:
        errors = errors.measured(resolved.micro_batch, resolved, first, last, ratio, _NOISE)
    return errors


def _seen(
    costs: Costs, runs: Sequence[PastRun], resolver: Resolver
) -> Iterator[tuple[Resolved, tuple[int, int], float]]:
    """Yields each measured stage: its predicted seconds in parts, its layers, and measured over predicted seconds."""
    shape = costs.model.num_layers, costs.run.num_micro_batches, costs.run.schedule
    for run in runs:
        if (run.plan.num_layers, run.plan.num_micro_batches, run.plan.schedule) != shape:
            continue
        for stage, seconds in zip(run.plan.stages if run.stages else (), run.stages, strict=True):
            if seconds.computing_s > 0 and seconds.predicted_computing_s > 0:
                resolved = _resolved(costs, stage, resolver)
                if resolved is not None:
                    yield resolved, stage.layers, seconds.computing_s / seconds.predicted_computing_s


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
