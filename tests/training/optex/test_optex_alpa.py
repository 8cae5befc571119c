"""Gradients of several points with Alpa: on local submeshes, and by pipelines of a cluster."""

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alpa_dejavu import DejavuStageOption
from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.alpa.side_by_side import AlpaGradients, submeshes
from alpa_dejavu.training.optex import optex
from alpa_dejavu.training.optex.evaluators import OneByOne
from alpa_dejavu.training.optex.testing import check_evaluator
from optex_steps import assert_same, trained

WIDTH = 32
DRAW = np.random.default_rng(0)
PARAMS = {f"layer{n}": DRAW.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 6 for n in range(4)}
BATCHES = DRAW.standard_normal((3, 3, 16, WIDTH)).astype(np.float32)
SGD = optex(optax.sgd(0.5), parallel=3, history=6, trust=np.inf)


def loss(params, batch):
    made = batch
    for matrix in params.values():
        made = jnp.tanh(made @ matrix)
    return jnp.mean((made - batch) ** 2)


def test_submeshes_of_this_process_give_the_same():
    methods = [alpa.ShardParallel(devices=jax.local_devices()[first : first + 2]) for first in (0, 2)]
    evaluator = AlpaGradients(loss, methods)
    check_evaluator(evaluator, loss, PARAMS, BATCHES[0])
    assert_same(*(trained(SGD, each, PARAMS, BATCHES)[0] for each in (evaluator, OneByOne(loss))))


def test_methods_and_a_cluster_are_needed():
    with pytest.raises(ValueError, match="methods is empty, but must have a parallel method at least"):
        AlpaGradients(loss, [])
    with pytest.raises(RuntimeError, match=r'Alpa isn\'t connected to Ray; call alpa\.init\("ray"\) first'):
        submeshes(2)


@pytest.mark.ray
@pytest.mark.slow
def test_pipelines_on_one_mesh_and_on_submeshes_give_the_same():
    def pipeline(option, devices=None):
        return alpa.PipeshardParallel(devices=devices, num_micro_batches=2, layer_option=alpa.AutoLayerOption(2),
                                      stage_option=option)  # fmt: skip

    expected = trained(SGD, OneByOne(loss), PARAMS, BATCHES)[0]
    with local_cluster(devices=2, hosts=2):
        alpa.init("ray")
        option = DejavuStageOption()
        assert_same(trained(SGD, AlpaGradients(loss, [pipeline(option)]), PARAMS, BATCHES)[0], expected)
        assert option.last_plan is not None
        alpa.shutdown()
        alpa.init("ray")
        with pytest.raises(ValueError, match="count is 3, but must divide the 2 hosts; take another number of"):
            submeshes(3)
        methods = [pipeline(DejavuStageOption(), mesh) for mesh in submeshes(2)]
        assert_same(trained(SGD, AlpaGradients(loss, methods), PARAMS, BATCHES)[0], expected)
