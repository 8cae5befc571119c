"""Pipelines on a Ray cluster of two CPU devices: every schedule, and stages found by measuring and by the costs."""

import functools

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alpa.device_mesh import get_global_cluster
from alpa.pipeline_parallel.stage_construction import get_last_dp_result
from alpa.testing import assert_allclose, get_mlp_train_state_and_step

from alpa_dejavu.alpa.local_cluster import local_cluster
from layered_step import assert_same
from step_zoo import STEPS

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def _cluster(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, local_cluster(devices=2):
        patch.chdir(tmp_path_factory.mktemp("profiles"))  # Alpa writes its profiles into the working directory
        yield


@pytest.fixture(autouse=True)
def _use_cluster():
    alpa.init("ray")
    yield
    alpa.shutdown()


def _train(stage_option, schedule="1f1b", remat=False):
    state, batch, step = get_mlp_train_state_and_step(batch_size=16, hidden_size=8, add_manual_pipeline_marker=True)
    method = alpa.PipeshardParallel(
        num_micro_batches=2,
        pipeline_schedule=schedule,
        layer_option=alpa.ManualLayerOption(remat_layer=remat),
        stage_option=stage_option,
    )
    parallel = alpa.parallelize(step, method=method, donate_argnums=())
    expected, actual = state, state
    for _ in range(2):
        expected, expected_loss = step(expected, batch)
        actual, loss = parallel(actual, batch)
        assert_allclose(expected.params, actual.params)
        assert_allclose(expected_loss, loss)


@pytest.mark.parametrize(("schedule", "remat"), [
    ("1f1b", True), pytest.param("gpipe", False, marks=pytest.mark.slow),
    pytest.param("1f1b_overlap_friendly", False, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_schedule_trains_as_one_device(schedule, remat):
    _train(alpa.UniformStageOption(2), schedule, remat)


def _squares(tree):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree_util.tree_leaves(tree))


def _clipped(params, gradients):
    """Several norms over all stages, over some, and one after another; one is only reported."""
    clip = jnp.minimum(1.0, 0.05 / jnp.sqrt(_squares(gradients)))
    first, last = (_squares([gradients[n] for n in layers]) for layers in ((0, 1), (2, 3)))
    clipped = jax.tree_util.tree_map(lambda g: g * clip, gradients)
    made = [p - g / (1 + first + last) for p, g in zip(params, clipped, strict=True)]
    return made, (_squares(gradients), first, last, (first + last) + (first + last), _squares(clipped))


def _extreme(params, gradients):
    """Extremes, a count and a condition over all stages; optax clips, and LAMB has trust ratios by layer."""
    finite = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(g)) for g in gradients])
    low = functools.reduce(jnp.minimum, [g.min() for g in gradients])
    count = sum(jnp.sum(g > 0) for g in gradients)
    optimizer = optax.chain(optax.clip_by_global_norm(0.05), optax.lamb(0.01))
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    made = [jnp.where(finite, p + u, p) for p, u in zip(params, updates, strict=True)]
    return made, (low, count, finite, optax.global_norm(gradients), optax.global_norm(updates))


def _frozen(params, gradients):
    """The first stage isn't trained; the others are, by a norm of theirs."""
    norm = jnp.sqrt(_squares(gradients[2:]))
    return params[:2] + [p - g / norm for p, g in zip(params[2:], gradients[2:], strict=True)], (norm,)


@pytest.mark.parametrize("update", [
    _clipped, pytest.param(_extreme, marks=pytest.mark.slow), pytest.param(_frozen, marks=pytest.mark.slow),
])  # fmt: skip
def test_reductions_over_stages_equal_those_on_one_device(update):
    draw = np.random.default_rng(0)
    params = [np.float32(draw.normal(size=(8, 8))) for _ in range(4)]
    batch = {name: np.float32(draw.normal(size=(16, 8))) for name in "xy"}

    def step_by(value_and_grad):
        def loss(params, batch):
            values = batch["x"]
            for layer in params:
                values = jnp.tanh(values @ layer)
            return jnp.mean((values - batch["y"]) ** 2)

        def step(params, batch):
            value, gradients = value_and_grad(loss)(params, batch)
            return update(params, gradients), value

        return step

    option = alpa.ManualStageOption([[0], [1, 2, 3]], [(1, 1)] * 2, [(1, 1)] * 2, [{}] * 2)
    method = alpa.PipeshardParallel(num_micro_batches=2, layer_option=alpa.AutoLayerOption(4), stage_option=option)
    parallel = alpa.parallelize(step_by(alpa.value_and_grad), method=method, batch_argnums=(1,))
    expected = actual = params
    for _ in range(2):
        (expected, numbers), value = step_by(jax.value_and_grad)(expected, batch)
        (actual, found), loss = parallel(actual, batch)
        assert_allclose((expected, numbers, value), (actual, found, loss))


ON_BOTH_DEVICES = alpa.ManualStageOption([[0, 1]], [(1, 2)], [(2, 1)], [{}])
ONE_EACH = alpa.ManualStageOption([[0], [1]], [(1, 1)] * 2, [(1, 1)] * 2, [{}] * 2)


@pytest.mark.parametrize(("name", "stages", "schedule"), [
    ("losses_of_all_layers", ON_BOTH_DEVICES, "1f1b"),
    ("apply_if_finite", ONE_EACH, "1f1b_overlap_friendly"),
    *(
        pytest.param(name, stages, "1f1b", marks=pytest.mark.slow)
        for name in STEPS for stages in (ON_BOTH_DEVICES, ONE_EACH)
    ),
])  # fmt: skip
def test_steps_of_all_kinds_train_as_one_device(name, stages, schedule):
    step = STEPS[name]
    method = alpa.PipeshardParallel(
        num_micro_batches=1, layer_option=alpa.AutoLayerOption(2), stage_option=stages, pipeline_schedule=schedule
    )
    parallel = alpa.parallelize(step.make(alpa.value_and_grad), method=method, donate_argnums=(), batch_argnums=(1,))
    expected = jax.jit(step.make(jax.value_and_grad))(*step.arguments)
    assert_same(jax.tree_util.tree_map(np.asarray, parallel(*step.arguments)), expected, tolerance=2e-3)


@pytest.mark.slow
def test_stages_are_found_by_measuring_and_again_from_the_cache():
    _train(alpa.AutoStageOption())
    found = get_last_dp_result()
    alpa.shutdown()
    alpa.init("ray")
    _train(alpa.AutoStageOption(cached_profile_result=found[0]))
    assert get_last_dp_result()[1:3] == found[1:3]


@pytest.mark.slow
def test_stages_are_found_by_the_cost_model(tmp_path):
    database = get_global_cluster().profile_all(
        # By its whole path: a worker writes it, whose working directory is the one that Ray was started in.
        "default", 6, 6, max_fail_retry=1, cache_filename=str(tmp_path / "operators.pkl"), dot_range=(0, 64),
        mesh_size_choices=[(1, 1), (1, 2)],
    )  # fmt: skip
    assert (tmp_path / "operators.pkl").is_file()
    result = database.query("default", (1, 2))
    assert all(np.isfinite(seconds) for costs in result.all_reduce_cost_dict.values() for _, seconds in costs)
    database.save("database.pkl")
    _train(alpa.AutoStageOption(use_hlo_cost_model=True, profiling_database_filename="database.pkl"))
