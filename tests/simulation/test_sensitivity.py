"""What a plan's step depends on and consists of: derivatives are the differences of steps simulated again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.problem import Run
from alpa_dejavu.simulation.breakdown import AS_FAST, PARTS, breakdown, why_slower
from alpa_dejavu.simulation.plan_times import plan_times, scaled
from alpa_dejavu.simulation.sensitivity import sensitivities
from alpa_dejavu.simulation.stage_slopes import step_slopes
from alpa_dejavu.simulation.step import SENDS, StageTimes, simulate
from alpa_dejavu.testing import example_cluster
from models import chain, planned, space
from plans import example_plan, hardware, stage

SMALL = 1e-6


def uneven():
    return tuple(
        stage((n, n), hosts=hosts, forward_s=0.009 * (1 + n % 3), backward_s=0.016 * (1 + n % 3), per_step_s=0.01 * n)
        for n, hosts in enumerate([("a",), ("a", "b"), ("b",), ("c",)])
    )


def plan_of(stages, **figures):
    return example_plan(stages=stages, num_micro_batches=6, **figures)


def step_of(plan, times):
    now = simulate(plan_times(plan), plan.num_micro_batches, plan.schedule).step_s
    return plan.step_s * simulate(times, plan.num_micro_batches, plan.schedule).step_s / now


def by_name(plan):
    return {one.what: one for one in sensitivities(plan)}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "1f1b_overlap_friendly"])
@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("all devices", lambda n, share: {"computing": share}),
        ("all links within stages", lambda n, share: {"links": share}),
        ("all links between stages", lambda n, share: {"sends": (share, share)}),
        ("computing of stage 2 (layer 2 on b)", lambda n, share: {"computing": share if n == 2 else 1.0}),
        ("links within stage 2", lambda n, share: {"links": share if n == 2 else 1.0}),
        ("devices of host b", lambda n, share: {"computing": share if n in ((2,), (1, 2))[share > 1] else 1.0}),
    ],
)
def test_a_derivative_is_a_difference(what, parts, schedule):
    plan = plan_of(uneven(), schedule=schedule)
    found = by_name(plan)[what]

    def step(share):
        return step_of(plan, [scaled(times, **parts(n, share)) for n, times in enumerate(plan_times(plan))])

    assert found.saved_s == pytest.approx((plan.step_s - step(1 - SMALL)) / SMALL, rel=1e-6, abs=1e-8)
    assert found.cost_s == pytest.approx((step(1 + SMALL) - plan.step_s) / SMALL, rel=1e-6, abs=1e-8)
    assert found.twice_s == pytest.approx(step(0.5))
    assert found.elasticity == found.saved_s / plan.step_s


def test_stages_alike_are_helped_together_and_hurt_by_each():
    alike = tuple(stage((n, n), hosts=(str(n),), boundary_s=0.0, forward_boundary_s=0.0) for n in range(4))
    found = by_name(plan_of(alike))
    one = found["computing of stage 1 (layer 1 on 1)"]
    assert one.worse_elasticity > 0.3
    assert one.elasticity < 0.1
    assert one.gained_s < 0.2 * found["all devices"].gained_s
    assert next(iter(found)) == "all devices"


def test_where_devices_share_a_cpu_all_work_counts():
    stages = uneven()
    found = by_name(plan_of(stages, hardware=hardware(cores=8), step_s=1.0))
    # Of 2 of the 8 devices: 6 micro-batches, and once a step.
    second = stages[2]
    computing = second.forward_s - second.forward_collective_s + second.backward_s - 0.003
    work = 6 * computing + second.per_step_s - second.synchronisation_s
    one = found["computing of stage 2 (layer 2 on b)"]
    assert one.saved_s == one.cost_s == pytest.approx(work / 4)
    assert one.twice_s == pytest.approx(1.0 - work / 8)


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


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="1 changed stages are given for 2"):
        step_slopes([StageTimes(1.0, 1.0)] * 2, 4, changed=[[StageTimes(1.0, 1.0)]])
    with pytest.raises(ValueError, match="there are no stages"):
        step_slopes([], 4, changed=[])


@pytest.fixture(scope="module")
def made():
    return planned(chain(4, flop=1e9, activation_bytes=1e6), example_cluster(1), space(), Run(4)).plan


def test_the_rest_of_a_step_is_the_bubbles_of_its_timeline():
    model = chain(4, parameter_bytes=3e7, activation_bytes=1.0, exchanged=(1e9,) * 4)
    made = planned(model, example_cluster(1), space(), Run(4))
    assert len(made.plan.stages) == 4
    idle_s = made.timeline.bubble_shares.mean() * made.plan.step_s
    assert breakdown(made.plan)["idle"] == pytest.approx(idle_s, rel=0.01)
    # Three of seven slots are empty where four stages have four micro-batches.
    assert idle_s == pytest.approx(3 / 7 * made.plan.step_s, rel=0.01)


def test_a_plan_that_is_as_fast_says_why_the_other_was_taken(made):
    coarse = dataclasses.replace(made, stages=made.stages[:1], step_s=made.step_s * (1 - 0.5 * AS_FAST))
    coarse = dataclasses.replace(coarse, stages=(dataclasses.replace(coarse.stages[0], layers=(0, 1)),))
    said = "as fast, within 0.1 %, but it has 2 layers to cut between once a host is lost, and not 4"
    assert why_slower(coarse, made) == said
    assert why_slower(made, coarse) == "as fast, within 0.1 %"


def test_of_one_stage_without_links_all_is_computing():
    alone = stage((0, 3), collective_s=0.0, forward_collective_s=0.0, synchronisation_s=0.0, boundary_s=0.0)
    (devices,) = sensitivities(plan_of((alone,)))
    assert (devices.what, devices.part) == ("all devices", "devices")
    assert devices.elasticity == devices.worse_elasticity == pytest.approx(1.0)
    assert devices.twice_s == pytest.approx(0.125)
    assert devices.gained_s == pytest.approx(0.125)


def test_what_helps_most_comes_first_and_what_does_not_matter_is_left_out():
    stages = tuple(stage((n, n), boundary_s=0.0, forward_boundary_s=0.0) for n in range(2))
    found = sensitivities(plan_of(stages))
    gains = [one.gained_s for one in found]
    assert gains == sorted(gains, reverse=True)
    assert not any("between" in one.what for one in found)


def test_hosts_with_the_same_stages_are_told_together():
    both = dataclasses.replace(stage((0, 1), submesh=(2, 2), hosts=("a", "b")), boundary_s=0.0)
    found = by_name(plan_of((both, stage((2, 3), hosts=("c",)))))
    together = found["devices of one host of stage 0 (a b)"]
    assert together.saved_s == 0.0
    assert together.cost_s > 0.0
    assert together.twice_s == 0.25
    assert "devices of host c" not in found


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


def test_the_parts_are_the_average_devices():
    few = stage((0, 0), (1, 2), compute_s=0.03, collective_s=0.002, boundary_s=0.001, per_step_s=0.01)
    many = stage((1, 3), (1, 6), (6, 1), compute_s=0.01, collective_s=0.006, boundary_s=0.003, per_step_s=0.02)
    parts = breakdown(example_plan(stages=(few, many), step_s=0.25, num_micro_batches=4))
    assert tuple(parts) == PARTS
    # A quarter of the devices is in the first stage, and each of them does four micro-batches and one update.
    assert parts == pytest.approx(
        {"computing": 0.06, "collectives": 0.02, "transfers": 0.01, "once a step": 0.0175, "idle": 0.1425}
    )


def test_why_names_what_grew(made):
    stages = tuple(dataclasses.replace(stage, collective_s=stage.collective_s + 0.25) for stage in made.stages)
    slower = dataclasses.replace(made, stages=stages, step_s=made.step_s + 1.0)
    assert "+1 s collectives" in why_slower(slower, made)
    assert why_slower(slower, made).startswith(f"{100 / made.step_s:.1f} % slower")
