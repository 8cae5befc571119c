"""Plans are the same by each version of jax: the seconds and bytes to 1 %, and the stages.

Newer versions keep one array of a GELU by tanh where jax 0.4.30 keeps two, so memory may be some percent less.
"""

import json

import pytest

from same_plans import ASKED, HAS_TANH, PLANS, figures

EXPECTED = json.loads(PLANS.read_text(encoding="utf-8"))["plans"]


@pytest.mark.parametrize("name", ASKED)
def test_a_plan_is_that_of_another_jax(name):
    own, expected = figures(name), EXPECTED[name]
    assert own["step_s"] == pytest.approx(expected["step_s"], rel=0.01)
    assert own["stages"] == expected["stages"]
    for stage, other in zip(own["bytes"], expected["bytes"], strict=True):
        assert (0.96 if name in HAS_TANH else 0.99) < stage["memory"] / other["memory"] < 1.01
        assert stage["temporaries"] == pytest.approx(other["temporaries"], rel=0.01)
