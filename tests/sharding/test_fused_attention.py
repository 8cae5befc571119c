"""Fused attention divided among devices: as its product of queries and keys is, with the collectives that stay."""

import functools

import numpy as np
import pytest

from alpa_dejavu.layers import trace
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.layers.models._sizes import GPT
from alpa_dejavu.layers.models._transformer import transformer_step
from alpa_dejavu.problem import MeshConfig
from alpa_dejavu.sharding import model_of_step, solver_of_step
from layer_models import reached

PASSES = ("forward", "backward")
BATCH, TOKENS, HEADS = 4, 96, 4
MODELS = {
    "kept": functools.partial(transformer_step, GPT(64, 2, HEADS, 128, TOKENS)),
    "computed again": Transformer(64, 2, HEADS, 128, TOKENS, kv_heads=2).text,
}


@functools.cache
def traced(name):
    return trace(MODELS[name], batch=BATCH)


@functools.cache
def model(name, attention):
    return model_of_step(traced(name), len(traced(name).marks) or 2, attention=attention)


@functools.cache
def divided(name, attention, shape, zero=0):
    whole = model(name, attention)
    options = {"force_batch_dim_to_mesh_dim": 0}
    return whole.sharding.on(whole.layers, MeshConfig(shape, *shape, options=options, zero=zero))


def attentions(layer, phase):
    return [n for n, record in enumerate(layer.operators(phase).records) if record.kind == "attention"]


def sent(division, variant, phase):
    return sum(float(one.num_bytes @ one.counts) for one in division.exchanges(variant, phase))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("attention", ["plain", "fused"])
@pytest.mark.parametrize("shape", [(2, 2), (1, 4), (1, 8)])
def test_each_record_has_a_row_and_a_node_and_none_waits_for_itself(name, attention, shape):
    whole, division = model(name, attention), divided(name, attention, shape)
    for phase in PASSES:
        operators = division.operators(phase)
        for variant, n in enumerate(division.variants):
            count = len(whole.layers[n].operators(phase))
            assert len(operators[variant]) == len(division.layers.variants[variant].cuts(phase)) == count
            flow = division.flow(variant, phase)
            assert flow.num_operators == count
            if len(flow.edges):
                assert not reached(flow.edges, flow.num_nodes).diagonal().any()


@pytest.mark.parametrize("name", MODELS)
def test_devices_divide_kernels_by_samples_and_heads(name):
    whole, division = model(name, "fused"), divided(name, "fused", (2, 2))
    number = 0
    for variant, n in enumerate(division.variants):
        for phase in PASSES:
            share = division.operators(phase)[variant]
            for place in attentions(whole.layers[n], phase):
                number += 1
                record = whole.layers[n].operators(phase).records[place]
                assert division.layers.variants[variant].cuts(phase)[place].tolist() == [True, True]
                assert share.flop[place] == record.flop / 4
                assert share.read_bytes[place] == record.read_bytes / 4
    assert number == 4


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("zero", [0, 3])
def test_what_is_sent_stays_and_less_is_kept(name, zero):
    plain, fused = (divided(name, attention, (2, 2), zero) for attention in ("plain", "fused"))
    for variant in range(len(plain.variants)):
        for phase in PASSES:
            assert sent(fused, variant, phase) == pytest.approx(sent(plain, variant, phase))
    for phase in (*PASSES, "step"):
        for one, other in zip(plain.shares(phase), fused.shares(phase), strict=True):
            assert one.num_bytes == pytest.approx(other.num_bytes)
    # Parameters, gradients and the optimizer's state are kept as before.
    before, after = plain.sharding.whole[0, -1], fused.sharding.whole[0, -1]
    assert before[:3] == pytest.approx(after[:3])
    bytes_of = [whole[3] * share.memory().activations[0, -1] for whole, share in ((before, plain), (after, fused))]
    if name == "kept":
        assert bytes_of[1] < bytes_of[0]
        assert after[5] <= before[5]
    else:
        rows = 4 * BATCH * HEADS * TOKENS
        assert after[3] == before[3] + 2 * rows
        assert after[5] < before[5]


def test_collectives_of_cut_tokens_stay_outside_of_kernels():
    """Eight devices can't divide four heads, so they divide tokens: what that sends is before or after the kernel."""
    whole, division = model("kept", "fused"), divided("kept", "fused", (1, 8))
    there = 0
    for variant, n in enumerate(division.variants):
        for phase in PASSES:
            flow = division.flow(variant, phase)
            before = reached(flow.edges, flow.num_nodes)
            sending = range(flow.num_operators, flow.num_nodes)
            for place in attentions(whole.layers[n], phase):
                there += sum(bool(before[place, node]) != bool(before[node, place]) for node in sending)
                assert division.layers.variants[variant].cuts(phase)[place, 1]
    assert there


@pytest.mark.parametrize("name", MODELS)
def test_no_tensor_is_as_large_as_scores(name):
    scores = {2.0 * BATCH * HEADS * TOKENS**2, 4.0 * BATCH * HEADS * TOKENS**2}
    for attention in ("plain", "fused"):
        kept = {one.num_bytes for one in model(name, attention).tensors if one.role == "activation"}
        assert scores.isdisjoint(kept) == (attention == "fused" or name == "computed again")


def test_a_solver_alone_solves_the_same():
    mesh = 2, 2, True
    for attention in ("plain", "fused"):
        alone = solver_of_step(traced("kept"), 2, attention=attention)(*mesh)
        for one, other in zip(alone[0].whole, model("kept", attention).sharding.solved(*mesh)[0].whole, strict=True):
            assert one.collectives == other.collectives
            assert np.array_equal(one.memory_parts, other.memory_parts)
            assert np.array_equal(one.forward_cuts, other.forward_cuts)
