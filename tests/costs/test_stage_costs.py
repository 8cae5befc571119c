"""Prices of remat, ZeRO levels and other micro-batches, against those that the cost table's tests reckon by hand."""

import dataclasses
import itertools

import numpy as np
import pytest

from alpa_dejavu._util.range_sums import stage_sum
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs import _hidden
from alpa_dejavu.costs._batched_predictions import PredictedOperators
from alpa_dejavu.costs.communication import CommunicationModel, Nccl
from alpa_dejavu.costs.latency import KernelLatency, LatencyModel
from alpa_dejavu.costs.memory import ModelMemory
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_costs import COST_KINDS, StageCostModel
from alpa_dejavu.costs.stage_devices import StagePlaces
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.problem import MeshConfig, Operator, Operators, Submesh
from alpa_dejavu.testing import example_cluster
from models import chain


def prices(model, config, devices=4):
    cluster = example_cluster(num_hosts=1)
    costs = StageCostModel(model, cluster, CostModels.named())
    return dict(zip(COST_KINDS, costs.seconds(costs.places.on_submesh(Submesh(1, devices)), config), strict=True))


def test_remat_computes_forward_again_and_exchanges_again():
    plain = prices(chain(2, flop=1e9), MeshConfig((2, 2), 2, 2))
    again = prices(chain(2, flop=1e9), MeshConfig((2, 2), 2, 2, remat="layer"))
    extra = again["compute_backward_s"] - plain["compute_backward_s"]
    assert extra[0, 1] == pytest.approx(2 * 1e9 / 4 / 1e12)
    assert again["collective_backward_s"][0, 1] == pytest.approx(2 * plain["collective_backward_s"][0, 1])
    assert np.array_equal(again["compute_forward_s"], plain["compute_forward_s"])


@pytest.mark.parametrize(("cores", "apart"), [(None, False), (2, True)])
@pytest.mark.parametrize(("submesh", "axis"), [(Submesh(2, 2), 1), (Submesh(2, 2), 0), (Submesh(1, 2), 1)])
def test_on_several_nodes_of_a_cpu_all_devices_exchange_as_processes(cores, apart, submesh, axis):
    cluster = dataclasses.replace(example_cluster(2, 2), cores=cores)
    places = StagePlaces(chain(1), cluster)
    config = MeshConfig((submesh.num_devices // 2, 2), submesh.num_devices // 2, 2)
    (group,) = places.groups(places.on_submesh(submesh, range(submesh.num_hosts)), config, axis)
    across = axis == 0 or (apart and submesh.num_hosts > 1)
    assert group.size == 2
    assert group.cluster.slowest_link(group.hosts) == cluster.links[0][1 if across else 0]


def test_zero_3_gathers_for_each_micro_batch_instead_of_once_a_step():
    model = chain(1, parameter_bytes=1e6, exchanged=())
    whole, shared = (prices(model, MeshConfig((4, 1), 4, 1, zero=zero)) for zero in (0, 3))
    gathered = 3 * (1e-5 + 1e6 / 4 / 1e10)
    assert whole["collective_forward_s"][0, 0] == 0
    assert shared["collective_forward_s"][0, 0] == pytest.approx(gathered)
    assert shared["collective_backward_s"][0, 0] == pytest.approx(2 * gathered)
    assert whole["synchronisation_s"][0, 0] - shared["synchronisation_s"][0, 0] == pytest.approx(2 * gathered)


def test_a_larger_micro_batch_grows_what_has_a_batch_dimension():
    model = chain(2)
    grown = with_micro_batch(model, 4.0)
    one, four = ModelMemory.of(model), ModelMemory.of(grown)
    assert four.activations[0, 1] == 4 * one.activations[0, 1]
    assert four.parameters[0, 1] == one.parameters[0, 1]
    assert grown.flop == pytest.approx(4 * model.flop)
    assert grown.layers[0].exchanged_bytes == (4 * model.layers[0].exchanged_bytes[0],)


def test_a_micro_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="positive ratio"):
        with_micro_batch(chain(1), 0.0)


class Counted(LatencyModel, CommunicationModel):
    """The models of GPUs, and how often each was asked."""

    def __init__(self):
        self._models, self.asked = (KernelLatency(), Nccl()), [0, 0]

    def predict(self, operators, device):
        self.asked[0] += 1
        return self._models[0].predict(operators, device)

    def seconds(self, collective, num_bytes, group):
        self.asked[1] += 1
        return self._models[1].seconds(collective, num_bytes, group)


def block(n):
    """Operators of a layer, a little larger in each."""
    rows, wide = 2048 + 128 * n, 5120
    product = Operator(
        "dot", "dot_general", ((rows, wide), (wide, wide)), ((rows, wide),), "float16", 2.0 * rows * wide**2,
        0, 2e8, 4e7,
    )  # fmt: skip
    heads = Operator(
        "dot", "dot_general", ((40, rows, 128), (40, 128, rows)), ((40, rows, rows),), "float16", 256.0 * 40 * rows**2,
        0, 4e7, 80.0 * rows**2,
    )  # fmt: skip
    shape = rows, wide
    add = Operator("elementwise", "add", (shape, shape), (shape,), "float32", 1.0 * rows * wide, 9, 4e7, 2e7)
    fused = dataclasses.replace(add, written_bytes=0.0)
    return Operators.of([product, heads, add, fused])


def blocks(num_layers):
    model = chain(num_layers, parameter_bytes=3e7, activation_bytes=2e7, exchanged=(2e7, 3e7))
    layers = [
        dataclasses.replace(layer, forward=block(n % 3), backward=block(n % 3).split(0.5), update=block(3))
        for n, layer in enumerate(model.layers)
    ]
    return dataclasses.replace(model, layers=tuple(layers))


def test_prices_that_are_asked_for_together_are_those_asked_for_one_by_one():
    cluster = named_cluster("p3.16xlarge", 2)
    space = search_space(cluster, 16, remat=("none", "layer"), zero=(0, 2, 3))
    choices = [(s, c) for s, row in zip(space.submeshes, space.configs, strict=True) for c in row if c is not None]
    together, apart = Counted(), Counted()
    prepared, unprepared = (StageCostModel(blocks(5), cluster, CostModels(m, m)) for m in (together, apart))
    prepared.prepare((prepared.places.on_submesh(submesh), config) for submesh, config in choices)
    assert together.asked[0] == 1
    for submesh, config in choices:
        here, there = (costs.seconds(costs.places.on_submesh(submesh), config) for costs in (prepared, unprepared))
        np.testing.assert_allclose(here, there, rtol=1e-12)
    assert (together.asked[0], apart.asked[0] > 30) == (1, True)
    assert len(choices) > 60


def test_a_model_keeps_what_it_said_of_kernels_for_other_micro_batches():
    latency, device = KernelLatency(), named_cluster("p3.16xlarge").hosts[0].device
    model = blocks(3)
    for ratio in (1.0, 0.5, 0.25):
        of_layers = [layer.forward.split(2) for layer in with_micro_batch(model, ratio).layers]
        predicted = PredictedOperators(CostModels(latency, Nccl()), device)
        totals_s = predicted.totals_s([*of_layers, *of_layers])
        for operators, total_s in zip([*of_layers, *of_layers], totals_s, strict=True):
            warm, cold = predicted.latency(operators), KernelLatency().predict(operators, device)
            np.testing.assert_allclose(warm.mean_s, cold.mean_s, rtol=1e-12)
            np.testing.assert_allclose(warm.spread_s, cold.spread_s, rtol=1e-12)
            assert total_s == pytest.approx(cold.total_s, rel=1e-12)


def test_sums_over_stages_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    of_stages = rng.integers(0, 9, (5, 5, 5))
    values = rng.random((2, 3, 9))
    sums = stage_sum(values, of_stages)
    assert sums.shape == (2, 3, 5, 5)
    for i, j in itertools.product(range(5), repeat=2):
        whole = values[..., of_stages[i, j, i : j + 1]].sum(axis=-1)
        np.testing.assert_allclose(sums[..., i, j], whole)
        np.testing.assert_allclose(stage_sum(values[..., :5])[..., i, j], values[..., i : max(j + 1, i)].sum(axis=-1))


def test_stages_of_alike_layers_hide_what_each_layer_by_layer_does(monkeypatch):
    model, config = chain(6, flop=2e9, parameter_bytes=1.2e7), MeshConfig((4, 1), 4, 1, zero=3)
    model = dataclasses.replace(model, layers=(*model.layers[:2], *chain(1, flop=5e9).layers, *model.layers[3:]))
    seconds = []
    for many in (32, 0):
        monkeypatch.setattr(_hidden, "_MANY", many)
        costs = StageCostModel(model, example_cluster(1), CostModels.named(runtime="megatron"))
        seconds.append(costs.hidden_s(costs.places.on_submesh(Submesh(1, 4)), config))
    np.testing.assert_allclose(*seconds, rtol=1e-12)
    assert seconds[0].any()
