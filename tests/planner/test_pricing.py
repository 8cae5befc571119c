"""Prices of remat, ZeRO levels and other micro-batches, against those that the cost table's tests reckon by hand."""

import numpy as np
import pytest
from models import chain

from alpa_dejavu.communication import AlphaBeta
from alpa_dejavu.latency import AnalyticLatency
from alpa_dejavu.memory import ModelMemory
from alpa_dejavu.pricing import KINDS, Pricing, with_micro_batch
from alpa_dejavu.problem import MeshConfig, Submesh
from alpa_dejavu.testing import example_cluster


def prices(model, config, devices=4):
    cluster = example_cluster(num_hosts=1)
    pricing = Pricing(model, cluster, cluster.hosts[0].device, AnalyticLatency(), AlphaBeta())
    return dict(zip(KINDS, pricing.seconds(Submesh(1, devices), config), strict=True))


def test_remat_computes_forward_again_and_exchanges_again():
    plain = prices(chain(2, flop=1e9), MeshConfig((2, 2), 2, 2))
    again = prices(chain(2, flop=1e9), MeshConfig((2, 2), 2, 2, remat="layer"))
    extra = again["compute_backward_s"] - plain["compute_backward_s"]
    assert extra[0, 1] == pytest.approx(2 * 1e9 / 4 / 1e12)
    assert again["collective_backward_s"][0, 1] == pytest.approx(2 * plain["collective_backward_s"][0, 1])
    assert np.array_equal(again["compute_forward_s"], plain["compute_forward_s"])


def test_zero_3_gathers_for_each_micro_batch_instead_of_once_a_step():
    model = chain(1, parameter_bytes=1e6, exchanged=())
    whole, shared = (prices(model, MeshConfig((4, 1), 4, 1, zero=zero)) for zero in (0, 3))
    gathered = 3 * (1e-5 + 1e6 / 4 / 1e10)
    assert whole["collective_forward_s"][0, 0] == 0
    assert shared["collective_forward_s"][0, 0] == pytest.approx(gathered)
    assert shared["collective_backward_s"][0, 0] == pytest.approx(2 * gathered)
    assert whole["synchronisation_s"][0, 0] - shared["synchronisation_s"][0, 0] == pytest.approx(2 * gathered)


def test_zero_2_sends_what_an_all_reduce_sends():
    model = chain(1, parameter_bytes=1e6)
    whole, shared = (prices(model, MeshConfig((4, 1), 4, 1, zero=zero))["synchronisation_s"] for zero in (0, 2))
    assert shared[0, 0] == pytest.approx(whole[0, 0])


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
