"""A suspected replica is left out: the devices that it is on in every stage, and what the plan without them costs."""

import dataclasses

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.changed.kept import Kept, write_with_kept
from alpa_dejavu.planning.changed.replanning import replan, replica_devices
from alpa_dejavu.problem import NoPlanError
from alpa_dejavu.training.robust import Suspects
from tanh_layers import trained


@pytest.fixture(scope="module")
def planned():
    return plan_model(trained, named_cluster("p3.16xlarge"), batch=96, micro_batches=2, layers=4, replicas=4)


def with_meshes(plan, *meshes):
    (stage,) = plan.stages[:1]
    stages = tuple(
        dataclasses.replace(stage, layers=(n, n), logical_mesh=mesh,
                            submesh=dataclasses.replace(stage.submesh, devices_per_host=mesh[0] * mesh[1]))
        for n, mesh in enumerate(meshes)
    )  # fmt: skip
    return dataclasses.replace(plan, stages=stages)


def test_a_replica_has_a_row_of_each_stages_logical_mesh(planned):
    two = with_meshes(planned.plan, (2, 2), (2, 1))
    # The stage with more devices has the first ones of the host.
    assert replica_devices(two, [0]) == ("p3.16xlarge-0/0", "p3.16xlarge-0/1", "p3.16xlarge-0/4")
    assert replica_devices(two, [1]) == ("p3.16xlarge-0/2", "p3.16xlarge-0/3", "p3.16xlarge-0/5")


@pytest.mark.parametrize(
    ("replicas", "said"),
    [
        ([2], r"replica is 2, but must be one of the plan's 0\.\.1"),
        ([0, 1], "replicas are 0, 1, which are all of the plan's"),
    ],
)
def test_what_is_no_replica_is_refused(planned, replicas, said):
    with pytest.raises(ValueError, match=said):
        replica_devices(with_meshes(planned.plan, (2, 2), (2, 1)), replicas)
    with pytest.raises(ValueError, match="stages have 2, 4 replicas, but must have equally many"):
        replica_devices(with_meshes(planned.plan, (2, 1), (4, 1)), replicas)


def test_what_suspects_propose_is_planned_without_in_one_flow(planned, tmp_path):
    suspects = Suspects(planned.plan.stages[0].logical_mesh[0], patience=2)
    for _ in range(4):  # three steps name it
        suspects = suspects.seen({"whole": [1.0, float("inf"), *[1.0] * (suspects.replicas - 2)]})
    assert suspects.left_out == (1,)
    names = replica_devices(planned.plan, suspects.left_out)
    made = replan(planned.plan, Kept.of(planned), without_replicas=suspects.left_out)
    # Some of the devices left may stay unused where that is faster.
    assert made.plan.num_devices <= planned.plan.num_devices - len(names)
    assert {stage.logical_mesh[0] >= made.kept.rules.replicas for stage in made.plan.stages} == {True}
    path = tmp_path / "plan.json"
    write_with_kept(planned.plan, Kept.of(planned), path)
    done = CliRunner().invoke(main, ["replan", str(path), "--without-replica", "1"])
    assert done.exit_code == 0, done.output
    assert f"without                 {' '.join(names)}" in done.output
    wrong = CliRunner().invoke(main, ["replan", str(path), "--without-replica", "99"])
    assert wrong.exit_code != 0
    assert "replica is 99, but must be one of the plan's" in " ".join(wrong.output.split())


def test_where_a_lost_device_leaves_too_few_replicas_the_plan_has_fewer_and_says_so():
    planned = plan_model(trained, named_cluster("p3.8xlarge"), batch=48, micro_batches=4, layers=4, replicas=4)
    made = replan(planned.plan, Kept.of(planned), without=["p3.8xlarge-0/3"])
    assert {stage.logical_mesh[0] >= 3 for stage in made.plan.stages} == {True}
    assert made.kept.rules.replicas == 3
    assert "at least 3 replicas of each stage: 4 don't fit without the lost devices" in made.plan.notes
    with pytest.raises(NoPlanError, match="replicas is 8, but no stage"):
        replan(planned.plan, Kept.of(planned).with_replicas(8), slow={"p3.8xlarge-0": 2.0})
