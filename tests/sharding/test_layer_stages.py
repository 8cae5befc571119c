"""What a stage communicates and keeps, as a sum over its layers, is what solving the whole stage gives."""

import functools

import numpy as np
import pytest

import layer_models
from alpa_dejavu.layers import cut_into_layers, trace
from alpa_dejavu.sharding import LogicalMesh, ShardingOptions
from alpa_dejavu.sharding.layers import MEMORY, layers_of, shard_layer, sharded_layers, with_batch_dims

OPTIONS = ShardingOptions(force_batch_dim_to_mesh_dim=0)
MODELS = {
    "gpt": layer_models.gpt, "bert": layer_models.bert, "moe": layer_models.moe, "vit": layer_models.vit,
    "wide_resnet": layer_models.wide_resnet, "scanned": layer_models.scanned,
}  # fmt: skip
STAYING = [MEMORY.index(role) for role in ("parameter", "optimizer", "gradient")]
WAITING = [MEMORY.index(role) for role in ("activation", "input")]


@functools.lru_cache
def layers_of_model(model):
    return MODELS[model]()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", [(2, 2), (1, 4), (4, 1), (2, 4)])
def test_composing_a_stage_agrees_with_solving_it(model, shape):
    layers, mesh = layers_of_model(model), LogicalMesh(shape, (1.0, 1.0), (1.0, 0.1))
    table = sharded_layers(layers, [mesh], [OPTIONS])
    num_bytes, counts = table.stages(0)
    memory = table.meshes[0].sums(lambda layer: layer.memory())
    end = len(layers) - 1
    for first, last in {(0, 0), (0, 1), (1, end), (0, end)}:
        whole = shard_layer(layers[first : last + 1], mesh, OPTIONS)
        sent, number = whole.communicated()
        assert num_bytes[first, last].sum() == pytest.approx(sent.sum(), rel=0.05)
        assert counts[first, last].sum() == pytest.approx(number.sum(), rel=0.05)
        for roles in (STAYING, WAITING):
            assert memory[first, last][roles].sum() == pytest.approx(whole.memory()[roles].sum(), rel=0.05)


@pytest.mark.parametrize("model", MODELS)
def test_the_axes_of_one_device_send_nothing(model):
    table = sharded_layers(layers_of_model(model), [LogicalMesh((1, 1)), LogicalMesh((1, 4))], [OPTIONS] * 2)
    assert not table.num_bytes[:, 0].any()
    assert not table.num_bytes[:, 1, ..., 0].any()
    assert table.num_bytes[:, 1].any()
    assert (table.layers[0][0].forward_shares == 1).all()
    np.testing.assert_array_less(table.memory[:, 1].sum(), table.memory[:, 0].sum())


def test_lengths_that_do_not_fit_and_unknown_levels_are_refused():
    layers = layers_of_model("gpt")
    with pytest.raises(ValueError, match="1 meshes, 2 options"):
        sharded_layers(layers, [LogicalMesh((2, 2))], [OPTIONS] * 2)
    with pytest.raises(ValueError, match="ZeRO level is 1"):
        shard_layer(layers[0], LogicalMesh((2, 2)), OPTIONS, zero=1)


@functools.lru_cache
def suite(name, num_layers, batch=8):
    step = cut_into_layers(trace(name, batch=batch), num_layers)
    data = step.forward, step.backward, step.updates, step.accumulators, step.data
    return with_batch_dims(layers_of(*data, gradients=step.gradients))


@pytest.mark.parametrize("shape", [(1, 4), (2, 2)])
def test_experts_cut_apart_within_a_block(shape):
    """Between some layers the tokens lie by experts, in the middle of four dimensions."""
    layers, mesh = suite("moe-380m", 16), LogicalMesh(shape, (1.0, 1.0), (1.0, 0.1))
    ranks = [{var.aval.ndim for var in layer.shared if var in layer.forward.outvars} for layer in layers]
    within = [n for n in range(15) if 4 in ranks[n]]
    assert within
    table = sharded_layers(layers, [mesh], [OPTIONS])
    num_bytes, costs = table.stages(0)[0], table.meshes[0].sums(lambda layer: np.asarray(layer.cost))
    for n in within[:2]:
        whole = shard_layer(layers[n : n + 2], mesh, OPTIONS)
        assert costs[n, n + 1] == pytest.approx(whole.cost, rel=0.1)
        # What costs the same may send other bytes: an all-reduce counts once, and costs as two all-gathers do.
        assert num_bytes[n, n + 1].sum() == pytest.approx(whole.communicated()[0].sum(), rel=0.1)


def test_a_layer_that_begins_with_experts_knows_its_batch():
    layers = suite("moe-380m", 16)
    small = sharded_layers(layers, [LogicalMesh((2, 2))], [OPTIONS]).meshes[0].whole
    large = sharded_layers(suite("moe-380m", 16, 16), [LogicalMesh((2, 2))], [OPTIONS]).meshes[0].whole
    for one, twice in zip(small, large, strict=True):
        assert one.memory_parts[: STAYING[-1] + 1, 1].sum() == 0
        np.testing.assert_allclose(one.on(2, 2.0).memory()[STAYING], twice.memory()[STAYING], rtol=0.01)
        np.testing.assert_allclose(one.on(2, 2.0).memory()[WAITING], twice.memory()[WAITING], rtol=0.01)
