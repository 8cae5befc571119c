import dataclasses

import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning.given.spare import spare
from plans import example_plan, stage

CLUSTER = named_cluster("p3.16xlarge", 2)
HOSTS = [host.name for host in CLUSTER.hosts]


def figures(host, forward_s=1.0):
    """Of a stage that sends nothing."""
    return {
        "hosts": (host,), "forward_s": forward_s, "backward_s": 2 * forward_s, "compute_s": 3 * forward_s,
        "collective_s": 0.0, "forward_collective_s": 0.0, "boundary_s": 0.0, "forward_boundary_s": 0.0,
        "per_step_s": 0.0, "synchronisation_s": 0.0,
    }  # fmt: skip


def test_the_bubble_of_equal_stages_is_that_of_the_closed_form():
    stages = tuple(stage((n, n), submesh=(1, 4), **figures(HOSTS[0])) for n in range(2))
    found = spare(example_plan(stages=stages, step_s=15.0), CLUSTER)
    # Four micro-batches of 3 s in two stages: each waits for one.
    assert found.bubble_s == pytest.approx((3.0, 3.0))
    assert found.bubble_device_s == pytest.approx(24.0)
    assert found.devices == {HOSTS[1]: 8}
    assert found.unused_device_s == pytest.approx(8 * 15.0)


def test_a_short_stage_waits_for_the_long_one_and_parts_of_hosts_are_spare():
    stages = (
        stage((0, 0), submesh=(1, 2), **figures(HOSTS[0], 0.5)),
        stage((1, 1), submesh=(2, 4), **{**figures(HOSTS[0], 1.0), "hosts": tuple(HOSTS)}),
    )
    found = spare(example_plan(stages=stages, step_s=13.5), CLUSTER)
    assert found.devices == {HOSTS[0]: 2, HOSTS[1]: 4}
    assert found.bubble_s == pytest.approx((13.5 - 6.0, 1.5))
    assert found.bubble_device_s == pytest.approx(2 * 7.5 + 8 * 1.5)


def test_a_plan_for_another_cluster_is_refused():
    with pytest.raises(ValueError, match=r"2 devices of the host 'elsewhere', but .* has 0"):
        spare(example_plan(stages=(stage((0, 3), hosts=("elsewhere",)),)), CLUSTER)
    with pytest.raises(ValueError, match="takes 16 devices"):
        spare(example_plan(stages=(stage((0, 3), submesh=(1, 16), hosts=(HOSTS[0],)),)), CLUSTER)


def test_parts_of_one_cpu_leave_nothing_idle():
    shared = dataclasses.replace(CLUSTER, cores=4)
    found = spare(example_plan(stages=(stage((0, 3), hosts=(HOSTS[0],)),)), shared)
    assert found.devices == {HOSTS[0]: 6, HOSTS[1]: 8}
    assert (found.unused_device_s, found.bubble_device_s, found.bubble_s) == (0.0, 0.0, (0.0,))
