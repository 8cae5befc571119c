"""The slicing problem of a pair's best shape by three slicers in equal wall time, judged by the simulated step."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from alpa_dejavu.planning import PlanningResult, PlanningTask
from alpa_dejavu.planning._bench import Bench
from alpa_dejavu.planning._candidate import Candidate, Costs, simulated
from alpa_dejavu.planning._clock import Clock
from alpa_dejavu.problem import Model, Slicing, SlicingProblem
from alpa_dejavu.slicing import Dynamic, Gradient, Mcmc
from alpa_dejavu.slicing.makespan import Makespan

_UNEVEN, _TIGHT = 1.5, 0.85
"""Layers are uneven where one has so many times the mean's FLOP; memory is tight where a stage takes this share of
what it may have."""


def compared(
    task: PlanningTask, made: PlanningResult, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """The steps of the best plans of `dynamic`, `mcmc` and `gradient`, and the pair's scenarios.

    `gradient` begins with the DP's plan, too, and is compiled beforehand; the others have as long as it takes: `mcmc`
    walks on, and `dynamic` goes through numbers of stages, beginning with the one that is best by its formula.

    Args:
        task: of the pair.
        made: its best plan, whose numbers of layers and micro-batches are taken, on all hosts.
        clock: what tells the seconds that have passed.
    """
    costs = Bench(task, Clock()).costs(made.model.num_layers, made.run.num_micro_batches, exactly=True)
    by_formula, problem = costs.problem, _simulated_problem(costs)
    first, first_s = _taking(lambda: Dynamic().slice(by_formula), clock)
    gradient = Gradient(plans=(first.stages,)) if first.found else Gradient()
    gradient.slice(problem)
    annealed, annealed_s = _taking(lambda: gradient.slice(problem), clock)
    seconds = first_s + annealed_s
    walked = Mcmc(seconds=seconds, clock=clock).slice(problem)
    steps = {
        "dynamic_s": _by_stages(costs, by_formula, first, seconds, clock),
        "mcmc_s": _step_s(costs, walked),
        "gradient_s": _step_s(costs, annealed),
    }
    return {**steps, "formula_alone_s": _step_s(costs, first), "took_s": seconds, "scenarios": scenarios(task, made)}


def scenarios(task: PlanningTask, made: PlanningResult) -> list[str]:
    """Those of "unlike links", "uneven layers" and "tight memory" that a pair is of; "alike": it is of none."""
    links = {link for a, row in enumerate(task.cluster.links) for b, link in enumerate(row) if a != b}
    tight = any(stage.memory_bytes > _TIGHT * stage.memory_limit_bytes for stage in made.plan.stages)
    told = {
        "unlike links": len(links) > 1 or task.unlike,
        "uneven layers": _unevenness(made.model) > _UNEVEN,
        "tight memory": tight,
    }
    return [name for name, said in told.items() if said] or ["alike"]


def _unevenness(model: Model) -> float:
    """The largest layer's FLOP over the mean."""
    flop = np.array([layer.forward.product_flop + layer.backward.product_flop for layer in model.layers])
    return float(flop.max() / flop.mean())


def _simulated_problem(costs: Costs) -> SlicingProblem:
    """The problem with the simulated step as its objective."""
    problem, table = costs.problem, costs.table
    forward_s = np.where(np.isfinite(problem.costs_s), table.compute_forward_s + table.collective_forward_s, 0.0)
    return dataclasses.replace(problem, objective=Makespan(forward_s, costs.run.schedule))


def _taking(slice_: Callable[[], Slicing], clock: Callable[[], float]) -> tuple[Slicing, float]:
    """What a slicer finds, and the seconds that it takes."""
    started = clock()
    return slice_(), clock() - started


def _by_stages(
    costs: Costs, problem: SlicingProblem, first: Slicing, seconds: float, clock: Callable[[], float]
) -> float:
    """The shortest step of the DP's plans of each number of stages, those nearest to its best one first."""
    started, steps = clock(), [_step_s(costs, first)]
    most, middle = min(problem.num_layers, problem.num_devices), len(first.stages)
    for number in sorted(range(1, most + 1), key=lambda n: abs(n - middle)):
        if clock() - started > seconds:
            break
        steps.append(_step_s(costs, Dynamic().slice(dataclasses.replace(problem, num_stages=number))))
    return min(steps)


def _step_s(costs: Costs, found: Slicing) -> float:
    return simulated(Candidate(costs, found)).step_s if found.found else float("inf")


def wins(rows: Sequence[dict[str, Any]], name: str, same: float) -> int:
    """On how many rows a slicer's step is as short as the shortest, but for a share that counts as the same."""
    each = ("dynamic_s", "mcmc_s", "gradient_s")
    return sum(row[name] <= min(row[other] for other in each) * (1 + same) for row in rows)
