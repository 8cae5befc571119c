"""What is named where nothing fits would do, and less of it wouldn't."""

import dataclasses
import re

import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.problem import NoPlanError
from jax_models import trained


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
    number = int(enough(refused(trained, cluster(3e4), batch=8))["--hosts"])
    assert number > 2
    plan_model(trained, cluster(3e4, number), batch=8, layers=4, cache=False)
    refused(trained, cluster(3e4, number - 1), batch=8)


def test_more_micro_batches_are_named_where_there_are_more():
    small = cluster(4e5)
    said = refused(trained, small, batch=1024, micro_batches=1)
    count = int(enough(said)["--micro-batches"])
    assert plan_model(trained, small, batch=1024, micro_batches=count, layers=4, cache=False).run.num_micro_batches > 1
    assert "what helps" not in said  # what was tried and is enough takes the place of what may help
    none_left = refused(trained, cluster(1e4), batch=4, micro_batches=4)
    assert "more micro-batches" not in none_left


def test_offload_is_named_where_hosts_have_memory():
    there = named_cluster("p3.16xlarge", 1, 2)
    (host,) = there.hosts
    device = dataclasses.replace(host.device, memory_bytes=6e4)
    there = dataclasses.replace(there, hosts=(dataclasses.replace(host, device=device),))
    flags = enough(refused(trained, there, batch=8))
    plan_model(trained, there, batch=8, layers=4, cache=False, offload=flags["--offload"])


def test_what_is_not_enough_is_said():
    assert refused(trained, cluster(1e3), batch=8).endswith("tried, and not enough: more layers, more hosts")


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
        plan_model(trained, small, layers=4, cache=False, **asked)
    assert f"{flag} auto" in error.value.remedies
    assert enough(str(error.value)) == dict(each.split() for each in error.value.remedies)
    freed = {name: asked[name] for name in asked.keys() - {"remat", "zero"}}
    assert plan_model(trained, small, layers=4, cache=False, **freed, **choices).plan.stages
