"""The derivative of a step is what simulating it again with times a little different says."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.simulation.stage_slopes import step_slopes
from alpa_dejavu.simulation.step import SENDS, StageTimes, simulate

NAMES = ("forward_s", "backward_s", "per_step_s", "forward_send_s", "backward_send_s", "synchronisation_s", "start_s")
WAY = 2.0**-20


@st.composite
def stages(draw, count):
    """Times in quarters: paths are equally long, or differ by much more than the steps of a difference."""
    quarters = st.integers(0, 6)
    found = []
    for _ in range(count):
        figures = {name: draw(quarters) / 4 for name in NAMES}
        figures["per_step_s"] += figures["synchronisation_s"]
        found.append(StageTimes(**figures))
    return found


def between(now, then, way):
    def figures(a, b):
        return {name: getattr(a, name) + way * (getattr(b, name) - getattr(a, name)) for name in NAMES}

    return [dataclasses.replace(a, **figures(a, b)) for a, b in zip(now, then, strict=True)]


def keeping(now, then):
    """The second, where what takes no time in the first takes none."""
    same = ("forward_send_s", "backward_send_s", "start_s")
    return [
        dataclasses.replace(b, **{name: getattr(b, name) if getattr(a, name) else 0.0 for name in same})
        for a, b in zip(now, then, strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(1, 4), size=st.integers(1, 6), sends=st.sampled_from(SENDS))
def test_it_is_the_difference_of_simulations(data, count, size, sends):
    schedule = data.draw(st.sampled_from(["1f1b", "1f1b_overlap_friendly", "gpipe", "inference"]))
    now = data.draw(stages(count))
    changed = [keeping(now, data.draw(stages(count))) for _ in range(3)]
    found = step_slopes(now, size, schedule, changed=changed, sends=sends)
    step = simulate(now, size, schedule, sends=sends).step_s
    for slope, then in zip(found, changed, strict=True):
        near = simulate(between(now, then, WAY), size, schedule, sends=sends).step_s
        assert slope == pytest.approx((near - step) / WAY, abs=1e-6)


def test_of_stages_alike_one_alone_that_is_faster_helps_nothing_and_a_slower_one_hurts():
    stage, fast, slow = StageTimes(1.0, 2.0), StageTimes(0.0, 0.0), StageTimes(2.0, 4.0)
    found = step_slopes([stage] * 3, 8, changed=[[stage, fast, stage], [stage, slow, stage], [fast] * 3, [slow] * 3])
    # Faster alone, it only fills and drains the pipeline sooner; slower, the others wait for it.
    assert found.tolist() == [-3.0, 21.0, -30.0, 30.0]


def test_many_directions_are_taken_in_parts():
    rng = np.random.default_rng(0)
    now = [StageTimes(*rng.random(2)) for _ in range(3)]
    changed = [[StageTimes(*rng.random(2)) for _ in range(3)] for _ in range(20)]
    whole = step_slopes(now, 5, changed=changed)
    assert step_slopes(now, 5, changed=changed, at_a_time=100).tolist() == whole.tolist()
    assert step_slopes(now, 5, changed=[]).shape == (0,)


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="1 changed stages are given for 2"):
        step_slopes([StageTimes(1.0, 1.0)] * 2, 4, changed=[[StageTimes(1.0, 1.0)]])
    with pytest.raises(ValueError, match="there are no stages"):
        step_slopes([], 4, changed=[])
