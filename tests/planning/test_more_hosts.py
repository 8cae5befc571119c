"""More resources never make a plan slower: hosts that do no good are left out, and the plan says so."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from alpa_dejavu.calibration import Prices
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.planning import PlanningTask, Searched, plan, plan_model
from alpa_dejavu.planning.search._shapes import micro_batch_counts
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.planning.task import GivenSpace
from alpa_dejavu.problem import (
    Cluster,
    Device,
    Host,
    Layer,
    Link,
    MeshConfig,
    Model,
    NoPlanError,
    Run,
    SearchSpace,
    Submesh,
    Tensor,
)
from alpa_dejavu.testing import example_cluster
from jax_models import trained
from models import NOTHING, chain, planned, product, space

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


def test_a_given_space_whose_submeshes_need_all_hosts_is_planned_for_and_nothing_smaller():
    every = space(hosts=2)
    largest = SearchSpace(every.submeshes[-1:], every.configs[-1:])
    with pytest.raises(NoPlanError, match=r"none of the submeshes \[\(2, 4\)\] is on hosts of example"):
        GivenSpace(largest).space(example_cluster(1), 1)
    made = planned(chain(4), example_cluster(2), largest, Run(4)).plan
    assert [stage.submesh for stage in made.stages] == [every.submeshes[-1]]
    assert made.contingencies == {}


def drawn_model(rng):
    """Two to eight layers that compute, keep and send what is drawn."""
    count = int(rng.integers(2, 9))
    last, layers, tensors = 2 * count - 1, [], []
    for n in range(count):
        flop, parameters, activations = 10 ** rng.uniform(8, 10), 10 ** rng.uniform(5, 8), 10 ** rng.uniform(4, 7)
        exchanged = (10 ** rng.uniform(3, 7),) * 2
        layers.append(Layer(f"{n}", product(flop), product(2 * flop), NOTHING, exchanged_bytes=exchanged))
        tensors.append(Tensor(parameters, "parameter", -1, (n, last - n)))
        tensors.append(Tensor(parameters, "gradient", -1, (n,)))
        tensors.append(Tensor(2 * parameters, "optimizer", -1, (n,)))
        if n:
            tensors.append(Tensor(activations, "activation", n - 1, (n, last - n)))
            tensors.append(Tensor(activations, "activation", last - n, (last - n + 1,)))
    return Model(tuple(layers), tuple(tensors), True)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A cluster in numbers: the rate of each host's devices, their number and memory, and the links' rates."""

    rates: tuple[float, ...]
    devices: int
    memory_bytes: float
    within: float
    between: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, rng, unlike):
        hosts, within = int(rng.integers(1 + unlike, 3 if unlike else 4)), 10 ** rng.uniform(9, 11.5)
        kinds, links = 10 ** rng.uniform(11, 13.5, 2), within * 10 ** rng.uniform(-2.5, 0, 2)
        which = rng.integers(0, 1 + unlike, hosts + 1)
        between = links[np.triu(rng.integers(0, 1 + unlike, (hosts + 1, hosts + 1)))]
        numbers = int(rng.choice([1, 2] if unlike else [1, 2, 4])), 10 ** rng.uniform(8.7, 10)
        return cls(tuple(kinds[which]), *numbers, within, tuple(map(tuple, between)))

    def cluster(self, hosts):
        made = [Host(f"host-{n}", self.device(rate), self.devices) for n, rate in enumerate(self.rates[:hosts])]
        links = tuple(
            tuple(
                Link(1e-5, self.within) if a == b else Link(3e-5, self.between[min(a, b)][max(a, b)])
                for b in range(hosts)
            )
            for a in range(hosts)
        )
        return Cluster("drawn", tuple(made), links)

    def device(self, rate):
        return Device("drawn", self.memory_bytes, {"float32": rate}, rate, 1e12, kernel_s=1e-6, dispatch_s=1e-5)


def step_s(model, cluster, batch):
    task = PlanningTask(
        source=GivenModel(model, 1, name="drawn"),
        prices=Prices(cluster, CostModels.named()),
        batch=batch,
        layers=(model.num_layers,),
        micro_batches=micro_batch_counts(batch),
        chooser=Searched(),
    )
    try:
        return plan(task, annotations=()).plan.step_s
    except NoPlanError:
        return np.inf


DRAWN = [*((seed, False) for seed in range(8)), *((seed, True) for seed in range(6))]


@pytest.mark.parametrize(("seed", "unlike"), DRAWN)
def test_more_resources_never_make_a_plan_slower(seed, unlike):
    rng = np.random.default_rng(seed)
    model, drawn, batch = drawn_model(rng), Drawn.of(rng, unlike), int(rng.choice([8, 16, 24]))
    hosts, factor, chosen = len(drawn.rates) - 1, rng.uniform(1.05, 2.0), int(rng.integers(0, len(drawn.rates) - 1))
    before = step_s(model, drawn.cluster(hosts), batch)
    same = chosen if unlike else slice(None)
    rates, between = np.array(drawn.rates), np.array(drawn.between)
    rates[same] *= factor
    between[same] *= factor
    more = {
        "a host": drawn.cluster(hosts + 1),
        "a faster device": dataclasses.replace(drawn, rates=tuple(rates)).cluster(hosts),
        "a faster link between hosts": dataclasses.replace(drawn, between=tuple(map(tuple, between))).cluster(hosts),
        "a faster link within hosts": dataclasses.replace(drawn, within=drawn.within * factor).cluster(hosts),
        "more memory": dataclasses.replace(drawn, memory_bytes=drawn.memory_bytes * factor).cluster(hosts),
    }
    slower = {what: after for what, each in more.items() if (after := step_s(model, each, batch)) > WORSE * before}
    assert not slower, f"{before} s before"


def test_a_price_tells_hosts_apart_and_changes_nothing_in_the_fastest_plan():
    # One device a host: alike hosts aren't used in part, those that a price tells apart may be.
    plain, priced = (plan_model(small, v100s(4, 1, price=price), batch=64, layers=4).plan for price in (None, 3.0))
    assert priced.step_s == pytest.approx(plain.step_s, rel=1e-3)


def test_a_given_space_is_used_on_parts_of_its_cluster():
    given = GivenSpace(space(hosts=4))
    shapes = {hosts: {(s.num_hosts, s.devices_per_host) for s in given.space(example_cluster(hosts), 1).submeshes}
              for hosts in (1, 2, 4)}  # fmt: skip
    assert shapes[1] == {(1, 1), (1, 2), (1, 4)}
    assert shapes[2] == shapes[1] | {(2, 4)}
    assert shapes[4] == shapes[2] | {(3, 4), (4, 4)}


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
