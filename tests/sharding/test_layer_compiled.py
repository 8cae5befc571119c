"""Layers sharded from their jaxprs communicate what a stage that is lowered, sharded and partitioned does."""

import collections
import math
import re

import jax
import jax.numpy as jnp
import pytest
from jax._src.lib import xla_client as xc

import layer_models
from alpa_dejavu.sharding import LogicalMesh, ShardingOptions, shard_module
from alpa_stock_jax.partition import partition
from hlo_tools import flat_module

OPTIONS = ShardingOptions(force_batch_dim_to_mesh_dim=0)
BATCH, LENGTH, HIDDEN, VOCABULARY = 8, 64, 256, 1024
X = jax.ShapeDtypeStruct((BATCH, LENGTH, HIDDEN), jnp.float32)
COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|all-to-all|reduce-scatter)\(.*replica_groups=\{(\{.*?\})\}")


def loss_of(p, x):
    return (jax.nn.log_softmax(x @ p["out"]) ** 2).mean()


def blocks_of(block):
    parameters = layer_models.transformer_parameters(HIDDEN)
    last = layer_models._before(block, parameters, loss_of, layer_models.shapes(out=(HIDDEN, VOCABULARY)))
    return [(block, parameters), (block, parameters), last]


def step_of(blocks):
    """One micro-batch of a stage of all blocks, and an update by what is accumulated."""

    def loss(parameters, x):
        for (function, _), p in zip(blocks, parameters, strict=True):
            x = function(p, x)
        return x

    def step(parameters, accumulated, x):
        value, (gradients, dx) = jax.value_and_grad(loss, (0, 1))(parameters, x)
        accumulated = jax.tree.map(jnp.add, accumulated, gradients)
        return value, dx, accumulated, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, accumulated)

    return step


def compiled_bytes(module, mesh):
    """Bytes by kind and axis of a module partitioned by XLA."""
    axes = {tuple(sorted(mesh.groups(axis))): axis for axis in mesh.axes}
    text = xc._xla.XlaComputation(partition(module, mesh.num_devices).SerializeToString()).get_hlo_module().to_string()
    found = collections.Counter()
    for result, kind, groups in COLLECTIVE.findall(text):
        sizes = [math.prod(map(int, filter(None, dims.split(",")))) for dims in re.findall(r"f32\[([\d,]*)\]", result)]
        devices = sorted(tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", groups))
        found[kind.replace("-", "_"), axes[tuple(devices)]] += 4 * sum(sizes)
    return found


def cost(sent, mesh):
    return sum(getattr(mesh, f"{kind}_cost")(num_bytes, axis) for (kind, axis), num_bytes in sent.items())


@pytest.mark.parametrize("shape", [(4, 1), (2, 2), (1, 4)])
def test_a_stage_of_blocks_against_the_compiled_module(shape):
    blocks = blocks_of(layer_models.post_norm(8))
    parameters = [p for _, p in blocks]
    mesh = LogicalMesh(shape, (1.0, 1.0), (1.0, 0.1))
    sharded = shard_module(flat_module(step_of(blocks), parameters, parameters, X), mesh, OPTIONS)
    compiled = compiled_bytes(sharded.module, mesh)
    layers = layer_models.chain_of(blocks, X)
    whole = layer_models.sharded_as_one(layers, mesh, OPTIONS)
    assert whole.cost == pytest.approx(sharded.objective, rel=0.05)
    composed = layer_models.sharded(layers, mesh, OPTIONS).sums(layer_models.communicated)
    ours = collections.Counter()
    for one in whole.collectives:
        ours[one.kind, one.axis] += one.num_bytes * one.count
    assert composed[0, -1, 0].sum() == pytest.approx(sum(ours.values()), rel=0.05)
    assert ours["all_reduce", 0] == pytest.approx(compiled["all_reduce", 0], rel=0.002)
    assert cost(ours, mesh) == pytest.approx(cost(compiled, mesh), rel=0.05)
