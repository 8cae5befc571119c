"""Prices of remat, ZeRO levels and other micro-batches, against those that the cost table's tests reckon by hand."""

import dataclasses
import itertools

import numpy as np
import pytest

from alpa_dejavu._util.range_sums import stage_sum
from alpa_dejavu.costs import _hidden
from alpa_dejavu.costs.memory import ModelMemory
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_costs import COST_KINDS, StageCostModel
from alpa_dejavu.costs.stage_devices import StagePlaces
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.problem import MeshConfig, Submesh
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
