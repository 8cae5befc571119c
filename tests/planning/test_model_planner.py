"""From a model function to a whole plan: what is left open is chosen.

What is named where nothing fits would do, and less of it wouldn't.
"""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

import jax_models
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.changed.kept import Kept, read_kept, write_with_kept
from alpa_dejavu.planning.changed.replanning import replan
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.problem import NoPlanError
from tanh_layers import inferred, trained

CLUSTER = named_cluster("p3.16xlarge")


def test_what_is_left_open_is_chosen_and_nothing_next_to_it_is_better():
    planned = plan_model(trained, CLUSTER, batch=32, layers=4)
    assert 32 % planned.run.num_micro_batches == 0
    assert sum(stage.submesh.num_devices for stage in planned.plan.stages) == 8
    steps = [planned.plan.step_s, *(other.plan.step_s for other in planned.runners_up)]
    assert steps == sorted(steps)
    assert len(steps) == 4
    for one, other in itertools.pairwise([planned.plan, *(runner.plan for runner in planned.runners_up)]):
        assert one != other


def test_a_number_of_micro_batches_is_taken_as_given():
    planned = plan_model(trained, CLUSTER, batch=32, micro_batches=4, layers=4)
    assert planned.run.num_micro_batches == 4
    with pytest.raises(ValueError, match="5 micro-batches don't divide a batch of 32"):
        plan_model(trained, CLUSTER, batch=32, micro_batches=5)


def test_a_step_without_gradients_is_inference():
    planned = plan_model(inferred, CLUSTER, batch=32, layers=4)
    assert planned.run.schedule == "inference"
    assert all(stage.backward_s == 0 for stage in planned.plan.stages)
    assert plan_model(trained, CLUSTER, batch=32, layers=4).run.schedule == "1f1b"
    with pytest.raises(ValueError, match=r"the step of .*trained takes gradients"):
        plan_model(trained, CLUSTER, batch=32, schedule="inference")


def test_replicas_that_are_asked_for_are_there_and_are_asked_for_again(tmp_path):
    cluster = named_cluster("p3.16xlarge", 2)
    planned = plan_model(trained, cluster, batch=32, layers=4, replicas=4, contingencies=True)
    assert planned.plan.contingencies
    assert all(stage.logical_mesh[0] >= 4 for stage in planned.plan.stages)
    assert planned.plan.step_s >= plan_model(trained, cluster, batch=32, layers=4).plan.step_s * (1 - 1e-9)
    path = tmp_path / "plan.json"
    write_with_kept(planned.plan, Kept.of(planned), path)
    assert read_plan(path).priced_by.replicas == 4
    again = replan(planned.plan, read_kept(path), without=[cluster.hosts[1].name]).plan
    assert all(stage.logical_mesh[0] >= 4 for stage in again.stages)
    for other in planned.plan.contingencies.values():
        assert all(stage.logical_mesh[0] >= 4 for stage in other.stages)


def test_more_replicas_than_there_are_devices_are_refused():
    with pytest.raises(NoPlanError, match=r"replicas is 16, but no stage on 1 x p3\.16xlarge can have so many"):
        plan_model(trained, CLUSTER, batch=32, layers=4, replicas=16)
    with pytest.raises(ValueError, match="replicas is 0, but must be a whole number of at least 1"):
        plan_model(trained, CLUSTER, batch=32, replicas=0)


def cluster(memory_bytes, hosts=1):
    """Hosts of two devices with so much memory."""
    given = named_cluster("p3.16xlarge", hosts, 2)
    small = [
        dataclasses.replace(host, device=dataclasses.replace(host.device, memory_bytes=memory_bytes), memory=None)
        for host in given.hosts
    ]
    return dataclasses.replace(given, hosts=tuple(small))


def refused(*given, **named):
    with pytest.raises(NoPlanError) as error:
        plan_model(*given, layers=4, cache=False, **named)
    return str(error.value)


def enough(said):
    """The flags that a message names as enough, each with its value."""
    return dict(flag.split() for flag in re.search("tried, and enough: (.*)$", said)[1].split(" or "))


def test_the_least_number_of_hosts_that_would_do_is_named():
    number = int(enough(refused(jax_models.trained, cluster(3e4), batch=8))["--hosts"])
    assert number > 2
    plan_model(jax_models.trained, cluster(3e4, number), batch=8, layers=4, cache=False)
    refused(jax_models.trained, cluster(3e4, number - 1), batch=8)


def test_more_micro_batches_are_named_where_there_are_more():
    small = cluster(4e5)
    said = refused(jax_models.trained, small, batch=1024, micro_batches=1)
    count = int(enough(said)["--micro-batches"])
    assert (
        plan_model(
            jax_models.trained, small, batch=1024, micro_batches=count, layers=4, cache=False
        ).run.num_micro_batches
        > 1
    )
    assert "what helps" not in said  # what was tried and is enough takes the place of what may help
    none_left = refused(jax_models.trained, cluster(1e4), batch=4, micro_batches=4)
    assert "more micro-batches" not in none_left


def test_offload_is_named_where_hosts_have_memory():
    there = named_cluster("p3.16xlarge", 1, 2)
    (host,) = there.hosts
    device = dataclasses.replace(host.device, memory_bytes=6e4)
    there = dataclasses.replace(there, hosts=(dataclasses.replace(host, device=device),))
    flags = enough(refused(jax_models.trained, there, batch=8))
    plan_model(jax_models.trained, there, batch=8, layers=4, cache=False, offload=flags["--offload"])


def test_what_is_not_enough_is_said():
    assert refused(jax_models.trained, cluster(1e3), batch=8).endswith("tried, and not enough: more layers, more hosts")


@pytest.mark.parametrize(
    ("asked", "memory_bytes", "flag", "choices"),
    [
        ({"batch": 64, "micro_batches": 1, "remat": ("none",), "zero": (0,)}, 2e5, "--remat", {"zero": (0,)}),
        ({"batch": 8, "replicas": 2, "remat": ("none",), "zero": (0,)}, 1.4e5, "--zero", {"remat": ("none",)}),
    ],
    ids=["remat", "ZeRO"],
)
def test_remat_and_zero_are_named_where_stages_may_have_only_some(asked, memory_bytes, flag, choices):
    small = cluster(memory_bytes)
    with pytest.raises(NoPlanError) as error:
        plan_model(jax_models.trained, small, layers=4, cache=False, **asked)
    assert f"{flag} auto" in error.value.remedies
    assert enough(str(error.value)) == dict(each.split() for each in error.value.remedies)
    freed = {name: asked[name] for name in asked.keys() - {"remat", "zero"}}
    assert plan_model(jax_models.trained, small, layers=4, cache=False, **freed, **choices).plan.stages


def test_what_is_missing_is_said_of_the_memory_that_a_runtime_leaves():
    model = "transformer:hidden=6144,blocks=48,heads=64,vocabulary=51200,sequence=2048,gated=no,tied=yes"
    asked = {"batch": 4, "micro_batches": 1, "remat": ("none",), "zero": (0,), "attention": "plain", "cache": False}
    with pytest.raises(NoPlanError, match=r"the 8 devices have 78\.5\d GiB each, of which 3\.93 GiB are left free"):
        plan_model(model, "dgx-a100", runtime="megatron", **asked)


def test_a_model_that_does_not_fit_says_what_is_missing():
    (host,) = CLUSTER.hosts
    device = dataclasses.replace(host.device, memory_bytes=1e4)
    small = dataclasses.replace(CLUSTER, hosts=(dataclasses.replace(host, device=device),))
    with pytest.raises(NoPlanError, match="doesn't fit into memory"):
        plan_model(trained, small, batch=32, layers=4)


def test_a_plan_says_what_share_of_memory_it_left_free():
    assert plan_model(trained, CLUSTER, batch=32, layers=4).plan.priced_by.margin == 0.05
    assert plan_model(trained, CLUSTER, batch=32, layers=4, memory_margin=0.2).plan.priced_by.margin == 0.2
