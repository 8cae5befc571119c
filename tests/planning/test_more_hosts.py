"""More hosts never make a plan slower: those that do no good are left out, and the plan says so."""

import dataclasses
import itertools

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.task import GivenSpace
from alpa_dejavu.problem import Cluster, Link, MeshConfig, NoPlanError, Run, SearchSpace, Submesh
from alpa_dejavu.testing import example_cluster
from jax_models import trained
from models import chain, planned, space

WORSE = 1.001


def hosts_used(plan):
    return {host for stage in plan.stages for host in stage.hosts}


def v100s(hosts, devices=2, gbit_per_s=2.5, price=None):
    """Hosts of V100 with slow Ethernet between them."""
    host = named_cluster("p3.16xlarge").hosts[0]
    within, names = named_cluster("p3.16xlarge").links[0][0], [f"host-{n}" for n in range(hosts)]
    cluster = Cluster.uniform("slow", names, host.device, devices, within, Link(5e-5, gbit_per_s * 1e9 / 8))
    if price is not None:
        first, *others = cluster.hosts
        cluster = dataclasses.replace(cluster, hosts=(dataclasses.replace(first, price_per_hour=price), *others))
    return cluster


def small(batch_size):
    return trained(batch_size, size=1024, depth=8)


def test_small_models_stay_on_few_of_the_hosts_whose_links_are_slow():
    alone, four = (plan_model(small, v100s(hosts), batch=64, layers=4).plan for hosts in (1, 4))
    assert four.step_s <= alone.step_s * WORSE
    unused = {f"host-{n}" for n in range(4)} - hosts_used(four)
    assert unused
    (note,) = [note for note in four.notes if "left unused" in note]
    assert all(name in note for name in unused)


def test_a_price_tells_hosts_apart_and_changes_nothing_in_the_fastest_plan():
    # One device a host: alike hosts aren't used in part, those that a price tells apart may be.
    plain, priced = (plan_model(small, v100s(4, 1, price=price), batch=64, layers=4).plan for price in (None, 3.0))
    assert priced.step_s == pytest.approx(plain.step_s, rel=1e-3)


def test_parts_of_hosts_that_do_not_pack_are_no_plan():
    # Links between these hosts are as fast as those inside, so that stages may take a part of several hosts.
    model = chain(2, flop=1e8, parameter_bytes=1e4, activation_bytes=1e3, exchanged=(1e3,))
    steps = [planned(model, between(hosts, 4, 1e11), 8, Run(1)).plan.step_s for hosts in (2, 5)]
    assert steps[1] <= steps[0] * WORSE


@pytest.mark.parametrize("model", [
    pytest.param("gpt-125m", id="gpt", marks=pytest.mark.slow),
    pytest.param(small, id="mlp"),
])  # fmt: skip
def test_a_host_more_never_makes_a_plan_slower(model):
    steps = [plan_model(model, "p3.16xlarge", hosts, batch=64, layers=4).plan.step_s for hosts in (1, 2, 3)]
    assert all(after <= before * WORSE for before, after in itertools.pairwise(steps))


def between(hosts, devices, rate):
    """Alike hosts with links of a rate between them."""
    cluster = example_cluster(hosts, devices)
    apart = Link(1e-5, rate)
    rows = enumerate(cluster.links)
    links = tuple(tuple(apart if a != b else link for b, link in enumerate(row)) for a, row in rows)
    return dataclasses.replace(cluster, links=links)


@settings(max_examples=6, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    st.integers(2, 6),
    st.sampled_from([2, 4]),
    st.floats(8, 11),
    st.floats(4, 7),
    st.floats(3, 8),
    st.floats(7, 11),
    st.sampled_from([1, 4, 16]),
)
def test_a_host_more_makes_no_chain_of_layers_slower(layers, devices, flop, parameters, activations, rate, count):
    model = chain(
        layers,
        flop=10**flop,
        parameter_bytes=10**parameters,
        activation_bytes=10**activations,
        exchanged=(10**activations,),
    )
    steps = []
    for hosts in range(1, 5):
        try:
            found = planned(model, between(hosts, devices, 10**rate), 8, Run(count))
        except NoPlanError:
            assert not steps, "what fits on fewer hosts fits on more"
            continue
        steps.append(found.plan.step_s)
    assert all(after <= before * WORSE for before, after in itertools.pairwise(steps))


def test_a_given_space_is_used_on_parts_of_its_cluster():
    given = GivenSpace(space(hosts=4))
    shapes = {hosts: {(s.num_hosts, s.devices_per_host) for s in given.space(example_cluster(hosts), 1).submeshes}
              for hosts in (1, 2, 4)}  # fmt: skip
    assert shapes[1] == {(1, 1), (1, 2), (1, 4)}
    assert shapes[2] == shapes[1] | {(2, 4)}
    assert shapes[4] == shapes[2] | {(3, 4), (4, 4)}


def test_a_given_space_whose_submeshes_need_all_hosts_is_planned_for_and_nothing_smaller():
    every = space(hosts=2)
    largest = SearchSpace(every.submeshes[-1:], every.configs[-1:])
    with pytest.raises(NoPlanError, match=r"none of the submeshes \[\(2, 4\)\] is on hosts of example"):
        GivenSpace(largest).space(example_cluster(1), 1)
    made = planned(chain(4), example_cluster(2), largest, Run(4)).plan
    assert [stage.submesh for stage in made.stages] == [every.submeshes[-1]]
    assert made.contingencies == {}


def test_a_given_space_names_no_hosts_of_one_cluster():
    every = space(hosts=1)
    with pytest.raises(ValueError, match="hosts of the space are those of one cluster, but must be None"):
        GivenSpace(dataclasses.replace(every, hosts=((0,),) * len(every.submeshes)))


def test_where_stages_cannot_take_all_hosts_they_take_fewer():
    """Two layers can't fill seven hosts by whole ones in powers of two, but six of them."""
    cluster = example_cluster(num_hosts=7, devices_per_host=1, memory_bytes=2.0**34)
    model = chain(2, flop=1e10, parameter_bytes=1e3, activation_bytes=1e3, exchanged=(1e9,))
    rows = ((MeshConfig((1, 1), 1, 1),), (MeshConfig((2, 1), 2, 1),))
    made = planned(model, cluster, SearchSpace((Submesh(1, 1), Submesh(2, 1)), rows), Run(4)).plan
    assert made.num_devices <= 4
    assert any("left unused" in note for note in made.notes)
