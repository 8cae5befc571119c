"""What a plan's step depends on: its derivatives are the differences of steps simulated again."""

import dataclasses

import pytest

from alpa_dejavu.simulation.plan_times import plan_times, scaled
from alpa_dejavu.simulation.sensitivity import sensitivities
from alpa_dejavu.simulation.step import simulate
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


def test_of_one_stage_without_links_all_is_computing():
    alone = stage((0, 3), collective_s=0.0, forward_collective_s=0.0, synchronisation_s=0.0, boundary_s=0.0)
    (devices,) = sensitivities(plan_of((alone,)))
    assert (devices.what, devices.part) == ("all devices", "devices")
    assert devices.elasticity == devices.worse_elasticity == pytest.approx(1.0)
    assert devices.twice_s == pytest.approx(0.125)
    assert devices.gained_s == pytest.approx(0.125)


def test_stages_alike_are_helped_together_and_hurt_by_each():
    alike = tuple(stage((n, n), hosts=(str(n),), boundary_s=0.0, forward_boundary_s=0.0) for n in range(4))
    found = by_name(plan_of(alike))
    one = found["computing of stage 1 (layer 1 on 1)"]
    assert one.worse_elasticity > 0.3
    assert one.elasticity < 0.1
    assert one.gained_s < 0.2 * found["all devices"].gained_s
    assert next(iter(found)) == "all devices"


def test_what_helps_most_comes_first_and_what_does_not_matter_is_left_out():
    stages = tuple(stage((n, n), boundary_s=0.0, forward_boundary_s=0.0) for n in range(2))
    found = sensitivities(plan_of(stages))
    gains = [one.gained_s for one in found]
    assert gains == sorted(gains, reverse=True)
    assert not any("between" in one.what for one in found)


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


def test_hosts_with_the_same_stages_are_told_together():
    both = dataclasses.replace(stage((0, 1), submesh=(2, 2), hosts=("a", "b")), boundary_s=0.0)
    found = by_name(plan_of((both, stage((2, 3), hosts=("c",)))))
    together = found["devices of one of the hosts a or b"]
    assert together.saved_s == 0.0
    assert together.cost_s > 0.0
    assert together.twice_s == 0.25
    assert "devices of host c" not in found
