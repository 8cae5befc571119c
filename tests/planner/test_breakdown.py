"""Where a step's time goes, and why a plan loses."""

import dataclasses

import pytest
from models import chain, planned, space

from alpa_dejavu.breakdown import PARTS, breakdown, why_slower
from alpa_dejavu.problem import Run
from alpa_dejavu.testing import example_cluster


@pytest.fixture(scope="module")
def made():
    return planned(chain(4, flop=1e9, activation_bytes=1e6), example_cluster(1), space(), Run(4)).plan


def test_the_parts_add_up_to_the_step(made):
    parts = breakdown(made)
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == pytest.approx(made.step_s)
    assert parts["computing"] == pytest.approx(4 * 3e9 * 4 / 4 / 1e12, rel=0.1)


def test_why_names_what_grew(made):
    stages = tuple(dataclasses.replace(stage, collective_s=stage.collective_s + 0.25) for stage in made.stages)
    slower = dataclasses.replace(made, stages=stages, step_s=made.step_s + 1.0)
    assert "+1 s collectives" in why_slower(slower, made)
    assert why_slower(slower, made).startswith(f"{100 / made.step_s:.1f} % slower")
