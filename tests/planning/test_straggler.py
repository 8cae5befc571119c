"""Hosts that have become slow, and replicas that are suspected."""

import dataclasses

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.calibration.measurement.notes import Note, StageNotes
from alpa_dejavu.cli.main import main
from alpa_dejavu.cli.profile import straggler_facts
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.changed.kept import Kept, write_with_kept
from alpa_dejavu.planning.changed.replanning import replan, replica_devices
from alpa_dejavu.planning.changed.straggler import Straggler, expected_s, planned_around, stragglers
from alpa_dejavu.problem import NoPlanError
from alpa_dejavu.training.robust import Suspects
from plans import example_plan, stage
from tanh_layers import trained

HOSTS = "abcd"
PLAN = example_plan(
    stages=tuple(stage((n, n), hosts=(host,), compute_s=0.02 * (1 + n)) for n, host in enumerate(HOSTS))
)


def steps(factors, count=9, noise=0.05, seed=0, common=1.0):
    rng = np.random.default_rng(seed)
    return np.array(expected_s(PLAN)) * common * factors * np.exp(rng.normal(0, noise, (count, len(factors))))


@given(place=st.integers(0, 3), factor=st.floats(1.5, 8), common=st.floats(0.2, 5), seed=st.integers(0, 99))
def test_a_slow_host_is_found_whatever_all_are_wrong_by(place, factor, common, seed):
    factors = np.ones(4)
    factors[place] = factor
    (found,) = stragglers(PLAN, steps(factors, seed=seed, common=common))
    assert found.hosts == (HOSTS[place],)
    assert found.stages == (place,)
    assert found.factor == pytest.approx(factor, rel=0.1)


def test_hiccups_are_no_straggler():
    measured = steps(np.ones(4))
    measured[:4, 2] *= 20
    assert stragglers(PLAN, measured) == ()
    measured[:, 2] *= 2
    assert [one.hosts for one in stragglers(PLAN, measured)] == [("c",)]


def test_hosts_that_share_a_stage_are_not_told_apart():
    stages = tuple(
        dataclasses.replace(stage((n, n), submesh=(2, 2), logical=(4, 1), hosts=hosts), compute_s=0.02)
        for n, hosts in enumerate([("a", "b"), ("c", "d"), ("e", "f")])
    )
    plan = dataclasses.replace(PLAN, stages=stages)
    measured = np.array(expected_s(plan)) * [1, 2, 1] * np.ones((5, 1))
    (found,) = stragglers(plan, measured)
    assert found.hosts == ("c", "d")
    assert str(found) == "c or d takes 2.00 times as long as it should (stages 1)"


def test_what_is_usual_corrects_a_wrong_prediction():
    measured = steps(np.array([1, 1, 4, 1]), noise=0.01)
    assert [one.hosts for one in stragglers(PLAN, measured)] == [("c",)]
    usual = list(np.median(measured, axis=0))
    assert stragglers(PLAN, measured, usual_s=usual) == ()
    (found,) = stragglers(PLAN, measured * [1, 1, 1, 2], usual_s=usual)
    assert found.hosts == ("d",)


@pytest.mark.parametrize(
    ("measured", "options", "said"),
    [
        (np.ones((5, 3)), {}, r"\(5, 3\) and usual_s \(4,\); the plan has 4 stages"),
        (np.ones((4, 4)), {}, "4 steps are too few"),
        (np.zeros((5, 4)), {}, "finite seconds above 0"),
        (np.full((5, 4), np.nan), {}, "finite seconds above 0"),
        (np.ones((5, 4)), {"usual_s": [1.0]}, r"usual_s \(1,\)"),
        (np.ones((5, 4)), {"least_factor": 1.0}, "least_factor is 1.0"),
    ],
)
def test_what_says_nothing_is_refused(measured, options, said):
    with pytest.raises(ValueError, match=said):
        stragglers(PLAN, measured, **options)


def test_the_plan_that_would_be_chosen_now():
    planned = plan_model(trained, named_cluster("p3.16xlarge", 2), batch=64, micro_batches=4, layers=4)
    host = "p3.16xlarge-1"
    now = planned_around(planned.plan, Kept.of(planned), [Straggler((host,), 3.0, (0,)), Straggler((host,), 2.0, (1,))])
    assert now.plan.step_s < 3.0 * planned.plan.step_s
    rates = [each.device.rate("float32") for each in now.kept.cluster.hosts]
    assert rates[0] == pytest.approx(3.0 * rates[1])


def test_a_profile_names_a_straggler_and_the_plan_for_it(tmp_path):
    planned = plan_model(trained, named_cluster("p3.16xlarge", 4), batch=64, micro_batches=4, layers=4)
    hosts = [host.name for host in planned.cluster.hosts]
    plan = dataclasses.replace(
        planned.plan, stages=tuple(stage((n, n), hosts=(host,)) for n, host in enumerate(hosts)), contingencies={}
    )
    slow = [[1.0, 1.0, 2.5, 1.0]] * 6
    path = tmp_path / "plan.json"
    assert straggler_facts(path, plan, [[1.0] * 4] * 6) == []
    assert straggler_facts(path, plan, slow[:3]) == []
    assert straggler_facts(path, plan, [[0.0, 1.0, 2.5, 1.0]] * 6) == []
    ((name, text),) = straggler_facts(path, plan, slow)
    assert name == "straggler"
    assert text.startswith("p3.16xlarge-2 takes 2.50 times as long as it should (stages 2)")
    write_with_kept(plan, Kept.of(planned), path)
    _, (name, now) = straggler_facts(path, plan, slow)
    assert name == "planned around it"
    assert "--slow p3.16xlarge-2=2.50" in now


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


def test_what_a_stage_computes_for():
    assert expected_s(PLAN)[1] == pytest.approx(4 * (0.04 + 0.005) + 0.01)


@given(common=st.floats(0.1, 10), seed=st.integers(0, 99))
def test_when_all_are_slow_none_is(common, seed):
    assert stragglers(PLAN, steps(np.ones(4), seed=seed, common=common)) == ()


def test_a_little_slow_is_a_matter_of_the_factor():
    measured = steps(np.array([1, 1.15, 1, 1]), noise=0.01)
    assert stragglers(PLAN, measured) == ()
    (found,) = stragglers(PLAN, measured, least_factor=1.1)
    assert str(found).startswith("b takes 1.1")


def test_all_stages_of_a_host_must_be_slow():
    stages = tuple(dataclasses.replace(s, hosts=(host,)) for s, host in zip(PLAN.stages, "aabb", strict=True))
    plan = dataclasses.replace(PLAN, stages=stages)
    assert stragglers(plan, steps(np.array([1, 3, 1, 1]))) == ()
    (found,) = stragglers(plan, steps(np.array([3, 3, 1, 1])))
    assert (found.hosts, found.stages) == (("a",), (0, 1))


def test_a_plan_on_one_host_has_nobody_to_compare_with():
    plan = dataclasses.replace(PLAN, stages=(stage((0, 3), hosts=("a",)),))
    assert stragglers(plan, np.full((5, 1), 100.0)) == ()


def test_waiting_is_not_computing():
    run, wait = Note("run", 0, 1.0, 3.0, 0.5), Note("receive", None, 3.0, 9.0, 6.0)
    assert StageNotes(0.0, 10.0, (run, wait, run)).computing_s == 3.0
    assert StageNotes(0.0, 1.0).computing_s == 0.0
