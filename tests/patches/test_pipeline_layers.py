"""Steps are sorted into layers and optimizer so that they compute what they did, whatever reads what."""

import itertools
from types import SimpleNamespace

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.resharding_tensor import VirtualDistributedArray
from alpa.testing import assert_allclose
from jax.core import gensym, jaxpr_as_fun
from jax.interpreters import pxla

from alpa_stock_jax._layers import sorted_step
from layered_step import assert_same, run_layers
from step_zoo import STEPS, batch, weights


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """Alpa compiles its search anew each time, which takes longer than such small ones do."""
    monkeypatch.setattr("alpa.util._DISABLE_NUMBA", True)


def _check(name, num_layers, num_micro_batches, remat="none"):
    """Whether a step can be cut into so many layers; if it can, they compute what one device does."""
    step = STEPS[name]
    option = alpa.AutoLayerOption(num_layers, remat_mode=remat)
    try:
        found = run_layers(step.make, step.arguments, option, num_micro_batches)
    except ValueError as error:
        if "can't be cut into" not in str(error):
            raise
        return False
    assert_same(found, jax.jit(step.make(jax.value_and_grad))(*step.arguments))
    return True


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (number % 3 > 0)) for number, name in enumerate(STEPS)
])  # fmt: skip
def test_layers_compute_what_one_device_does(name):
    remat = itertools.cycle(["none", "coarse_grained_remat"])
    assert any(_check(name, layers, 2, next(remat)) for layers in (5, 4, 3, 2))


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "coarse_grained_remat"])
@pytest.mark.parametrize("name", STEPS)
def test_so_do_all_numbers_of_layers(name, remat):
    for layers, micro_batches in itertools.product((1, 2, 3, 4, 5, 6), (1, 2)):
        _check(name, layers, micro_batches, remat)


def test_results_without_a_gradient_are_all_made_by_layers():
    def forward(p, b):
        x = jnp.tanh(b["x"] @ p["a"])
        return x, x, jnp.mean(jnp.tanh(x @ p["b"])), 0.5, p["a"], b["x"], jnp.arange(3)

    arguments = (weights("a", "b"), batch())
    marked = jax.make_jaxpr(alpa.AutoLayerOption(2).transform(forward))(*arguments)
    layers = sorted_step(marked, gensym(), training=False).layers
    assert len(set(layers.jaxpr.outvars)) == 7
    names = [equation.params["name"] for equation in layers.eqns if equation.params.get("mark_type") == "end"]
    assert names == ["layer_0", "layer_1"]
    leaves = dict(zip(marked.jaxpr.invars, jax.tree_util.tree_leaves(arguments), strict=True))
    found = jaxpr_as_fun(layers)(*(leaves[var] for var in layers.jaxpr.invars))
    assert_same(list(found), list(jax.jit(forward)(*arguments)))


def _twice(value_and_grad):
    def step(p, b):
        def loss(p):
            return jnp.mean((b["x"] @ p["a"] - b["y"]) ** 2)

        return value_and_grad(loss)(p), value_and_grad(lambda p: loss(p) ** 2)(p)

    return step


def _never(value_and_grad):
    return lambda p, b: jnp.mean(b["x"] @ p["a"])


@pytest.mark.parametrize(("make", "takes"), [(_twice, "more than one gradient"), (_never, "no gradient")])
def test_a_step_takes_one_gradient(make, takes):
    with pytest.raises(ValueError, match=f"the train step takes {takes}.*, but must take one, .*; take it "):
        run_layers(make, (weights("a"), batch()), alpa.ManualLayerOption())


@pytest.mark.parametrize(
    ("num_layers", "remedy"), [(6, "ask for 4 or 5 layers"), (300, "into 300 layers; ask for 4 or 5 layers")]
)
def test_a_loss_that_cannot_be_cut_says_what_to_do(num_layers, remedy):
    step = STEPS["chain"]
    with pytest.raises(ValueError, match=remedy):
        run_layers(step.make, step.arguments, alpa.AutoLayerOption(num_layers))


def test_layers_may_be_marked_around_nothing():
    def make(value_and_grad):
        def loss(p, b):
            alpa.mark_pipeline_boundary()
            x = jnp.tanh(b["x"] @ p["a"])
            alpa.mark_pipeline_boundary()
            alpa.mark_pipeline_boundary()
            return jnp.mean((x - b["y"]) ** 2)

        return lambda p, b: value_and_grad(loss)(p, b)

    arguments = (weights("a"), batch())

    def plain(p, b):
        return jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(b["x"] @ p["a"]) - b["y"]) ** 2))(p)

    found = run_layers(make, arguments, alpa.ManualLayerOption())
    assert_allclose(plain(*arguments), found)


def test_a_gradient_need_not_be_marked():
    def make(value_and_grad):
        def loss(p, b):
            return jnp.mean((jnp.tanh(b["x"] @ p["a"]) @ p["b"] - b["y"]) ** 2)

        return lambda p, b: jax.grad(alpa.AutoLayerOption(2).transform(loss))(p, b)

    arguments = (weights("a", "b"), batch())
    expected = jax.jit(make(None))(*arguments)
    assert_same(run_layers(make, arguments, SimpleNamespace(transform=lambda f: f)), expected)


def test_a_scalar_is_one_tile_that_all_devices_have():
    array = VirtualDistributedArray(
        device_mesh=SimpleNamespace(num_devices=2, device_strs=["a", "b"]),
        aval=jax.core.ShapedArray((), np.float32),
        sharding_spec=pxla.ShardingSpec([], [pxla.Replicated(2)]),
    )
    tile = array.tiles[()]
    assert (tile.replica_device_strs, tile.indices, tile.tile_size) == (["a", "b"], [], 1)
