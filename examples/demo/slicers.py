"""What `004_slicers.py` is made of: a model's cost table as a question, its answers, and the pictures of them."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import final

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from alpa_dejavu._util import units
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.layers import TracedStep
from alpa_dejavu.problem import Run, SlicingProblem, StageChoice
from alpa_dejavu.sharding import model_of_step
from alpa_dejavu.slicing import Gradient, Slicer, slicer
from demo.pictures import curves, strip

__all__ = [
    "LAYERS", "MOST_LAYERS", "Answer", "Solve", "alpas", "anneal", "answers", "costs_over_time", "ours", "question",
    "runtimes",
]  # fmt: skip

LAYERS = (2, 3, 4, 8, 12, 16)
"""How many the model is cut into for the picture of runtimes."""
MOST_LAYERS = {"exhaustive": 3, "Alpa's training_dp": 12}
"""With more of them these take a minute, or for ever."""
SHOWN = 6
"""Rounds of the anneal."""


@final
@dataclasses.dataclass(frozen=True)
class Answer:
    """What a program finds: seconds that it took once compiled, the plan and its cost, and what no plan is under."""

    seconds: float
    stages: tuple[StageChoice, ...]
    cost_s: float
    lower_bound_s: float = 0.0


Solve = Callable[[SlicingProblem], Answer]


def question(step: TracedStep, num_layers: int, hosts: int, micro_batches: int) -> SlicingProblem:
    """The stages that a traced model may be cut into on hosts of 8 V100, each by its predicted seconds.

    The step was traced with the samples of one micro-batch. What Alpa's programs don't know is left out: what comes
    once a step, and that what a stage takes in depends on the one before it. Each takes in from one like itself.
    """
    model, cluster = model_of_step(step, num_layers), named_cluster("p3.16xlarge", hosts)
    run, space = Run(micro_batches, "1f1b"), search_space(cluster, step.micro_batch, remat=("layer",))
    if model.sharding is not None:
        model.sharding.prepare(config for row in space.configs for config in row if config is not None)
    table = cost_table(model, cluster, space, run, CostModels.named())
    problem = table.slicing_problem(cluster, space, run)
    return dataclasses.replace(problem, costs_s=table.compute_costs_s, per_step_s=None, sites=None)


def ours(choice: str | Slicer) -> Solve:
    """One of this package's slicers, or your own."""
    chosen = slicer(choice)

    def solve(problem: SlicingProblem) -> Answer:
        found = chosen.slice(problem)
        return Answer(found.seconds, found.stages, found.cost_s, found.lower_bound_s)

    return solve


def alpas(name: str) -> Solve:
    """One of Alpa's programs, "training_dp" or "training_dp_2"; numba compiles it at the first call."""
    from alpa.pipeline_parallel import stage_construction

    def solve(problem: SlicingProblem) -> Answer:
        shapes = tuple((1, int(size)) for size in problem.submesh_sizes)
        costs, room = np.ascontiguousarray(problem.costs_s), np.asarray(np.minimum(problem.followers, 4096))
        size = problem.num_devices, problem.num_micro_batches, shapes
        started = time.perf_counter()
        if name == "training_dp":
            _, found = stage_construction.training_dp(len(costs), *size, costs.shape[3], costs, room)
        else:
            _, found = stage_construction.training_dp_2(*size, costs, room)
        seconds = time.perf_counter() - started
        stages = tuple(StageChoice(int(first), int(end) - 1, int(s), int(c)) for (first, end), s, c in found or ())
        return Answer(seconds, stages, problem.total_s(stages) if stages else math.inf)

    return solve


def answers(problem: SlicingProblem, programs: dict[str, Solve]) -> dict[str, Answer]:
    """Of each program, by its name; the first call, in which it may compile, doesn't count."""
    found = {}
    for name, solve in tqdm(programs.items(), "slicing", leave=False, disable=None):
        solve(problem)
        found[name] = solve(problem)
    return found


def runtimes(problems: Iterable[SlicingProblem], programs: dict[str, Solve]) -> Figure:
    """A picture of seconds over the number of layers; programs stop where `MOST_LAYERS` says so."""
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for problem in problems:
        fitting = {n: solve for n, solve in programs.items() if problem.num_layers <= MOST_LAYERS.get(n, 10**9)}
        for name, answer in answers(problem, fitting).items():
            points[name].append((problem.num_layers, answer.seconds))
    return curves("Times of slicers", "layers", "time, once compiled", points, ("{:g}".format, units.seconds))


def costs_over_time(problem: SlicingProblem, efforts: Mapping[str, Sequence[Solve]]) -> Figure:
    """A picture of costs, next to the least one, over the seconds that they took, with one effort or several."""
    found = {name: [answers(problem, {name: solve})[name] for solve in solves] for name, solves in efforts.items()}
    least = min(answer.cost_s for row in found.values() for answer in row)
    drawn = {
        name: [(a.seconds, 100 * (a.cost_s / least - 1)) for a in row if math.isfinite(a.cost_s)]
        for name, row in found.items()
    }
    title = f"Plans of slicers: {problem.num_layers} layers on {problem.num_devices} devices"
    return curves(title, "time", "cost above the least, %", drawn, (units.seconds, None))


def anneal(problem: SlicingProblem) -> Figure:
    """A picture of how `gradient` comes to its stages: which layers are in which, at some of its rounds.

    It is of one of the starts: where it ends, devices may be shared out on the mean only. The plan is put together from
    what all starts came to.
    """
    trace = Gradient().traced(problem)[1]
    if trace is None:
        raise ValueError("there is nothing to anneal: some layer is in no stage that the problem offers")
    rounds = np.unique(np.rint(np.linspace(0, len(trace.assignment) - 1, SHOWN)).astype(int)).tolist()
    frames = [
        (f"round {n + 1}, T = {units.seconds(trace.temperature_s[n])}", np.clip(trace.assignment[n].T, 0.0, 1.0))
        for n in rounds
    ]
    return strip("Layers in stages, as gradient anneals", "layer", "stage", frames)
