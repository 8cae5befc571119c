"""`alpa-dejavu profile`: a plan run by Alpa on CPU devices, and what it refuses."""

import dataclasses
import functools
import os

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import ray
from click.testing import CliRunner

from alpa_dejavu._util.threads import cores_of_threads, pin
from alpa_dejavu.alpa import PlanRun, connection, profile
from alpa_dejavu.alpa._gradients import with_marked_gradients
from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.calibration.history import Store
from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.layers import concrete, trace
from alpa_dejavu.layers.models import model_function
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.plans.plan_file import write_plan
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from alpa_dejavu.sharding import model_of_step
from demo.training import largest_relative_difference

BATCH, WIDTH, LAYERS = 32, 16, 4


def step_by(value_and_grad):
    optimizer = optax.sgd(0.1, momentum=0.9)

    def train_step(state, batch):
        weights, momentum = state

        def loss(weights):
            x = batch["x"]
            for weight in weights:
                x = jnp.tanh(x @ weight)
            return jnp.mean((x - batch["y"]) ** 2)

        value, gradients = value_and_grad(loss)(weights)
        updates, momentum = optimizer.update(gradients, momentum, weights)
        return (optax.apply_updates(weights, updates), momentum), value

    return train_step, optimizer


def tiny(batch_size):
    """A model function, as a user writes one."""
    step, optimizer = step_by(jax.value_and_grad)
    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    data = jax.ShapeDtypeStruct((batch_size, WIDTH), jnp.float32)
    return step, ((weights, jax.eval_shape(optimizer.init, weights)), {"x": data, "y": data})


def two_stages(devices=1, cluster=None):
    model = model_of_step(trace(tiny, batch=BATCH // 2), LAYERS)
    config = MeshConfig((1, devices), 1, devices, {"force_batch_dim_to_mesh_dim": 0})
    stages = [GivenStage(first, first + 1, Submesh(1, devices), config) for first in (0, 2)]
    there = cluster or named_cluster("local-cpu", 1, 2 * devices)
    return estimate(model, there, Run(2), stages, name=f"{__name__}:tiny", batch=BATCH).plan


def gradient_markers(step, arguments):
    jaxpr = jax.make_jaxpr(step)(*arguments)
    equations = [equation for equation in jaxpr.eqns if equation.primitive.name == "pipeline_marker"]
    return [equation.params["mark_type"] for equation in equations]


def test_a_gradient_is_alpas_whoever_takes_it():
    arguments = concrete(tiny(BATCH)[1])
    assert gradient_markers(step_by(jax.value_and_grad)[0], arguments) == []
    for take in (jax.value_and_grad, alpa.value_and_grad):
        assert gradient_markers(with_marked_gradients(step_by(take)[0]), arguments) == ["grad"]
    plain, marked = step_by(jax.value_and_grad)[0], with_marked_gradients(step_by(jax.value_and_grad)[0])
    assert largest_relative_difference(jax.jit(marked)(*arguments), jax.jit(plain)(*arguments)) == 0


def test_without_a_cluster_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where Ray notes which clusters there are
    # Clusters of other programs on this machine are none of ours.
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", functools.cache(frozenset))
    path = write_plan(two_stages(), tmp_path / "plan.json")
    result = CliRunner().invoke(main, ["profile", str(path), "--trust-model"])
    assert result.exit_code == 1
    assert "there is no Ray cluster to connect to" in result.stderr
    assert "--local N" in result.stderr


@pytest.mark.ray
def test_a_plan_runs_and_is_measured_beside_its_prediction(tmp_path):
    path, html = write_plan(two_stages(), tmp_path / "plan.json"), tmp_path / "report.html"
    history = tmp_path / "history.sqlite"
    words = ["profile", path, "--trust-model", "--local", 2, "--steps", 3, "--html", html, "--history", history]
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert f"appended to {history}, which has 1 run now" in result.stdout.replace("\n", " ")
    (run,) = Store(history).runs()
    assert len(run.steps_s) == 3
    assert all(stage.computing_s > 0 for stage in run.stages)
    assert not ray.is_initialized()
    lines = result.stdout.splitlines()
    assert any(line.startswith("iteration time          measured") and "median of 3 steps" in line for line in lines)
    assert sum("→" in line for line in lines) == 1
    page = html.read_text(encoding="utf-8")
    assert "measured forward" in page
    assert "measured step" in page


@pytest.mark.ray
def test_a_transformer_by_its_sizes_is_cut_at_its_blocks_and_trains_as_on_one_device():
    text = "transformer:hidden=16,blocks=2,heads=2,vocabulary=32,sequence=8,precision=float32"
    step, arguments = model_function(text)(8)
    model = model_of_step(trace(model_function(text), batch=4), "auto")
    configs = [MeshConfig((1, 1), 1, 1, {"force_batch_dim_to_mesh_dim": 0}, remat=way) for way in ("none", "layer")]
    stages = [GivenStage(2 * n, 2 * n + 1, Submesh(1, 1), config) for n, config in enumerate(configs)]
    plan = estimate(model, named_cluster("local-cpu", 1, 2), Run(2), stages, name=text, batch=8).plan
    assert (plan.layer_option, plan.num_layers) == ("manual", 4)
    with local_cluster(devices=2), connection(plan):
        run = PlanRun(plan)
        expected, *rest = concrete(arguments)
        for _ in range(2):
            run.step()
            expected = jax.jit(step)(expected, *rest)
        assert largest_relative_difference(jax.tree_util.tree_map(np.asarray, run.state), expected) < 1e-4


@pytest.mark.ray
@pytest.mark.slow
def test_what_is_run_is_the_training_step_and_other_clusters_are_refused():
    plan = two_stages()
    with local_cluster(devices=2):
        with connection(plan):
            run = PlanRun(plan, tiny)
            run.step()
            run.noting(True)
            notes = run.step()
            step, arguments = tiny(BATCH)
            expected, *rest = concrete(arguments)
            for _ in range(2):
                expected, _ = jax.jit(step)(expected, *rest)
            actual = jax.tree_util.tree_map(np.asarray, run.state)
            assert largest_relative_difference(actual, expected) < 1e-4
            for stage, noted in enumerate(notes.stages):
                ran = [note.task for note in noted.notes if note.what == "run" and note.task is not None]
                assert sorted(ran) == [stage, stage, 3 - stage, 3 - stage, 4 + stage]
                assert noted.notes[-1].end_s <= noted.end_s <= notes.end_s
            assert run.pin([[0], [0]]) == [[[0]], [[0]]]
            assert run.on_workers(cores_of_threads) == [[[(0,)]], [[(0,)]]]
            found = profile(plan, (), 2, tiny)
            assert found.timeline.num_stages == 2
            assert len(found.steps_s) == len(found.noted_steps_s) == 2
            assert all(min(stage.forward_s, stage.backward_s) > 0 for stage in found.stages)
        with pytest.raises(ValueError, match="is for 4 devices, but the cluster has 2"), connection(two_stages(2)):
            pytest.fail("the block must not run")
        gpus = dataclasses.replace(plan, hardware=dataclasses.replace(plan.hardware, machine="p3.16xlarge"))
        with pytest.raises(ValueError, match=r"those of p3\.16xlarge, but the cluster's are CPUs"), connection(gpus):
            pytest.fail("the block must not run")


def test_auxiliary_results_and_inner_gradients_are_left_as_they_are():
    def step(x, _batch):
        def loss(x):
            inner = jax.grad(lambda y: (y**3).sum())(x)
            return inner.sum(), 2 * x

        (value, doubled), gradient = jax.value_and_grad(loss, has_aux=True)(x)
        return value, doubled, gradient

    x = np.array([1.0, 2.0], np.float32)
    marked = with_marked_gradients(step)
    assert gradient_markers(marked, (x, x)) == ["grad"]
    value, doubled, gradient = marked(x, x)
    assert (float(value), doubled.tolist(), gradient.tolist()) == (15.0, [2.0, 4.0], [6.0, 12.0])


def test_abstract_arguments_are_made_ordinary_numbers():
    given = np.array([7.0])
    tree = {
        "f": jax.ShapeDtypeStruct((3, 2), jnp.bfloat16),
        "i": jax.ShapeDtypeStruct((2,), jnp.int32),
        "b": jax.ShapeDtypeStruct((), bool),
        "array": given,
        "static": "text",
    }
    made = concrete(tree)
    assert made["array"] is given
    assert made["static"] == "text"
    assert (made["i"].tolist(), bool(made["b"])) == ([0, 0], True)
    assert made["f"].dtype == jnp.bfloat16
    assert 0 < float(made["f"].min()) <= float(made["f"].max()) < 0.1
    assert (concrete(tree)["f"] == made["f"]).all()


def test_threads_stay_on_their_cores():
    before = os.sched_getaffinity(0)
    try:
        core = min(before)
        assert pin([core]) == [core]
        assert cores_of_threads() == [(core,)]
    finally:
        pin(before)
    assert os.sched_getaffinity(0) == before
