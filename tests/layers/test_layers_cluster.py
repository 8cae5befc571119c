"""Layers are cut as Alpa cuts them, also of a train state of flax."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alpa import util as alpa_util
from alpa.pipeline_parallel import layer_construction as alpa_layers
from flax import linen as nn
from flax.training import dynamic_scale, train_state
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jax_models
from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers import trace
from alpa_dejavu.layers._cluster import EquationClusters
from alpa_dejavu.layers.models._sizes import GPT, MoE, WideResNet
from alpa_dejavu.layers.models._transformer import transformer_step
from alpa_dejavu.layers.models._wresnet import wresnet_step
from alpa_dejavu.sharding import model_of_step


def loss_of(step, arguments):
    """The loss of a train step as a function of all that it takes, and its arguments' shapes."""
    loss = trace(lambda: (step, arguments)).loss
    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in loss.invars]
    return lambda *values: core.eval_jaxpr(loss, (), *values), shapes


MODELS = {
    "mlp": (jax_models.mlp, jax_models.mlp_arguments()),
    "bert": (jax_models.bert, jax_models.bert_arguments(2)),
    "vit": (jax_models.vit, jax_models.vit_arguments(2)),
    "convolutions": (jax_models.convolutions, jax_models.convolution_arguments(8)),
    "jitted blocks": (lambda *args: jax_models.bert(*args, jax.jit(jax_models.block)), jax_models.bert_arguments(4)),
}
SUITES = {
    "gpt": loss_of(*transformer_step(GPT(16, 2, 2, vocabulary=32, sequence=8), 4)),
    "moe": loss_of(*transformer_step(MoE(16, 2, 2, num_heads=2, vocabulary=32, sequence=8, group=16), 4)),
    "wresnet": loss_of(*wresnet_step(WideResNet(4, 2, (1, 1), classes=8, image=32), 4)),
}
CASES = [*itertools.product(MODELS, (1, 2, 3, 5, 8)), *itertools.product(SUITES, (2, 3))]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """Alpa compiles its search anew each time, which takes longer than such small ones do."""
    monkeypatch.setattr(alpa_util, "_DISABLE_NUMBA", True)


def alpa_ends(jaxpr, num_layers, eps=0.5):
    costs = alpa_layers.get_layer_construction_costs(jaxpr)
    try:
        rows, _ = alpa_layers.cluster_jaxpr_by_cost(jaxpr, num_layers, eps, costs, "flops")
    except ValueError:
        return None
    return tuple(np.cumsum([len(row) for row in rows]))


def our_ends(jaxpr, num_layers, eps=0.5):
    try:
        return EquationClusters(jaxpr.jaxpr.eqns, eps).cut(num_layers).ends
    except ValueError:
        return None


@pytest.mark.parametrize(("name", "num_layers"), CASES)
def test_layers_are_alpas(name, num_layers):
    function, arguments = (MODELS | SUITES)[name]
    jaxpr = jax.make_jaxpr(function)(*arguments)
    assert our_ends(jaxpr, num_layers) == alpa_ends(jaxpr, num_layers)


@pytest.mark.parametrize("name", ["bert", "convolutions", "gpt"])
def test_a_traced_step_has_the_layers_of_alpas_option(name):
    """From the loss function to the equations between Alpa's markers, with all of its defaults."""
    function, arguments = (MODELS | SUITES)[name]

    def scalar(first, rest):
        result = function(first, *rest)
        return result[0] if isinstance(result, list) else result

    def step(state, rest):
        return jax.grad(scalar, allow_int=True)(state, rest)

    first, *rest = arguments
    marked = jax.make_jaxpr(alpa_layers.AutoLayerOption(layer_num=3).transform(scalar))(first, rest)
    inside = [[]]
    for equation in marked.eqns:
        if equation.primitive.name != "pipeline_marker":
            inside[-1].append(equation.primitive)
        elif equation.params["mark_type"] == "end":
            inside.append([])
    loss = trace(lambda: (step, (first, rest))).loss
    ends = (0, *EquationClusters(loss.eqns).cut(3).ends)
    ours = [[e.primitive for e in loss.eqns[start:end]] for start, end in itertools.pairwise(ends)]
    assert ours == inside[:-1]


@pytest.mark.parametrize("eps", [0.0, 0.1, 2.0])
def test_the_tolerance_is_alpas(eps):
    jaxpr = jax.make_jaxpr(jax_models.bert)(*jax_models.bert_arguments(2))
    assert our_ends(jaxpr, 3, eps) == alpa_ends(jaxpr, 3, eps)


@pytest.mark.parametrize("name", ["mlp", "bert", "convolutions"])
def test_the_number_of_layers_is_alpas(name):
    function, arguments = MODELS[name]
    jaxpr = jax.make_jaxpr(function)(*arguments)
    assert EquationClusters(jaxpr.jaxpr.eqns).best_number() == alpa_layers.search_layer_num(jaxpr, 0.5)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(widths=st.lists(st.sampled_from([4, 8, 16, 24]), min_size=4, max_size=14), num_layers=st.integers(1, 4))
def test_uneven_networks_are_cut_as_alpa_cuts_them(widths, num_layers):
    weights = [np.zeros((a, b), np.float32) for a, b in itertools.pairwise(widths)]
    jaxpr = jax.make_jaxpr(jax_models.mlp)(weights, np.zeros((4, widths[0]), np.float32))
    assert our_ends(jaxpr, num_layers) == alpa_ends(jaxpr, num_layers)


def test_more_layers_than_equations():
    jaxpr = jax.make_jaxpr(lambda x: x * 2)(1.0)
    with pytest.raises(ValueError, match="1 equations, so it can't be cut into 2 layers"):
        EquationClusters(jaxpr.jaxpr.eqns).cut(2)


WIDTH, BLOCKS, BATCH = 16, 3, 8


class Network(nn.Module):
    """Blocks that are alike, each of which may be rematerialised."""

    remat: bool = False

    @nn.compact
    def __call__(self, x):
        dense = nn.remat(nn.Dense) if self.remat else nn.Dense
        for _ in range(BLOCKS):
            y = nn.gelu(dense(2 * WIDTH)(nn.LayerNorm()(x)))
            x = x + nn.Dropout(0.1, deterministic=False)(dense(WIDTH)(y))
        return x


def plain_gradient(loss, parameters):
    return jax.value_and_grad(loss)(parameters)


def scaled_gradient(loss, parameters):
    _, _, value, gradients = dynamic_scale.DynamicScale().value_and_grad(loss)(parameters)
    return value, gradients


def train_step(network, optimizer, gradient):
    def function(batch_size=BATCH):
        key = jax.eval_shape(lambda: jax.random.PRNGKey(0))

        def create(key, x):
            variables = network.init({"params": key, "dropout": key}, x)
            return train_state.TrainState.create(apply_fn=network.apply, params=variables["params"], tx=optimizer)

        @jax.jit
        def step(state, batch):
            def loss(parameters):
                answer = state.apply_fn({"params": parameters}, batch["x"], rngs={"dropout": batch["key"]})
                return ((answer - batch["y"]) ** 2).mean()

            value, gradients = gradient(loss, state.params)
            return state.apply_gradients(grads=gradients), value

        x = jax.ShapeDtypeStruct((batch_size, WIDTH), jnp.float32)
        return step, (jax.eval_shape(create, key, x), {"x": x, "y": x, "key": key})

    return function


@pytest.mark.parametrize(
    ("network", "optimizer", "gradient"),
    [
        (Network(), optax.adamw(1e-3), plain_gradient),
        (Network(remat=True), optax.adamw(1e-3), plain_gradient),
        (Network(), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), plain_gradient),
        (Network(), optax.adamw(1e-3), scaled_gradient),
    ],
    ids=["plain", "remat", "clipped", "scaled"],
)
def test_the_model_of_a_train_state(network, optimizer, gradient):
    model = model_of_step(trace(train_step(network, optimizer, gradient), batch=2 * BATCH, num_micro_batches=2), 3)
    held = {}
    for tensor in model.tensors:
        held[tensor.role] = held.get(tensor.role, 0) + tensor.num_bytes
    block = 2 * 2 * WIDTH * WIDTH + 3 * WIDTH + 2 * WIDTH
    parameters, counts, key = 4 * BLOCKS * block, 2 * 4, 8
    assert held["parameter"] == held["gradient"] == parameters
    assert held["optimizer"] == 2 * parameters + counts
    assert held["input"] == 2 * BATCH * WIDTH * 4 + key
    product = 2 * BATCH * WIDTH * 2 * WIDTH
    assert [layer.forward.product_flop for layer in model.layers] == [2 * product] * BLOCKS
    assert all(layer.backward.product_flop >= 4 * product for layer in model.layers)
    assert all(layer.update.total_flop > 0 for layer in model.layers)
