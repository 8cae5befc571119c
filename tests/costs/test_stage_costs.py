"""Prices of remat, ZeRO levels and other micro-batches, against those that the cost table's tests reckon by hand."""
import dataclasses

import numpy as np
import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs import _batched_predictions
from alpa_dejavu.costs._batched_predictions import PredictedOperators
from alpa_dejavu.costs.communication import CommunicationModel, Nccl
from alpa_dejavu.costs.latency import KernelLatency, LatencyModel
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_costs import COST_KINDS, StageCostModel
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.problem import MeshConfig, Operator, Operators, Submesh
from alpa_dejavu.testing import example_cluster
from models import chain


def prices(model, config, devices=4):
    cluster = example_cluster(num_hosts=1)
    costs = StageCostModel(model, cluster, CostModels.named())
    return dict(zip(COST_KINDS, costs.seconds(costs.places.on_submesh(Submesh(1, devices)), config), strict=True))


def test_zero_2_sends_what_an_all_reduce_sends():
    model = chain(1, parameter_bytes=1e6)
    whole, shared = (prices(model, MeshConfig((4, 1), 4, 1, zero=zero))["synchronisation_s"] for zero in (0, 2))
    assert shared[0, 0] == pytest.approx(whole[0, 0])


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


@pytest.mark.parametrize("runtime", ["alpa", "megatron"])
def test_many_operators_come_in_several_calls(runtime, monkeypatch):
    model, device = Counted(), named_cluster("p3.16xlarge").hosts[0].device
    models, many = CostModels.named(model, model, runtime), [block(n) for n in range(5)]
    monkeypatch.setattr(_batched_predictions, "_AT_A_TIME", 5)
    predicted = PredictedOperators(models, device)
    predicted.ask(many)
    assert model.asked[0] == 3
    for operators in [*many, Operators.of([])]:
        alone = models.runtime.latency(model.predict(operators, device), operators)
        np.testing.assert_allclose(predicted.latency(operators).mean_s, alone.mean_s, rtol=1e-12)
    assert len(predicted.totals_s([])) == 0
