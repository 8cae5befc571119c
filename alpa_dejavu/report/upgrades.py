"""Finds what to buy or to speed up first: derivatives by devices, bandwidths and layers, and best plans at twice each.

A plan alone doesn't tell bandwidth from latency, devices from each other, or the layers of a stage; what was kept of it
does.
"""

from __future__ import annotations

import dataclasses
import os
from typing import final

from alpa_dejavu.calibration import Calibration, Prices
from alpa_dejavu.clusters.changed_cluster import with_more_memory
from alpa_dejavu.planning import PlanningResult, estimate, given_stages
from alpa_dejavu.planning import plan as best_plan
from alpa_dejavu.planning.changed.kept import Kept
from alpa_dejavu.planning.changed.kept_task import kept_prices, kept_task
from alpa_dejavu.problem import NoPlanError, Plan
from alpa_dejavu.report._upgrade_figures import layer_figures, resource_figure, resources
from alpa_dejavu.simulation.plan_times import PlanStep, Times, plan_times
from alpa_dejavu.simulation.sensitivity import Sensitivity, derivatives

_RESOURCES, _LAYERS = 6, 2
"""The best plan is looked for at twice so many devices and bandwidths, and halves of so many layers, that save most."""
_FULL = 0.9
"""The share of a device's memory from which on more of it may be worth something."""
_BETTER = 1e-4
"""A plan that saves less than this share of a step isn't another one."""


@final
@dataclasses.dataclass(frozen=True)
class Upgrades:
    """The changes to devices, links and layers that would shorten a plan's step, with what they would save."""

    # How the step depends on the speed of each type of devices, kind of links and layer, with the best plan if it is
    # twice as fast for those that help most.
    by_figure: tuple[Sensitivity, ...]
    now: Plan | None = None  # another plan that is better without any change; None: there is none
    # The best plan if each device had twice the memory; None: it isn't better, or memory sets no limit.
    with_memory: Plan | None = None


def upgrades(plan: Plan, kept: Kept, *, calibration: str | os.PathLike[str] | Calibration | None = None) -> Upgrades:
    """Returns how a plan's step depends on devices, links and layers, and the best plan where one is twice as good, by
    its record and the calibration that priced it ("none": data sheets; None: its models).

    Raises ValueError if the record is of another plan, or lacks a mesh's sharding, or the plan was priced by other
    models.
    """
    prices = kept_prices(plan, kept, calibration=calibration)
    looker = _Looker(plan, kept, prices)
    kinds, layers = list(resources(prices)), list(layer_figures(looker.base))
    figures = [resource_figure(kind, looker.times) for kind in kinds]
    slopes = derivatives(looker.step, plan, [*figures, *(figure for _, figure in layers)])
    order = sorted(range(len(slopes)), key=lambda n: (-slopes[n].gained_s, -slopes[n].saved_s))
    for n in [n for n in order if n < len(kinds)][:_RESOURCES]:
        slopes[n] = _with_best(slopes[n], looker.best(kinds[n].at(2.0), slopes[n].twice_s))
    for n in [n for n in order if n >= len(kinds) and slopes[n].saved_s > 0][:_LAYERS]:
        cheaper = layers[n - len(kinds)][0]
        factors = tuple(0.5 if layer == cheaper else 1.0 for layer in range(kept.model.num_layers))
        slopes[n] = _with_best(slopes[n], looker.best(prices, slopes[n].twice_s, factors))
    now, roomier = looker.best(prices, plan.step_s), None
    if any(stage.offloaded.any or stage.memory_bytes > _FULL * stage.memory_limit_bytes for stage in plan.stages):
        more = dataclasses.replace(prices, cluster=with_more_memory(prices.cluster, 2.0))
        roomier = looker.best(more, plan.step_s if now is None else now.step_s)
    return Upgrades(tuple(slopes), now, roomier)


def _with_best(sensitivity: Sensitivity, best: Plan | None) -> Sensitivity:
    """Returns the entry on a change with the best plan after it, and that plan's step; the present one's if none is."""
    return dataclasses.replace(sensitivity, best_s=sensitivity.twice_s if best is None else best.step_s, best=best)


@final
class _Looker:
    """A search that prices the given plan, and looks for better ones."""

    def __init__(self, plan: Plan, kept: Kept, prices: Prices) -> None:
        self._plan, self._kept = plan, kept
        for n, stage in enumerate(given_stages(plan)):
            if not kept.knows(stage.config):
                raise ValueError(
                    f"stage {n} has the logical mesh {'x'.join(map(str, stage.config.shape))}, of which nothing is "
                    "kept: a search doesn't offer it; give a plan of one"
                )
        self.base = self._estimated(prices)
        self._ratio = plan.step_s / self.base.plan.step_s
        self.step = PlanStep(plan, plan_times(self.base.plan), self._ratio)

    def _estimated(self, prices: Prices) -> PlanningResult:
        return estimate(
            self._kept.model, prices.cluster, self._kept.run, given_stages(self._plan),
            latency=prices.models.latency, communication=prices.models.communication, runtime=prices.models.runtime,
        )  # fmt: skip

    def times(self, prices: Prices) -> Times:
        """Returns the times of the plan's stages on the cluster, and by the cost models, of `prices`."""
        return plan_times(self._estimated(prices).plan)

    def best(self, prices: Prices, below_s: float, factors: tuple[float, ...] | None = None) -> Plan | None:
        """Returns the best plan by `prices` and layers' cost `factors` if its step is below `below_s` seconds, else
        None; its step is scaled as the present plan's own step is to that estimated here.
        """
        task = dataclasses.replace(kept_task(self._plan, self._kept, prices), factors=factors)
        try:
            best = best_plan(task, annotations=()).plan
        except NoPlanError:
            return None
        step_s = best.step_s * self._ratio
        return None if step_s > below_s * (1 - _BETTER) else dataclasses.replace(best, step_s=step_s)
