"""Kraken's ways are divided among devices, which add up once a layer, while others compute attention."""

import collections
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lib import xla_client as xc
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_dejavu.layers import trace
from alpa_dejavu.layers.models import Kraken, KrakenModule
from alpa_dejavu.layers.models._kraken import kraken_forward, kraken_step
from alpa_dejavu.sharding import LogicalMesh, ShardingOptions, model_of_step, shard_module

BLOCKS, BATCH, LENGTH, VOCABULARY = 4, 4, 64, 512
WAYS = Kraken(64, BLOCKS, 8, 4, vocabulary=VOCABULARY, sequence=LENGTH)
STANDARD = Kraken(128, BLOCKS, 8, 1, 4, vocabulary=VOCABULARY, sequence=LENGTH)
FORCED = ShardingOptions(force_batch_dim_to_mesh_dim=0)
MESHES = [(1, 2), (1, 4), (2, 2), (2, 4)]
KINDS = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"
COLLECTIVE = re.compile(rf"= (\w+)\[([\d,]*)\]\S* ({KINDS})\(")


def partitioned(size, shape):
    """The module of a forward step, sharded by the engine and partitioned by XLA."""
    from alpa_stock_jax.partition import partition
    from hlo_tools import flat_module

    step, arguments = kraken_forward(size, BATCH)
    sharded = shard_module(flat_module(step, *arguments), LogicalMesh(shape, (1.0, 1.0), (1.0, 0.1)), FORCED)
    return partition(sharded.module, math.prod(shape))


def collectives(module):
    """How many there are of each kind and number of elements."""
    text = xc._xla.XlaComputation(module.SerializeToString()).get_hlo_module().to_string()
    return collections.Counter(
        (kind, math.prod(map(int, filter(None, dims.split(","))))) for _, dims, kind in COLLECTIVE.findall(text)
    )


@pytest.mark.alpa
@pytest.mark.parametrize("shape", MESHES)
def test_one_all_reduce_a_layer_in_the_partitioned_module_and_two_in_the_standard_one(shape):
    rows = BATCH // shape[0] * LENGTH
    # Layers after the first each add up their inputs, and the end joins the ways of the last token.
    assert collectives(partitioned(WAYS, shape)) == {
        ("all-reduce", rows * WAYS.hidden): BLOCKS - 1,
        ("all-reduce", rows // LENGTH * WAYS.hidden): 1,
    }
    assert collectives(partitioned(STANDARD, shape)) == {("all-reduce", rows * STANDARD.hidden): 2 * BLOCKS}


def sent(size, shape, phase, make=kraken_step):
    """All-reduces of activations along the second axis as the planner counts them, by layer: bytes and how often."""
    function = make(size, BATCH)
    model = model_of_step(trace(lambda: function), BLOCKS)
    by_layer = []
    for layer in model.sharding.solved(*shape, True)[0].variants[:BLOCKS]:
        assert all(one.kind == "all_reduce" or one.phase == "update" for one in layer.collectives)
        by_layer.append(collections.Counter())
        for one in layer.collectives:
            if (one.phase, one.axis) == (phase, 1):
                by_layer[-1][one.num_bytes] += one.count
    return by_layer


@pytest.mark.parametrize("shape", MESHES)
def test_the_planner_counts_one_all_reduce_a_layer_forward_and_backward(shape):
    activation = BATCH // shape[0] * LENGTH * WAYS.hidden * 2
    forward, backward = (sent(WAYS, shape, phase) for phase in ("forward", "backward"))
    assert [one[activation] for one in forward[1:-1]] == [1] * (BLOCKS - 2)
    assert forward[-1][activation] == 2  # its own, and the one that joins the ways
    for one in (*forward[1:-1], *backward[1:-1]):
        assert one == {activation: 1}


@pytest.mark.parametrize("shape", MESHES)
def test_the_planner_counts_two_in_the_standard_transformer(shape):
    activation = BATCH // shape[0] * LENGTH * STANDARD.hidden * 2
    for phase in ("forward", "backward"):
        for one in sent(STANDARD, shape, phase)[1:-1]:
            assert one == {activation: 2}


def test_devices_with_the_ways_divided_compute_what_one_does():
    """With stock jax: parameters that have ways are cut along them, and XLA finds the rest."""
    size = Kraken(16, 3, 4, 4, vocabulary=32, sequence=8)
    module = KrakenModule(size)
    tokens = jnp.array(np.random.default_rng(0).integers(0, 32, (2, 8)))
    parameters = module.init(jax.random.PRNGKey(0), tokens)["params"]
    mesh = Mesh(np.array(jax.devices()[: size.ways]), ("ways",))

    def placed(path, leaf):
        of_ways = path[0].key.startswith("blocks") or path[-1].key == "kernel"
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec("ways") if of_ways else PartitionSpec()))

    divided = jax.tree_util.tree_map_with_path(placed, parameters)
    compiled = jax.jit(module.apply).lower({"params": divided}, tokens).compile()
    np.testing.assert_allclose(
        compiled({"params": divided}, tokens), module.apply({"params": parameters}, tokens), rtol=1e-4, atol=1e-5
    )
    found = [(kind, dims) for _, dims, kind in COLLECTIVE.findall(compiled.as_text())]
    *sums, (kind, dims) = found
    assert sums == [("all-reduce", "2,8,16")] * (size.num_blocks - 1)
    assert (kind, math.prod(map(int, dims.split(",")))) == ("all-reduce", 2 * 8 * 16)


def unrelated_products(module):
    """For each all-reduce of a module how many products neither are needed for it nor need it, in program order."""
    entry = next(part for part in module.computations if part.id == module.entry_computation_id)
    needs: dict[int, set[int]] = {}
    for node in entry.instructions:
        needs[node.id] = set(node.operand_ids).union(*(needs[operand] for operand in node.operand_ids))
    products = [node.id for node in entry.instructions if node.opcode == "dot"]
    sums = [node.id for node in entry.instructions if node.opcode == "all-reduce"]
    return [sum(one not in needs[total] and total not in needs[one] for one in products) for total in sums]


@pytest.mark.alpa
def test_attention_does_not_wait_for_the_sum_of_its_layer():
    """Its projections to queries, keys and values and back, its scores and their mixing: four products."""
    assert unrelated_products(partitioned(WAYS, (1, 4))) == [*[4] * (BLOCKS - 1), 0]
    assert unrelated_products(partitioned(STANDARD, (1, 4))) == [0] * 2 * BLOCKS


@pytest.mark.parametrize("shape", MESHES)
def test_the_planner_counts_as_many_in_inference(shape):
    activation = BATCH // shape[0] * LENGTH * WAYS.hidden * 2
    first, *others, last = sent(WAYS, shape, "forward", kraken_forward)
    assert first == {activation: 1}  # the tokens' embedding, cut along the vocabulary
    assert others == [{activation: 1}] * (BLOCKS - 2)
    assert last == {activation: 1, activation / LENGTH: 1}
