"""Stock XLA's partitioner as a pass: what comes out computes the same on several devices."""

import alpa  # noqa: F401  (applies the patches)
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu.sharding.hlo import HloModuleProto, inline_calls, simplify
from alpa_dejavu.sharding.hlo.graph import entry
from alpa_dejavu.sharding.hlo.schema import OpSharding
from alpa_dejavu.sharding.hlo.shardings import output_sharding, parameter_shardings, set_parameter_shardings
from alpa_stock_jax.executable import MeshExecutable
from alpa_stock_jax.lowering import lower
from alpa_stock_jax.partition import partition, propagate

WHOLE = OpSharding(type=0)
ROWS = OpSharding(type=3, tile_assignment_dimensions=[4, 1], tile_assignment_devices=[0, 1, 2, 3])
COLUMNS = OpSharding(type=3, tile_assignment_dimensions=[1, 4], tile_assignment_devices=[0, 1, 2, 3])


def _module(function, *args, donated=None):
    jaxpr = jax.make_jaxpr(function)(*args)
    lowered = lower("module", jaxpr, donated or [False] * len(args), "cpu")
    return simplify(inline_calls(HloModuleProto.FromString(lowered.as_serialized_hlo_module_proto())))


def _pieces(value, sharding):
    axis = {(4, 1): 0, (1, 4): 1}.get(tuple(sharding.tile_assignment_dimensions))
    return [value] * 4 if axis is None else np.split(value, 4, axis)


def _whole(pieces, sharding):
    axis = {(4, 1): 0, (1, 4): 1}.get(tuple(sharding.tile_assignment_dimensions))
    return np.asarray(pieces[0]) if axis is None else np.concatenate([np.asarray(p) for p in pieces], axis)


def _loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


@pytest.mark.parametrize("w_sharding", [WHOLE, ROWS, COLUMNS])
@pytest.mark.parametrize("x_sharding", [WHOLE, ROWS])
def test_a_gradient_step_on_four_devices(w_sharding, x_sharding):
    w, x = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32)
    module = _module(lambda w, x: (w - jax.grad(_loss)(w, x), _loss(w, x)), w, x, donated=[True, False])
    set_parameter_shardings(module, [w_sharding, x_sharding])
    part = partition(module, 4)
    assert parameter_shardings(part) == [w_sharding, x_sharding]
    client = jax.devices()[0].client
    executable = MeshExecutable(client, part, client.devices()[:4], 4)
    pieces = [_pieces(w, w_sharding), _pieces(x, x_sharding)]
    buffers = [
        [client.buffer_from_pyval(np.array(p), d) for p, d in zip(arg, client.devices(), strict=False)]
        for arg in pieces
    ]
    found = executable.execute_sharded_on_local_devices(buffers)
    shardings = output_sharding(part).tuple_shardings
    expected = (w - jax.grad(_loss)(w, x), _loss(w, x))
    for pieces, sharding, value in zip(found, shardings, expected, strict=True):
        np.testing.assert_allclose(_whole(pieces, sharding), value, rtol=1e-5, atol=1e-6)
    if shardings[0] == w_sharding:
        assert buffers[0][0].is_deleted()


def test_more_partitions_than_devices_can_be_looked_at_but_not_run():
    x = np.ones((64, 8), np.float32)
    module = _module(lambda x: x.sum(0), x)
    many = OpSharding(type=3, tile_assignment_dimensions=[32, 1], tile_assignment_devices=list(range(32)))
    set_parameter_shardings(module, [many])
    part = partition(module, 32)
    executable = MeshExecutable(jax.devices()[0].client, part, None, 32)
    assert "all-reduce(" in executable.hlo_modules()[0].to_string()
    assert executable.total_allocation_size() > 0
    with pytest.raises(RuntimeError, match="compiled without devices"):
        executable.execute_sharded_on_local_devices([[x]])


def test_shardings_spread_to_what_carries_none():
    w, x = np.ones((2, 8, 8), np.float32)
    module = _module(lambda w, x: (jnp.tanh(x @ w) + 1, w), w, x)
    parameters = [node for node in entry(module).instructions if node.opcode == "parameter"]
    (named,) = [node for node in parameters if node.parameter_number == 1]
    named.sharding.CopyFrom(ROWS)
    spread = propagate(module, 4, free_output=False)
    assert parameter_shardings(spread)[1] == ROWS
    assert output_sharding(spread).tuple_shardings[0] == ROWS
    assert [node.name for node in entry(spread).instructions] == [node.name for node in entry(module).instructions]
