"""More resources never make a plan slower: a host, a faster device or link, more memory, on clusters drawn by seeds."""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.calibration import Prices
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.planning import PlanningTask, Searched, plan
from alpa_dejavu.planning.search._shapes import micro_batch_counts
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.problem import Cluster, Device, Host, Layer, Link, Model, NoPlanError, Tensor
from models import NOTHING, product

ALLOWED = 1.001


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
    slower = {what: after for what, each in more.items() if (after := step_s(model, each, batch)) > ALLOWED * before}
    assert not slower, f"{before} s before"
