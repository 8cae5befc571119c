"""Clustering gives what Alpa's `AutoLayerOption` gives: its own function is asked."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jax_models
from alpa_dejavu.layers import trace
from alpa_dejavu.layers._cluster import EquationClusters
from alpa_dejavu.layers.models._sizes import GPT, MoE, WideResNet
from alpa_dejavu.layers.models._transformer import transformer_step
from alpa_dejavu.layers.models._wresnet import wresnet_step

alpa_layers = pytest.importorskip("alpa.pipeline_parallel.layer_construction")

alpa_util = pytest.importorskip("alpa.util")


def loss_of(step, arguments):
    """The loss of a train step as a function of all that it takes, and its arguments' shapes."""
    loss = trace(lambda: (step, arguments)).loss
    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in loss.invars]
    return lambda *values: jax.core.eval_jaxpr(loss, (), *values), shapes


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
