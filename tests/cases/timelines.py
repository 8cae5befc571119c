"""A small plan with its timeline, and a whole planned one, for the tests of what is shown of plans."""

import dataclasses

from alpa_dejavu.planning.result import PlanningResult, RunnerUp
from alpa_dejavu.planning.search._ranking import finished_plan
from alpa_dejavu.problem import Model, Plan, Run, StagePlan, Submesh
from alpa_dejavu.simulation.step import StageTimes, Timeline, simulate
from alpa_dejavu.slicing import slicer
from alpa_dejavu.testing import example_cluster
from models import chain, costs_of, space, task_of


def stage_plan(first: int, last: int, *hosts: str, devices: int = 2) -> StagePlan:
    return StagePlan(
        layers=(first, last),
        submesh=Submesh(len(hosts), devices),
        logical_mesh=(len(hosts), devices),
        hosts=hosts,
        compute_s=0.025,
        collective_s=0.003,
        boundary_s=0.002,
        per_step_s=0.05,
        memory_bytes=9e9,
        memory_limit_bytes=16e9,
    )


def small_plan(schedule: str = "1f1b") -> tuple[Plan, Timeline]:
    stages = (stage_plan(0, 1, "alpha"), stage_plan(2, 2, "alpha"), stage_plan(3, 5, "beta", "gamma"))
    times = StageTimes(
        forward_s=0.01,
        backward_s=0.02,
        per_step_s=0.05,
        forward_send_s=0.001,
        backward_send_s=0.001,
        forward_collective_s=0.001,
        backward_collective_s=0.002,
        synchronisation_s=0.02,
        activation_bytes=1e9,
        resident_bytes=6e9,
        temporary_bytes=1e8,
        memory_limit_bytes=16e9,
    )
    timeline = simulate([times] * 3, 8, schedule)
    plan = Plan(
        stages=stages, step_s=timeline.step_s, lower_bound_s=0.2, num_micro_batches=8, schedule=schedule,
        cluster="3 x test", planning_s={"cost table": 0.1, "slicing": 0.2},
    )  # fmt: skip
    return plan, timeline


def small_planned(
    num_layers: int = 6,
    num_stages: int = 3,
    micro_batches: int = 8,
    schedule: str = "1f1b",
    model: Model | None = None,
    name: str = "gpt",
) -> PlanningResult:
    """A plan of so many stages on two hosts of four devices, with what it was made from and one runner-up."""
    cluster, run = example_cluster(2), Run(micro_batches, schedule)
    options = space(hosts=2)
    model = model or chain(num_layers, flop=1e10, parameter_bytes=1e7, activation_bytes=1e7)
    found = costs_of(model, cluster, options, run).sliced(slicer("dynamic"), num_stages)
    plan = dataclasses.replace(
        finished_plan(task_of(model, cluster, options, run), found),
        planning_s={"cost table": 0.1, "slicing": 0.2},
        model=name,
        batch=4 * micro_batches,
    )
    slower = dataclasses.replace(plan, step_s=1.25 * plan.step_s)
    return PlanningResult(
        plan, model, cluster, options, run, found.table, lambda: found.timeline, found.stages,
        (RunnerUp(slower, "longer bubbles"),),
    )  # fmt: skip
