"""What a stage communicates and keeps, as a sum over its layers, is what solving the whole stage gives."""

import functools

import layer_models
import numpy as np
import pytest

from alpa_dejavu.sharding import LogicalMesh, ShardingOptions
from alpa_dejavu.sharding.layers import MEMORY, shard_layer, sharded_layers

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
    for first, last in {(0, 0), (0, 1), (1, 2), (1, end), (0, end), (end, end)}:
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
