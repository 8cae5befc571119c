"""The passes by the names that Alpa calls them by."""

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.mesh_profiling import MeshProfilingResult, estimate_hlo_module_cost
from alpa.pipeline_parallel.primitive_def import pipeline_p
from alpa.shard_parallel.auto_sharding import (
    AutoShardingOption,
    LogicalDeviceMesh,
    run_auto_sharding_pass,
    run_spmd_partitioner_pass,
)
from alpa.util import jaxpr_to_hlo, undefined_sharding_spec_proto
from jax._src.lib import xla_client as xc
from jax._src.lib import xla_extension as xe


def _mesh(shape=(1, 4)):
    return LogicalDeviceMesh(None, np.arange(np.prod(shape)).reshape(shape))


def _local_mesh():
    return alpa.LocalPhysicalDeviceMesh(jax.local_devices()[:4]).get_logical_mesh((1, 4), [1, 1], [1, 1])


def _hlo(function, *args):
    jaxpr = jax.make_jaxpr(function)(*args)
    return jaxpr_to_hlo("module", jaxpr, [False] * len(args))


def test_auto_sharding_annotates_in_place_and_says_the_cost():
    x, w = np.ones((64, 8), np.float32), np.ones((8, 8), np.float32)
    hlo = _hlo(lambda x, w: jnp.tanh(x @ w), x, w)
    annotated, plan = run_auto_sharding_pass(hlo, _mesh(), "single", 1, AutoShardingOption(force_data_parallel=True))
    assert annotated is hlo
    assert hlo.is_sharding_annotated()
    assert 0 <= plan.auto_sharding_objective < 100
    assert "sharding={devices=[4,1]0,1,2,3}" in hlo.to_string()
    run_spmd_partitioner_pass(hlo, 4)
    assert [s.dimensions() for s in hlo.program_shape().parameter_shapes()] == [(16, 8), (8, 8)]


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("enable", [True, False])
def test_stages_go_to_alpa(devices, enable):
    def staged(x):
        (x,) = pipeline_p.bind(x, name="first", mark_type="start")
        (x,) = pipeline_p.bind(jnp.sin(x), name="first", mark_type="end")
        (x,) = pipeline_p.bind(x, name="second", mark_type="start")
        return pipeline_p.bind(jnp.cos(x), name="second", mark_type="end")

    option = AutoShardingOption(enable_auto_sharding=enable)
    names, stages, _ = run_auto_sharding_pass(
        _hlo(staged, np.ones((8, 8), np.float32)), _mesh((1, devices)), "stages", 1, option
    )
    assert names == ["first", "second"]
    assert [" sine(" in stage.to_string() for stage in stages] == [True, False]
    assert all(stage.is_sharding_annotated() for stage in stages)


def test_a_compiled_module_has_a_cost_and_its_gradients_are_known():
    def train(state, batch):
        loss = lambda w: jnp.mean((batch @ w) ** 2)  # noqa: E731
        return state - alpa.grad(loss)(state)

    method = alpa.ShardParallel(
        devices=_local_mesh(), num_micro_batches=2, auto_sharding_option=AutoShardingOption(force_data_parallel=True)
    )
    step = alpa.parallelize(train, method=method, donate_argnums=())
    w, x = np.ones((4, 4), np.float32), np.ones((64, 4), np.float32)
    executable = step.get_executable(w, x)
    module = executable.accumulate_grad.hlo_modules()[0]
    assert executable.grad_sync_channel_ids.count(".") == 2
    measured = MeshProfilingResult()
    measured.dot_cost_dict = {((), "f32"): [(0, 0.0), (1 << 20, 1.0)]}
    measured.all_reduce_cost_dict = {(((0, 1, 2, 3),), "f32"): [(0, 0.0), (1 << 20, 1.0)]}
    whole = estimate_hlo_module_cost(module, measured)
    amortized = estimate_hlo_module_cost(module, measured, 2, executable.grad_sync_channel_ids)
    assert 0 < amortized < whole
    np.testing.assert_allclose(step(w, x), train(w, x), rtol=1e-5)


def _rows():
    sharding = xc.OpSharding()
    sharding.type = xc.OpSharding.Type.OTHER
    sharding.tile_assignment_dimensions = [4, 1]
    sharding.tile_assignment_devices = [0, 1, 2, 3]
    return sharding


def test_given_shardings_are_kept_and_undefined_ones_are_chosen():
    x = np.ones((8, 8), np.float32)
    hlo = _hlo(lambda x, y: (x + 1, y + x), x, x)
    hlo.set_input_shardings([_rows(), undefined_sharding_spec_proto()])
    annotated, _ = run_auto_sharding_pass(hlo, _mesh(), "single", 1, AutoShardingOption())
    first, second = annotated.get_module().spmd_parameters_shardings()
    assert first.tile_assignment_dimensions() == second.tile_assignment_dimensions() == [4, 1]


def test_without_the_engine_given_shardings_spread():
    x = np.ones((8, 8), np.float32)
    hlo = _hlo(lambda x, y: jnp.tanh(x + y), x, x)
    hlo.set_input_shardings([_rows(), undefined_sharding_spec_proto()])
    hlo.is_manually_annotated = True
    annotated, _ = run_auto_sharding_pass(hlo, _mesh(), "single", 1, AutoShardingOption(enable_auto_sharding=False))
    module = annotated.get_module()
    assert [s.is_tiled() for s in module.spmd_parameters_shardings()] == [True, True]
    assert module.spmd_output_sharding().tuple_elements()[0].is_tiled()


def test_results_can_be_given_shardings():
    hlo = _hlo(lambda x: (x + 1,), np.ones((8, 8), np.float32))
    hlo.set_output_shardings([_rows()])
    (sharding,) = hlo.get_module().spmd_output_sharding().tuple_elements()
    assert sharding.tile_assignment_dimensions() == [4, 1]


def test_operations_are_counted():
    hlo = _hlo(lambda x: x @ x, np.ones((8, 8), np.float32))
    assert xe.hlo_module_count_flop_dot_conv_only(hlo.get_module()) == 2 * 8**3
