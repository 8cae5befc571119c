"""Modules from jax: partitioned by stock XLA they have the planned collectives and compute the same."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.ad_checkpoint import optimization_barrier_p
from jax._src.lib import xla_client as xc

from alpa_dejavu.sharding import LogicalMesh, ShardingOptions, shard_module
from alpa_dejavu.sharding._from_hlo import read_program
from alpa_dejavu.sharding._op_sharding import from_op_sharding
from alpa_dejavu.sharding.hlo.schema import OpSharding
from alpa_stock_jax.executable import MeshExecutable
from alpa_stock_jax.partition import partition
from hlo_tools import flat_module
from operators import pieces

_COLLECTIVES = re.compile(r"= .*? (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)\(")


def _collectives(module):
    text = xc._xla.XlaComputation(module.SerializeToString()).get_hlo_module().to_string()
    return collections.Counter(match.group(1) for match in map(_COLLECTIVES.search, text.splitlines()) if match)


def _assert_computes(sharded, mesh, args, expected):
    """Checks that each device of the partitioned module computes its parts of the expected results."""
    module = partition(sharded.module, mesh.num_devices)
    client = jax.devices()[0].client
    devices = client.devices()[: mesh.num_devices]
    inputs = []
    for arg, sharding in zip(args, sharded.module.spmd_parameters_shardings, strict=True):
        parts = pieces(np.asarray(arg), from_op_sharding(sharding, np.ndim(arg), mesh), mesh)
        inputs.append([client.buffer_from_pyval(part, device) for part, device in zip(parts, devices, strict=True)])
    results = MeshExecutable(client, module, devices, mesh.num_devices).execute_sharded_on_local_devices(inputs)
    output = sharded.module.spmd_output_sharding
    for parts, sharding, whole in zip(results, output.tuple_shardings or [output], expected, strict=True):
        spec = from_op_sharding(sharding, np.ndim(whole), mesh)
        for part, wanted in zip(parts, pieces(np.asarray(whole), spec, mesh), strict=True):
            np.testing.assert_allclose(np.asarray(part), wanted, rtol=1e-4, atol=1e-5)


def _mlp_step(params, x, y):
    def loss(params):
        h = x
        for w, b in params:
            h = jnp.tanh(h @ w + b)
        return jnp.mean((h - y) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def _mlp_args(batch, hidden, layers=3):
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32) / 4

    return [(draw(hidden, hidden), draw(hidden)) for _ in range(layers)], draw(batch, hidden), draw(batch, hidden)


@pytest.mark.parametrize(
    ("shape", "batch", "hidden", "options", "planned"),
    [
        ((4, 1), 256, 16, {}, {"all-reduce": 6}),
        ((1, 4), 8, 128, {}, {"all-reduce": 2}),
        ((2, 2), 256, 16, {"force_batch_dim_to_mesh_dim": 0}, {"all-reduce": 8}),
    ],
)
def test_the_partitioned_module_has_the_planned_collectives_and_results(shape, batch, hidden, options, planned):
    mesh, args = LogicalMesh(shape, (1, 1), (1, 0.1)), _mlp_args(batch, hidden)
    sharded = shard_module(flat_module(_mlp_step, *args), mesh, ShardingOptions(**options))
    assert _collectives(partition(sharded.module, 4)) == planned
    _assert_computes(sharded, mesh, jax.tree.leaves(args), jax.tree.leaves(_mlp_step(*args)))


def _many_operators(x, table, index, image, kernel):
    rows = table[index]
    pooled = jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    convolved = jax.lax.conv_general_dilated(pooled, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    ordered = jnp.sort(jnp.concatenate([x, x[::-1]], axis=1), axis=1)
    counted = jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, 0)
    return (
        jnp.argmax(x, axis=0),
        rows.sum(),
        convolved,
        ordered[:, 2:6],
        jnp.pad(x, ((0, 0), (1, 1))),
        counted,
        jnp.cumsum(x, axis=0),
        jax.lax.dynamic_update_slice(x, x[:2], (1, 0)),
        x.at[index].add(1.0),
    )


@pytest.mark.parametrize("shape", [(4, 1), (2, 2)])
def test_all_kinds_of_operators_compute_the_same(shape):
    rng = np.random.default_rng(1)
    args = (
        rng.standard_normal((8, 8)).astype(np.float32),
        rng.standard_normal((16, 8)).astype(np.float32),
        np.array([3, 1, 2], np.int32),
        rng.standard_normal((4, 8, 8, 4)).astype(np.float32),
        rng.standard_normal((3, 3, 4, 8)).astype(np.float32),
    )
    mesh = LogicalMesh(shape)
    sharded = shard_module(flat_module(_many_operators, *args), mesh, ShardingOptions())
    assert sharded.objective < 1e13
    _assert_computes(sharded, mesh, args, _many_operators(*map(jnp.asarray, args)))


@pytest.mark.parametrize(
    ("heuristic", "tiles"), [("shard-largest", [2, 2]), ("shard-first", [4, 1]), ("shard-last", [1, 4])]
)
def test_heuristics_cut_parameters_by_rule(heuristic, tiles):
    module = flat_module(lambda a: a + 1, np.ones((8, 16), np.float32))
    sharded = shard_module(module, LogicalMesh((2, 2)), ShardingOptions(force_simple_heuristic=heuristic))
    assert list(sharded.module.spmd_parameters_shardings[0].tile_assignment_dimensions) == tiles


def test_an_unknown_heuristic_is_refused():
    module = flat_module(lambda a: a + 1, np.ones((8, 16), np.float32))
    with pytest.raises(ValueError, match="there is no heuristic 'best'"):
        shard_module(module, LogicalMesh((2, 2)), ShardingOptions(force_simple_heuristic="best"))


def _transformer_step(params, x):
    def block(x, p):
        b, s, h = x.shape
        q, k, v = (jnp.reshape(x @ w, (b, s, 4, h // 4)) for w in p[:3])
        weights = jax.nn.softmax(jnp.einsum("bqnd,bknd->bnqk", q, k))
        x = x + jnp.reshape(jnp.einsum("bnqk,bknd->bqnd", weights, v), (b, s, h)) @ p[3]
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x + jax.nn.gelu(x @ p[4]) @ p[5]

    def loss(params):
        y = x
        for p in params:
            y = block(y, p)
        return (y**2).mean()

    return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))


def test_four_transformer_blocks_are_solved():
    h = 64
    weights = [[jnp.ones((h, h))] * 4 + [jnp.ones((h, 4 * h)), jnp.ones((4 * h, h))] for _ in range(4)]
    module = flat_module(_transformer_step, weights, jnp.ones((8, 32, h)))
    sharded = shard_module(module, LogicalMesh((2, 2)), ShardingOptions(force_batch_dim_to_mesh_dim=0))
    assert sharded.objective < 1e13


def test_switched_off_only_undefined_shardings_go():
    module = flat_module(lambda a, b: a + b, np.ones((8, 4), np.float32), np.ones((8, 4), np.float32))
    given = OpSharding(type=3, tile_assignment_dimensions=[4, 1], tile_assignment_devices=range(4))
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    first, second = (node for node in entry.instructions if node.opcode == "parameter")
    first.sharding.CopyFrom(OpSharding(type=4))
    second.sharding.CopyFrom(given)
    sharded = shard_module(module, LogicalMesh((4, 1)), ShardingOptions(enable=False))
    entry = next(c for c in sharded.module.computations if c.id == module.entry_computation_id)
    first, second = (node for node in entry.instructions if node.opcode == "parameter")
    assert not first.HasField("sharding")
    assert second.sharding == given
    assert sharded.solution is None


def test_given_shardings_of_parameters_are_kept():
    module = flat_module(lambda a, b: a @ b, np.ones((8, 8), np.float32), np.ones((8, 8), np.float32))
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    given = OpSharding(type=3, tile_assignment_dimensions=[1, 4], tile_assignment_devices=range(4))
    next(node for node in entry.instructions if node.parameter_number == 0).sharding.CopyFrom(given)
    sharded = shard_module(module, LogicalMesh((4, 1)), ShardingOptions())
    assert sharded.module.spmd_parameters_shardings[0] == given


def test_tuples_and_barriers_are_taken_apart():
    def function(a, b):
        a, b = optimization_barrier_p.bind(a, b)
        return a * 2, b

    module = flat_module(function, np.ones((8, 4), np.float32), np.ones(3, np.float32))
    program = read_program(module, LogicalMesh((2, 1)))
    kinds = collections.Counter(operator.kind for operator in program.operators)
    assert kinds["identity"] == kinds["parameter"] == kinds["output"] == 2
    assert kinds["opaque"] == 0
