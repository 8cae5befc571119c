"""The objects that a user writes, and the hooks that they put into Alpa."""

import dataclasses
import functools
import logging
import subprocess
import sys

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa import api, device_mesh, parallel_method
from alpa.pipeline_parallel import compile_executable, layer_construction, stage_construction

import alpa_dejavu
from alpa_dejavu import DejavuLayerOption, DejavuStageOption
from alpa_dejavu.alpa import HookError
from alpa_dejavu.layers.marks import mark_layer_end


@pytest.fixture(autouse=True)
def _without_hooks():
    yield
    alpa_dejavu.uninstall()


def test_it_takes_the_fields_of_alpas_own_option():
    from alpa import AutoStageOption

    alpas = dataclasses.asdict(AutoStageOption())
    ours = DejavuStageOption(**alpas)
    assert {name: getattr(ours, name) for name in alpas} == alpas
    assert ours == DejavuStageOption()


def test_fields_without_effect_are_named(caplog):
    with caplog.at_level(logging.WARNING, "alpa_dejavu"):
        DejavuStageOption(use_hlo_cost_model=True, profiling_database_filename="x.pkl")
    assert "use_hlo_cost_model, profiling_database_filename: no effect" in caplog.text


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"submesh_physical_shape_space": "odd"}, ValueError, "'odd'.*'power_of_two'"),
        ({"submesh_logical_shape_space": "odd"}, ValueError, "'odd'.*'data_parallel_only'"),
        ({"submesh_physical_shape_space": "manual"}, ValueError, "takes a list"),
        ({"manually_specified_submeshes": [(1, 1)]}, ValueError, "others take none"),
        ({"stage_imbalance_tolerance": -0.1}, ValueError, "-0.1"),
        ({"slicer": "greedy"}, ValueError, "'greedy'"),
        ({"latency": "crystal ball"}, ValueError, "'crystal ball'"),
        ({"communication": "pigeon"}, ValueError, "'pigeon'"),
        ({"cluster": 3}, TypeError, "cluster is 3"),
        ({"history": 3}, TypeError, "history is 3"),
        ({"history": "nowhere/history.sqlite"}, ValueError, "there is no folder"),
        ({"strategy": "gshard"}, ValueError, "no strategy named 'gshard'"),
        ({"strategy": 3}, TypeError, "strategy is 3"),
        ({"strategy": "hetpipe"}, ValueError, "'hetpipe', but Alpa's runtime can't run its virtual workers"),
        ({"strategy": "amp", "slicer": "uniform"}, ValueError, "'amp' and slicer 'uniform', but only one"),
        ({"strategy": "amp", "profile": "decisive"}, ValueError, "'amp' and profile 'decisive'"),
        ({"calibration": "v10"}, ValueError, "there is no calibration 'v10'"),
        ({"calibration": 3}, TypeError, "calibration is 3"),
        ({"calibration": "v100", "communication": "free"}, ValueError, "both a calibration and communication='free'"),
        ({"calibration": "v100", "latency": "analytic"}, ValueError, "both a calibration and latency='analytic'"),
        ({"calibration": "v100", "communication": "alpha-beta"}, ValueError, "communication='alpha-beta'"),
    ],
)
def test_nonsense_is_refused_by_name(fields, error, said):
    with pytest.raises(error, match=said):
        DejavuStageOption(**fields)


def test_importing_the_package_imports_nothing_heavy():
    heavy = ("jax", "ray", "alpa", "numpy", "pydantic")
    code = f"import sys, alpa_dejavu; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert run.stdout.strip() == "[]"


WEIGHTS = [jax.random.normal(jax.random.key(n), (8, 8)) for n in range(4)]
X = jnp.linspace(0.0, 1.0, 16).reshape(2, 8)


def marked(weights):
    x = X
    for n, weight in enumerate(weights):
        if n:
            alpa.mark_pipeline_boundary()
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


def plain(weights):
    x = X
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


def ended(weights):
    """With the marks of transformers by their sizes."""
    x = X
    for weight in weights:
        x = mark_layer_end(jnp.tanh(x @ weight))
    return jnp.mean(x**2)


def rematted(option, func):
    """For each layer of the transformed function, whether it is computed again."""
    jaxpr = jax.make_jaxpr(option.transform(func))(WEIGHTS)
    layers, inside = [], False
    for equation in jaxpr.jaxpr.eqns:
        if equation.primitive.name == "pipeline_marker":
            inside = equation.params["mark_type"] == "start"
            if inside:
                layers.append(False)
        elif inside:
            layers[-1] |= equation.primitive.name in ("checkpoint", "remat2", "remat")
    return layers


@pytest.mark.parametrize(
    ("layer_num", "func", "chosen"),
    [(None, marked, ()), (None, marked, (0,)), (None, marked, (0, 1, 2, 3)), (4, plain, (1, 2))],
)
def test_the_layers_that_are_named_are_computed_again(layer_num, func, chosen):
    option = DejavuLayerOption(layer_num, chosen)
    assert rematted(option, func) == [n in chosen for n in range(4)]
    expected = jax.grad(plain)(WEIGHTS)
    for one, other in zip(jax.grad(option.transform(func))(WEIGHTS), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("chosen", [(), (1, 4)])
def test_layers_end_where_a_model_marks_them(chosen):
    option = DejavuLayerOption(remat_layers=chosen)
    assert rematted(option, ended) == [n in chosen for n in range(5)], "the mean is a layer of its own"
    for one, other in zip(jax.grad(option.transform(ended))(WEIGHTS), jax.grad(plain)(WEIGHTS), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_alpa_is_left_as_it_was():
    original = layer_construction.remat_sliced_eqns
    with pytest.raises(ValueError, match=r"remat_layers is \[7\], but the step has 4 layers"):
        jax.make_jaxpr(DejavuLayerOption(None, (7,)).transform(marked))(WEIGHTS)
    assert layer_construction.remat_sliced_eqns is original
    assert rematted(alpa.ManualLayerOption(remat_layer=True), marked) == [True] * 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [((0,), "layer_num is 0"), ((4, (4,)), r"\[4\], but the layers are 0\.\.3"), ((None, (-1,)), "from 0 on")],
)
def test_layers_that_there_are_not_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        DejavuLayerOption(*fields)


def test_another_alpa_is_refused(monkeypatch):
    monkeypatch.setattr(layer_construction, "remat_sliced_eqns", lambda jaxpr: jaxpr)
    with pytest.raises(RuntimeError, match="isn't the one of Alpa"):
        jax.make_jaxpr(DejavuLayerOption(None, (0,)).transform(marked))(WEIGHTS)


PLACES = [
    (stage_construction, "cluster_layers_and_slice_mesh"),
    (compile_executable, "cluster_layers_and_slice_mesh"),
    (compile_executable, "compile_pipeshard_executable"),
    (parallel_method, "compile_pipeshard_executable"),
    (stage_construction, "get_sliced_virtual_submeshes"),
    (stage_construction, "get_compute_cost"),
    (stage_construction, "training_dp"),
    (stage_construction, "inference_dp"),
    (device_mesh, "shutdown_global_cluster"),
    (api, "shutdown_global_cluster"),
]
ALL = ("stages", "submeshes", "checks", "get_compute_cost", "training_dp", "inference_dp", "shutdown")


def what_is_there():
    return [getattr(module, name) for module, name in PLACES]


@pytest.fixture
def before():
    alpa_dejavu.uninstall()
    yield what_is_there()
    alpa_dejavu.uninstall()


def test_hooks_are_taken_out_whatever_happens(before):
    def interrupted():
        with alpa_dejavu.installed(*ALL):
            assert not set(what_is_there()) & set(before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert what_is_there() == before


def test_alpa_with_the_hook_searches_with_ours(before):
    cost = [[[[2.0]]]]
    with alpa_dejavu.installed("training_dp"):
        assert stage_construction.training_dp(1, 1, 4, [(1, 1)], 1, cost, [[[[0]]]]) == (8.0, [((0, 1), 0, 0)])


def test_a_function_of_another_shape_is_refused_and_left_alone(before, monkeypatch):
    def other(layers, mesh):
        raise NotImplementedError

    monkeypatch.setattr(compile_executable, "cluster_layers_and_slice_mesh", other)
    with pytest.raises(HookError, match=r"compile_executable.cluster_layers_and_slice_mesh takes \('layers', 'mesh'\)"):
        alpa_dejavu.install()
    assert stage_construction.cluster_layers_and_slice_mesh is before[0]
    monkeypatch.setattr(compile_executable, "cluster_layers_and_slice_mesh", None)
    with pytest.raises(HookError, match="takes None"):
        alpa_dejavu.install("stages")


def test_unknown_hooks_are_named(before):
    with pytest.raises(ValueError, match="'stages', 'submeshes', 'checks'"):
        alpa_dejavu.install("everything")


def test_what_somebody_else_put_over_a_hook_stays(before):
    alpa_dejavu.install("training_dp")

    @functools.wraps(stage_construction.training_dp)
    def theirs(*args):
        raise NotImplementedError

    ours = stage_construction.training_dp
    stage_construction.training_dp = theirs
    alpa_dejavu.install("training_dp")
    alpa_dejavu.uninstall()
    assert stage_construction.training_dp is theirs
    stage_construction.training_dp = ours


def test_unknown_names_are_no_attributes():
    with pytest.raises(AttributeError, match="'oracle'"):
        _ = alpa_dejavu.oracle
    assert set(alpa_dejavu.__all__) <= set(dir(alpa_dejavu))


def test_installing_twice_is_installing_once(before):
    alpa_dejavu.install(*ALL)
    once = what_is_there()
    alpa_dejavu.install(*ALL)
    assert what_is_there() == once
    alpa_dejavu.uninstall()
    assert what_is_there() == before


def test_making_an_option_installs_what_it_needs(before):
    alpa_dejavu.DejavuStageOption()
    there = what_is_there()
    assert not set(there[:5]) & set(before)
    assert there[5:] == before[5:]
