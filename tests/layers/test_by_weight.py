"""Which part of a backward pass only gradients of weights need, against XLA's count of passes that don't compute it."""

import jax
import numpy as np
import pytest

import jax_models
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_costs import COST_KINDS, StageCostModel
from alpa_dejavu.layers import trace
from alpa_dejavu.layers.features import layer_features
from alpa_dejavu.sharding.solved import model_of_step
from alpa_dejavu.testing import example_cluster


def by_weight(operators):
    return float((operators.flop * operators.count)[operators.by_weight].sum())


def flop_of_gradients(loss, by, arguments):
    """By XLA, of the gradients by some arguments alone."""
    return jax.jit(jax.grad(loss, argnums=by)).lower(*arguments).cost_analysis()["flops"]


@pytest.mark.parametrize(
    ("loss", "arguments"),
    [
        (jax_models.mlp, jax_models.mlp_arguments()),
        (jax_models.unrolled, jax_models.stacked_arguments()),
        (jax_models.convolutions, jax_models.convolution_arguments(3)),
    ],
)
def test_it_is_what_a_pass_by_inputs_alone_leaves_out(loss, arguments):
    """One layer, whose operands have gradients that others wait for."""
    jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(*arguments).jaxpr
    count = len(jax.tree.leaves(arguments[0]))
    found = by_weight(layer_features(jaxpr, gradients=jaxpr.outvars[:count]).operators)
    both, by_inputs = (flop_of_gradients(loss, by, arguments) for by in ((0, 1), 1))
    assert found == pytest.approx(both - by_inputs, rel=0.02)
    assert by_weight(layer_features(jaxpr).operators) == 0


def test_of_the_first_layer_nobody_waits_for_anything():
    step, arguments = jax_models.trained(64, depth=6)
    model = model_of_step(trace(lambda: (step, arguments)), 3)
    first, middle, _ = (layer.backward for layer in model.layers)
    assert by_weight(first) == pytest.approx(first.total_flop)
    assert (middle.by_weight & middle.is_product).sum() == middle.is_product.sum() / 2
    assert not any(layer.forward.by_weight.any() or layer.update.by_weight.any() for layer in model.layers)


def test_its_seconds_are_a_part_of_the_backward_pass():
    step, arguments = jax_models.trained(64, depth=6)
    model, cluster = model_of_step(trace(lambda: (step, arguments)), 3), example_cluster(1)
    costs = StageCostModel(model, cluster, CostModels.named())
    space = search_space(cluster, 64)
    for submesh, row in zip(space.submeshes, space.configs, strict=True):
        devices = costs.places.on_submesh(submesh)
        for config in filter(None, row):
            backward = costs.seconds(devices, config)[COST_KINDS.index("compute_backward_s")]
            part = costs.by_weight_shares(devices, config) * backward
            upper = np.triu_indices(3)
            assert (part[upper] > 0).all()
            assert (part[upper] < backward[upper]).all()
            if config.remat == "none":
                assert part[0, 0] == pytest.approx(backward[0, 0] - cluster.hosts[0].device.dispatch_s, rel=1e-5)
