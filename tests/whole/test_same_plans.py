"""Plans are the same by each version of jax: the seconds and bytes to 1 %, and the stages."""

import json

import pytest

from same_plans import ASKED, PLANS, figures

EXPECTED = json.loads(PLANS.read_text(encoding="utf-8"))["plans"]


@pytest.mark.parametrize("name", ASKED)
def test_a_plan_is_that_of_another_jax(name):
    own, expected = figures(name), EXPECTED[name]
    assert own["step_s"] == pytest.approx(expected["step_s"], rel=0.01)
    assert own["stages"] == expected["stages"]
    for stage, other in zip(own["bytes"], expected["bytes"], strict=True):
        assert stage["memory"] == pytest.approx(other["memory"], rel=0.01)
