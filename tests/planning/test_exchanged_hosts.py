"""Which stage is on which of unlike hosts: no exchange of hosts makes a plan faster, by the prices of given plans."""

import dataclasses
import itertools

import numpy as np
import pytest

import unlike
from alpa_dejavu.planning import GivenStages, given_stages, plan
from alpa_dejavu.problem import Link, Run
from models import chain, product, task_of

RUN = Run(8)


def uneven(rng, num_layers=5):
    """Layers of 2 to 8 GFLOP, with 0.1 MB to 1 GB of weights each; 0.1 to 100 MB cross between two of them."""
    model = chain(num_layers, exchanged=(3e6,))
    flop = rng.integers(1, 5, num_layers) * 2e9
    sent, kept = 10.0 ** rng.uniform(5, 8, num_layers), 10.0 ** rng.uniform(5, 9, num_layers)
    layers = [
        dataclasses.replace(layer, forward=product(one), backward=product(2 * one))
        for layer, one in zip(model.layers, flop, strict=True)
    ]

    def sized(tensor):
        if tensor.role == "input":
            return tensor
        if tensor.role == "activation":
            return dataclasses.replace(
                tensor, num_bytes=float(sent[min(tensor.producer, 2 * num_layers - 2 - tensor.producer)])
            )
        return dataclasses.replace(tensor, num_bytes=float(kept[tensor.users[0]] * (1 + (tensor.role == "optimizer"))))

    return dataclasses.replace(model, layers=tuple(layers), tensors=tuple(map(sized, model.tensors)))


def four_hosts(rng):
    """Equal hosts, each pair of which has a rate of its own, from 0.1 to 30 GB/s."""
    hosts = [unlike.host(name, devices=1, memory_bytes=2.0**38) for name in "abcd"]
    rates = {frozenset(pair): 10.0 ** rng.uniform(8, 10.5) for pair in itertools.combinations("abcd", 2)}
    return unlike.cluster(hosts, lambda a, b: Link(1e-5, rates[frozenset((a.name, b.name))]))


def planned(seed):
    rng = np.random.default_rng(seed)
    task = task_of(uneven(rng), four_hosts(rng), 4, RUN, communication="links")
    return task, plan(task, annotations=()).plan


def least_s(task, made):
    """The least seconds of the plan's stages on the hosts in every order."""
    stages, found = given_stages(made), set()
    for order in itertools.permutations("abcd"):
        names = dict(zip("abcd", order, strict=True))
        placed = [dataclasses.replace(one, hosts=tuple(names[host] for host in one.hosts)) for one in stages]
        given = dataclasses.replace(task, chooser=GivenStages(tuple(placed)))
        found.add(plan(given, annotations=()).plan.step_s)
    return min(found)


@pytest.mark.parametrize("seed", [0, 3, 19, 102, 126])
def test_no_order_of_the_hosts_is_faster(seed):
    task, made = planned(seed)
    assert made.step_s <= least_s(task, made) * (1 + 1e-9)


@pytest.mark.parametrize("seed", [19, 102])
def test_that_takes_exchanges(monkeypatch, seed):
    """The closed form by which slicers choose takes other hosts here."""
    monkeypatch.setattr("alpa_dejavu.planning.search._polish._orders", lambda count: [])
    task, made = planned(seed)
    assert made.step_s > least_s(task, made) * 1.001
