"""A host that has become slow is found; what is common to all, noise and hiccups are not taken for one."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.cli.profile import straggler_facts
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.changed.kept import Kept, write_with_kept
from alpa_dejavu.planning.changed.straggler import Straggler, expected_s, planned_around, stragglers
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
