"""Training on a local mesh of four devices equals training on one, whichever way it is made parallel."""

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alpa import (
    AutoShardingOption,
    CreateStateParallel,
    DataParallel,
    FollowParallel,
    ManualShardingOption,
    ShardParallel,
    Zero2Parallel,
    Zero3Parallel,
)
from alpa.device_mesh import LocalPhysicalDeviceMesh
from alpa.model.model_util import DynamicScale, TrainState
from flax import linen as nn
from jax.sharding import PartitionSpec

import step_zoo
from every_dtype import JAX_DTYPES
from layered_step import assert_same

STEPS = 3


class Model(nn.Module):
    """A network of three layers that computes in a given type."""

    dtype: str = "float32"

    @nn.compact
    def __call__(self, x):
        for size in (32, 16):
            x = nn.relu(nn.Dense(size, dtype=self.dtype)(x))
        return nn.Dense(8, dtype=self.dtype)(x)


@pytest.fixture(scope="module")
def mesh():
    return LocalPhysicalDeviceMesh(jax.devices()[:4])


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(32, 16)).astype("float32"), "y": rng.normal(size=(32, 8)).astype("float32")}


def _state(dtype="float32", scale=None):
    model = Model(dtype)
    params = model.init(jax.random.PRNGKey(0), jnp.ones((1, 16)))
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-2), dynamic_scale=scale)


def _train_step(state, batch):
    def loss(params):
        return jnp.mean((state.apply_fn(params, batch["x"]).astype("float32") - batch["y"]) ** 2)

    if state.dynamic_scale is None:
        value, grads = alpa.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value
    scale, finite, value, grads = state.dynamic_scale.value_and_grad(loss)(state.params)
    new = state.apply_gradients(grads=grads)

    def keep(a, b):
        return jax.tree_util.tree_map(lambda x, y: jnp.where(finite, x, y), a, b)

    new = new.replace(params=keep(new.params, state.params), opt_state=keep(new.opt_state, state.opt_state))
    return new.replace(dynamic_scale=scale), value


def _difference(actual, expected):
    """The largest of the tensors' differences: norm of the difference over norm of the tensor."""

    def one(a, b):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        return np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-12)

    return max(map(one, jax.tree_util.tree_leaves(actual), jax.tree_util.tree_leaves(expected)))


def _train(step, state, batch):
    losses = []
    for _ in range(STEPS):
        state, loss = step(state, batch)
        losses.append(float(loss))
    return state, losses


def _check(method, batch, tolerance=1e-4, **kind):
    expected, expected_losses = _train(jax.jit(_train_step), _state(**kind), batch)
    actual, losses = _train(alpa.parallelize(_train_step, method=method), _state(**kind), batch)
    assert _difference(actual.params, expected.params) <= tolerance
    np.testing.assert_allclose(losses, expected_losses, rtol=tolerance)
    assert int(actual.step) == STEPS
    return actual


@pytest.mark.parametrize("num_micro_batches", [None, 4])
@pytest.mark.parametrize("method", [ShardParallel, DataParallel, Zero2Parallel, Zero3Parallel])
def test_training_equals_that_on_one_device(mesh, batch, method, num_micro_batches):
    _check(method(devices=mesh, num_micro_batches=num_micro_batches), batch)


@pytest.mark.parametrize("name", ["apply_if_finite", "conditional_layers"])
def test_conditionals(mesh, name):
    step = step_zoo.STEPS[name]
    method = ShardParallel(devices=mesh.get_logical_mesh((2, 2)), num_micro_batches=None)
    parallel = alpa.parallelize(step.make(alpa.value_and_grad), method=method, donate_argnums=(), batch_argnums=(1,))
    assert_same(parallel(*step.arguments), jax.jit(step.make(jax.value_and_grad))(*step.arguments))


@pytest.mark.parametrize("num_micro_batches", [None, 2])
def test_two_dimensional_meshes(mesh, batch, num_micro_batches):
    _check(ShardParallel(devices=mesh.get_logical_mesh((2, 2)), num_micro_batches=num_micro_batches), batch)


def test_zero_keeps_a_part_of_the_optimizer_state_on_each_device(mesh, batch):
    state = _check(Zero2Parallel(devices=mesh), batch)
    moments = state.opt_state[0].mu["params"]["Dense_0"]["kernel"]
    assert moments.device_buffers[0].size == moments.size // 4
    kernel = state.params["params"]["Dense_0"]["kernel"]
    assert kernel.device_buffers[0].size == kernel.size


def test_bfloat16(mesh, batch):
    # one rounding of bfloat16 is 2 ** -9; Adam makes steps of the size of the learning rate from gradients of any size
    _check(ShardParallel(devices=mesh), batch, tolerance=0.05, dtype="bfloat16")


@pytest.mark.parametrize("num_micro_batches", [None, 2])
def test_float16_with_a_dynamic_scale(mesh, batch, num_micro_batches):
    method = ShardParallel(devices=mesh, num_micro_batches=num_micro_batches)
    state = _check(method, batch, tolerance=0.05, dtype="float16", scale=DynamicScale())
    assert float(state.dynamic_scale.scale) == float(DynamicScale().scale)


def test_shardings_by_hand(mesh):
    option = ManualShardingOption(
        ("data", "model"), in_axis_resources=(PartitionSpec("data", None), PartitionSpec(None, "model"))
    )
    method = ShardParallel(
        devices=mesh.get_logical_mesh((2, 2)),
        auto_sharding_option=AutoShardingOption(enable_auto_sharding=False),
        manual_sharding_option=option,
    )
    function = alpa.parallelize(lambda a, b: jnp.tanh(a @ b), method=method, batch_argnums=())
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=shape).astype("float32") for shape in ((8, 16), (16, 4)))
    np.testing.assert_allclose(function(a, b), np.tanh(a @ b), rtol=1e-5)
    specs = function.get_last_executable().input_sharding_specs
    assert [str(spec.sharding) for spec in specs] == ["(Chunked(2), NoSharding())", "(NoSharding(), Chunked(2))"]


def _moved(function, source, target, mesh, array):
    """The function of an array that is cut as `source` says, with a result that is cut as `target` says."""
    option = ManualShardingOption(("data", "model"), in_axis_resources=(source,), out_axis_resources=target)
    method = ShardParallel(
        devices=mesh.get_logical_mesh((4, 1)),
        auto_sharding_option=AutoShardingOption(enable_auto_sharding=False),
        manual_sharding_option=option,
    )
    return np.asarray(alpa.parallelize(function, method=method, batch_argnums=(), donate_argnums=())(array))


@pytest.mark.parametrize("dtype", JAX_DTYPES, ids=str)
def test_collectives_of_every_dtype(mesh, dtype):
    rows, columns, whole = PartitionSpec("data", None), PartitionSpec(None, "data"), PartitionSpec(None, None)
    narrow = "int4" in dtype.name  # XLA's CPU compiler only converts such

    def exchanged(x):
        y = x.astype("int8") if narrow else x
        constant = jnp.asarray(np.arange(16).reshape(4, 4) % 3, dtype).astype(y.dtype)
        return jnp.where(y > y.T, y, constant)

    def total(x):
        return jnp.sum(x.astype("int8") if narrow else x, axis=0, keepdims=True, dtype="int8" if narrow else dtype)

    def greatest(x):
        return jnp.max(x.astype("int8") if narrow else x, axis=0, keepdims=True)

    with jax.experimental.enable_x64(dtype.itemsize >= 8):
        array = (np.arange(16).reshape(4, 4) % 4).astype(dtype)
        for function, target in ((exchanged, columns), (total, whole), (greatest, whole)):
            refused = ("float8",) if function is total else ("float8", "complex")
            if function is not exchanged and dtype.name.startswith(refused):
                with pytest.raises(ValueError, match=rf"all-reduce of {dtype} .*; convert to "):
                    _moved(lambda x, function=function: function(x), rows, target, mesh, array)
                continue
            found = _moved(lambda x, function=function: function(x), rows, target, mesh, array)
            expected = np.asarray(jax.jit(function)(array))
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found.astype("complex64"), expected.astype("complex64"))
        if narrow:
            with pytest.raises(ValueError, match=r"int4 or uint4 array sent .* convert it to int8"):
                _moved(lambda x: x.T, rows, whole, mesh, array)


def test_a_state_is_created_where_training_wants_it(mesh, batch):
    step = alpa.parallelize(_train_step, method=Zero3Parallel(devices=mesh))
    state = alpa.parallelize(_state, method=CreateStateParallel(step, batch))()
    wanted = step.get_last_executable().get_input_placement_specs()[0]
    for array, placement in zip(jax.tree_util.tree_leaves(state), jax.tree_util.tree_leaves(wanted), strict=True):
        assert array.sharding_spec == placement.sharding_specs[0]
    _, losses = _train(step, state, batch)
    assert losses[-1] < losses[0]


def test_evaluation_follows_training(mesh, batch):
    def evaluate(params, batch):
        return jnp.mean((Model().apply(params, batch["x"]) - batch["y"]) ** 2)

    step = alpa.parallelize(_train_step, method=Zero3Parallel(devices=mesh))
    state, _ = step(_state(), batch)
    placements = step.get_last_executable().get_input_placement_specs()[0].params
    follow = FollowParallel(
        step, get_input_placement_specs=lambda: (placements, dict.fromkeys(batch)), num_micro_batches=None
    )
    found = alpa.parallelize(evaluate, method=follow)(state.params, batch)
    np.testing.assert_allclose(found, evaluate(jax.device_get(state.params), batch), rtol=1e-5)


def test_donated_arguments_are_gone_and_others_stay(mesh, batch):
    state = jax.device_put(_state(), jax.devices()[0])
    step = alpa.parallelize(_train_step, method=ShardParallel(devices=mesh))
    new, _ = step(state, batch)
    kernel = state.params["params"]["Dense_0"]["kernel"]
    assert kernel.is_deleted()
    newer, _ = step(new, batch)
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(new.params["params"]["Dense_0"]["kernel"])
    assert np.isfinite(np.asarray(newer.params["params"]["Dense_0"]["kernel"])).all()
    np.testing.assert_array_equal(batch["x"].shape, (32, 16))


def test_a_loss_that_overflows_halves_the_scale_and_changes_nothing_else(mesh, batch):
    scale = DynamicScale(scale=jnp.float32(2.0**40))
    method = ShardParallel(devices=mesh)
    before = _state(dtype="float16", scale=scale)
    after, _ = alpa.parallelize(_train_step, method=method, donate_argnums=())(before, batch)
    assert _difference(after.params, before.params) == 0
    assert float(after.dynamic_scale.scale) < float(scale.scale)
