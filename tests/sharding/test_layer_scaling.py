"""A solve on a mesh of two data-parallel devices stands for longer axes and other micro-batches, by scaling."""

import functools

import numpy as np
import pytest

import layer_models
from alpa_dejavu.sharding import LogicalMesh, ShardingOptions
from alpa_dejavu.sharding.layers import MEMORY
from alpa_dejavu.sharding.solved import SolvedLayers
from layer_models import MODELS

OPTIONS = ShardingOptions(force_batch_dim_to_mesh_dim=0)
BETA = (1.0, 0.1)
EMBEDDING = ("gpt", "moe")
"""Their first layers may trade the sum of the embedding's gradient, which costs more on a longer axis, for others."""


@functools.lru_cache
def solved(model, batch, shape, zero=0):
    layers = layers_of_model(model, batch)
    return layer_models.sharded(layers, LogicalMesh(shape, (1.0, 1.0), BETA), OPTIONS, zero).whole


@functools.lru_cache
def layers_of_model(model, batch):
    return MODELS[model](batch=batch)


def seconds(sharding):
    """What the collectives cost by the mesh's formulas, and reduce-scatters by that of a ring."""
    mesh = LogicalMesh(sharding.mesh_shape, (1.0, 1.0), BETA)

    def cost(one):
        if one.kind == "reduce_scatter":
            size = mesh.shape[one.axis]
            return mesh.alpha[one.axis] + mesh.beta[one.axis] * (size - 1) / size * one.num_bytes
        return getattr(mesh, f"{one.kind}_cost")(one.num_bytes, one.axis)

    return sum(one.count * cost(one) for one in sharding.collectives)


def assert_same(scaled, direct):
    np.testing.assert_allclose(layer_models.communicated(scaled), layer_models.communicated(direct), rtol=0.01)
    np.testing.assert_allclose(scaled.memory(), direct.memory(), rtol=0.01)
    np.testing.assert_allclose(scaled.memory_parts[:-1], direct.memory_parts[:-1], rtol=0.01)
    assert scaled.mesh_shape == direct.mesh_shape
    for cuts in ("forward_cuts", "backward_cuts", "update_cuts"):
        np.testing.assert_array_equal(getattr(scaled, cuts), getattr(direct, cuts))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("other", "zero", "length", "batch"),
    [(1, 0, 8, 16), (2, 0, 8, 16), (2, 0, 2, 32), (2, 0, 4, 32), (2, 2, 4, 16), (2, 3, 4, 16), (4, 0, 4, 16)],
)
def test_scaling_a_solve_is_solving_there(model, other, zero, length, batch):
    base, direct = solved(model, 16, (2, other), zero), solved(model, batch, (length, other), zero)
    for n, (one, there) in enumerate(zip(base, direct, strict=True)):
        scaled = one.on(length, batch / 16)
        if n == 0 and model in EMBEDDING and other > 1 and length > 2:
            assert seconds(scaled) <= seconds(there) * (1.1 if zero else 1.02)
        else:
            assert_same(scaled, there)


def test_parts_of_memory_add_up_and_say_what_scales():
    first, second = solved("gpt", 16, (2, 2))[1], solved("gpt", 16, (2, 2), 2)[1]
    np.testing.assert_allclose(first.memory(), first.memory_parts.sum(axis=(1, 2)))
    parts = dict(zip(MEMORY, first.memory_parts, strict=True))
    assert parts["parameter"][0, 0] > 0
    assert parts["parameter"][1].sum() == 0
    assert parts["activation"][1, 1] > 0
    assert parts["activation"][0].sum() == 0
    divided = dict(zip(MEMORY, second.memory_parts, strict=True))["optimizer"]
    assert divided[0, 1] == pytest.approx(parts["optimizer"][0, 0] / 2)
    assert divided[0, 0] == 0


@pytest.mark.parametrize("mesh", [(4, 1, False), (8, 1, False), (1, 4, True), (2, 4, True), (2, 8, True)])
@pytest.mark.parametrize("model", MODELS)
def test_what_is_best_on_short_axes_is_best_on_longer_ones(model, mesh):
    layers, solved_layers = layers_of_model(model, 16), short_axes(model)
    options = ShardingOptions(force_batch_dim_to_mesh_dim=0 if mesh[2] else -1)
    direct = layer_models.sharded(layers, LogicalMesh(mesh[:2], (1.0, 1.0), BETA), options).whole
    for longer, there in zip(solved_layers(*mesh)[0].whole, direct, strict=True):
        assert_same(longer, there)


@functools.lru_cache
def short_axes(model):
    return SolvedLayers(layers_of_model(model, 16))


def test_axes_are_solved_anew_where_they_cut_other_sizes():
    solve = short_axes("gpt")
    for length in (2, 4, 8, 16, 32, 64, 128):
        (layers, *_) = solve(length, 1, False)
        for layer in layers.whole:
            assert layer.mesh_shape == (length, 1)
            assert layer.memory().sum() > 0


@pytest.mark.parametrize("model", MODELS)
def test_what_is_sent_along_the_two_axes(model):
    for one in solved(model, 16, (2, 2)):
        for sent in one.collectives:
            if sent.phase == "gradient":
                assert (sent.kind, sent.batched, sent.divided) == ("all_reduce", False, False)
            if sent.axis == 1 and sent.batched:
                assert sent.divided, "activations are cut by axis 0, to which the batch is forced"
    zero3 = [sent for one in solved(model, 16, (2, 2), 3) for sent in one.collectives if sent.axis == 0]
    gathers = [sent for sent in zero3 if sent.kind == "all_gather"]
    assert gathers
    assert not any(sent.batched or sent.divided for sent in gathers)


def test_temporaries_peak_at_another_moment_once_scaled():
    one = solved("gpt", 16, (2, 1))[0]
    assert len(one.temporary_moments) > 1
    for length in (2, 4, 8, 64):
        scaled = one.on(length)
        sums = (one.temporary_moments * np.array([[1.0, 2 / length], [1.0, 2 / length]])).sum(axis=(1, 2))
        assert scaled.memory()[-1] == pytest.approx(sums.max())
    assert one.on(2).memory() == pytest.approx(one.memory())


def test_an_axis_of_one_device_sends_nothing():
    alone = solved("gpt", 16, (2, 2))[1].on(1)
    assert alone.collectives
    assert not [sent for sent in alone.collectives if sent.axis == 0]
    with pytest.raises(ValueError, match="solve for length 2"):
        alone.on(2)
