"""Where a step's time goes, and why a plan loses."""

import dataclasses

import pytest

from alpa_dejavu.problem import Run
from alpa_dejavu.simulation.breakdown import AS_FAST, PARTS, breakdown, why_slower
from alpa_dejavu.testing import example_cluster
from models import chain, planned, space
from plans import example_plan, stage


@pytest.fixture(scope="module")
def made():
    return planned(chain(4, flop=1e9, activation_bytes=1e6), example_cluster(1), space(), Run(4)).plan


def test_the_parts_are_the_average_devices():
    few = stage((0, 0), (1, 2), compute_s=0.03, collective_s=0.002, boundary_s=0.001, per_step_s=0.01)
    many = stage((1, 3), (1, 6), (6, 1), compute_s=0.01, collective_s=0.006, boundary_s=0.003, per_step_s=0.02)
    parts = breakdown(example_plan(stages=(few, many), step_s=0.25, num_micro_batches=4))
    assert tuple(parts) == PARTS
    # A quarter of the devices is in the first stage, and each of them does four micro-batches and one update.
    assert parts == pytest.approx(
        {"computing": 0.06, "collectives": 0.02, "transfers": 0.01, "once a step": 0.0175, "idle": 0.1425}
    )


def test_the_rest_of_a_step_is_the_bubbles_of_its_timeline():
    model = chain(4, parameter_bytes=3e7, activation_bytes=1.0, exchanged=(1e9,) * 4)
    made = planned(model, example_cluster(1), space(), Run(4))
    assert len(made.plan.stages) == 4
    idle_s = made.timeline.bubble_shares.mean() * made.plan.step_s
    assert breakdown(made.plan)["idle"] == pytest.approx(idle_s, rel=0.01)
    # Three of seven slots are empty where four stages have four micro-batches.
    assert idle_s == pytest.approx(3 / 7 * made.plan.step_s, rel=0.01)


def test_why_names_what_grew(made):
    stages = tuple(dataclasses.replace(stage, collective_s=stage.collective_s + 0.25) for stage in made.stages)
    slower = dataclasses.replace(made, stages=stages, step_s=made.step_s + 1.0)
    assert "+1 s collectives" in why_slower(slower, made)
    assert why_slower(slower, made).startswith(f"{100 / made.step_s:.1f} % slower")


def test_a_plan_that_is_as_fast_says_why_the_other_was_taken(made):
    coarse = dataclasses.replace(made, stages=made.stages[:1], step_s=made.step_s * (1 - 0.5 * AS_FAST))
    coarse = dataclasses.replace(coarse, stages=(dataclasses.replace(coarse.stages[0], layers=(0, 1)),))
    said = "as fast, within 0.1 %, but it has 2 layers to cut between once a host is lost, and not 4"
    assert why_slower(coarse, made) == said
    assert why_slower(made, coarse) == "as fast, within 0.1 %"
