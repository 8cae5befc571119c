"""Transformers by their sizes: what a device computes, sends and keeps, by hand and by published formulas."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.costs.memory import ModelMemory, stage_memory
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import (
    CONTEXT,
    DATA,
    EXPERT,
    EXPERT_COPIES,
    EXPERT_REPLICATED,
    EXPERT_SHARDED,
    EXPERT_TENSOR,
    REPLICATED,
    SHARDED,
    TENSOR,
    FusedAttention,
    MeshConfig,
    NoShardingError,
)
from alpa_dejavu.sharding.transformers import (
    EXECUTIONS,
    PLAIN,
    execution,
    transformer_data,
    transformer_model,
    transformer_of,
)

GPT = Transformer(1024, 4, 16, 51200, 2048, gated=False, rotary=False, rms_norm=False)
LLAMA = Transformer(4096, 32, 32, 128256, 8192, kv_heads=8, feed_forward=14336)
MOE = Transformer(512, 4, 8, 1024, 256, feed_forward=256, num_experts=16, experts_per_token=2, shared_feed_forward=512)
LATENT = Transformer(
    512, 3, 8, 1024, 256, head_size=64, feed_forward=128, num_experts=8, experts_per_token=2, dense_blocks=1,
    dense_feed_forward=1024, query_rank=96, latent_rank=64, rotary_size=32, value_size=64,
)  # fmt: skip
DEEPSEEK = Transformer(
    7168, 61, 128, 129280, 4096, head_size=128, feed_forward=2048, num_experts=256, experts_per_token=8,
    shared_feed_forward=2048, dense_blocks=3, dense_feed_forward=18432, query_rank=1536, latent_rank=512,
    rotary_size=64, value_size=128,
)  # fmt: skip
MEGATRON = execution("megatron")
BY_HEADS = dataclasses.replace(MEGATRON, context="all_to_all")


def config(data=1, tensor=1, zero=2, remat="none", **more):
    return MeshConfig((data, tensor), data, tensor, {}, remat, zero, **more)


def division(size, mesh, runs=MEGATRON, samples=None):
    model = transformer_model(size, runs, mesh.replicas if samples is None else samples)
    return model.sharding.on(model.layers, mesh)


def memory(size, mesh, runs=MEGATRON, samples=None):
    model = transformer_model(size, runs, mesh.replicas if samples is None else samples)
    shares = model.sharding.on(model.layers, mesh).memory(mesh.remat)
    return stage_memory(ModelMemory.of(model), shares, mesh.remat == "layer")


def sent(collectives):
    total = {}
    for one in collectives:
        key = one.kind, one.axis
        total[key] = total.get(key, 0) + float(one.num_bytes @ one.counts)
    return total


def test_a_block_computes_six_operations_for_each_parameter_of_a_product_and_token_and_attention():
    model = transformer_model(LLAMA, MEGATRON, 1)
    products = 4096 * (32 + 16) * 128 + 4096 * 4096 + 3 * 4096 * 14336
    tokens, attention = 8192, 4 * 8192**2 * 4096 / 2
    block = model.layers[1]
    assert block.forward.product_flop == pytest.approx(2 * products * tokens + attention)
    assert block.backward.product_flop == pytest.approx(4 * products * tokens + 2.5 * attention)


def test_a_block_keeps_what_korthikanti_et_al_count_without_the_masks_of_dropout():
    tokens, hidden, plain = 2048, 1024, dataclasses.replace(MEGATRON, attention=PLAIN)
    kept = memory(GPT, config(), plain).per_micro_batch[1, 1]
    assert kept == tokens * (32 * hidden + 5 * 16 * 2048)
    without_scores = memory(GPT, config(remat="selective"), plain).per_micro_batch[1, 1]
    assert without_scores == tokens * 32 * hidden
    assert memory(GPT, config(remat="layer"), plain).per_micro_batch[1, 1] == tokens * 2 * hidden


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_sequence_parallelism_divides_all_that_a_block_keeps(tensor):
    """Korthikanti et al., equation 4: sbh (34 / t + 5 as / ht), here without the masks of two dropouts."""
    plain = dataclasses.replace(MEGATRON, attention=PLAIN)
    kept = memory(GPT, config(1, tensor), plain).per_micro_batch[1, 1]
    assert kept == pytest.approx(2048 * 1024 * (32 / tensor + 5 * 16 * 2048 / (1024 * tensor)))
    fused, alone = (memory(GPT, config(1, ways)).per_micro_batch[1, 1] for ways in (tensor, 1))
    assert fused == pytest.approx(alone / tensor)


def test_megatrons_bytes_of_a_parameter():
    parameters = LLAMA.num_parameters
    whole, divided = (memory(LLAMA, config(data, zero=zero)).resident[0, -1] for data, zero in ((8, 0), (8, 2)))
    assert whole == pytest.approx(18 * parameters)
    assert divided == pytest.approx((6 + 12 / 8) * parameters)
    assert memory(LLAMA, config(8, zero=3), execution("torchtitan")).resident[0, -1] == pytest.approx(2 * parameters)


def test_a_tied_head_in_a_stage_of_its_own_has_a_copy_of_the_table():
    tied, untied = dataclasses.replace(LLAMA, tied=True), LLAMA
    table = 18 * LLAMA.vocabulary * LLAMA.hidden
    (tied_whole, tied_last), (untied_whole, untied_last) = (
        [memory(size, config()).resident[at] for at in ((0, -1), (1, -1))] for size in (tied, untied)
    )
    assert untied_whole - tied_whole == pytest.approx(table)
    assert tied_last == pytest.approx(untied_last)


def test_tensor_parallel_devices_gather_and_scatter_the_hidden_state_and_gather_it_again_going_backward():
    hidden = 2 * 8192 * 4096
    of_block = division(LLAMA, config(2, 4))
    assert sent(of_block.exchanges(1, "forward")) == {
        ("all_gather", TENSOR): 2 * hidden, ("reduce_scatter", TENSOR): 2 * hidden,
    }  # fmt: skip
    assert sent(of_block.exchanges(1, "backward")) == {
        ("all_gather", TENSOR): 4 * hidden, ("reduce_scatter", TENSOR): 2 * hidden,
    }  # fmt: skip
    without = division(LLAMA, config(2, 4), execution("deepspeed"))
    assert sent(without.exchanges(1, "forward")) == {("all_reduce", TENSOR): 2 * hidden}
    assert sent(without.exchanges(1, "backward")) == {("all_reduce", TENSOR): 2 * hidden}


def test_a_ring_passes_keys_and_values_on_and_their_gradients_back_beside_equal_work():
    """Four devices with 2048 of 8192 tokens in two chunks each; keys and values of 8 heads of 128 go round three times,
    and going backward their gradients do, too.
    """
    mesh, keys = config(4, context_parallel=4), 2 * 2048 * 2 * 8 * 128
    ring = division(LLAMA, mesh)
    assert sent(ring.exchanges(1, "forward")) == {("all_gather", CONTEXT): 4 * keys}  # of which each receives 3
    back = {("all_gather", CONTEXT): 4 * keys, ("reduce_scatter", CONTEXT): 4 * keys}
    assert sent(ring.exchanges(1, "backward")) == back
    assert {exchange.behind for exchange in ring.exchanges(1, "backward")} == {3 / 4}
    gathered = division(LLAMA, mesh, execution("torchtitan"))
    assert {exchange.behind for exchange in gathered.exchanges(1, "backward")} == {0.0}
    for runs, shapes in ((MEGATRON, (1, 2048, 32, 128)), (BY_HEADS, (1, 8192, 8, 128))):
        records = division(LLAMA, mesh, runs).operators("forward")[1].records
        attention = [record for record in records if record.kind == "attention"]
        assert {record.input_shapes[0] for record in attention} == {shapes}
        assert sum(record.flop * record.count for record in attention) == 4 * 32 * 8192**2 * 128 / 2 / 4
    records = division(LLAMA, mesh).operators("forward")[1].records
    own, others = (record for record in records if record.kind == "attention")
    assert (own.count, own.kernel, own.input_shapes[1]) == (1, "cudnn causal", (1, 2048, 8, 128))
    assert (others.count, others.kernel, others.input_shapes[1]) == (3, "cudnn", (1, 1024, 8, 128))


@pytest.mark.parametrize(("kv_heads", "keys_of_each"), [(8, 8), (2, 4)])
def test_all_to_all_gives_each_device_some_heads_of_all_tokens_and_keys_to_each(kv_heads, keys_of_each):
    size, mesh = dataclasses.replace(LLAMA, kv_heads=kv_heads), config(4, context_parallel=4)
    for phase in ("forward", "backward"):
        total = sent(division(size, mesh, BY_HEADS).exchanges(1, phase))
        assert total == {("all_to_all", CONTEXT): 2 * 2048 * 128 * (2 * 32 + 2 * keys_of_each)}
    with pytest.raises(NoShardingError, match="num_heads is 32, but must be divisible among 64 tensor- and context"):
        division(LLAMA, config(16, 4, context_parallel=16), BY_HEADS)


def test_hybrid_sharding_gathers_in_its_groups_and_sums_between_them():
    mesh = config(16, zero=3, sharded=8)
    of_pass = division(LLAMA, mesh, execution("torchtitan")).combined("backward")
    found = {(one.kind, one.axis): float(one.num_bytes[1, 1]) for one in of_pass}
    block = LLAMA.block_parameters(0)
    assert found == {
        ("all_gather", SHARDED): 2 * block, ("reduce_scatter", SHARDED): 4 * block,
        ("all_reduce", REPLICATED): 4 * block / 8,
    }  # fmt: skip
    assert mesh.groups(SHARDED)[0] == tuple(range(8))
    assert mesh.groups(REPLICATED)[0] == (0, 8)


def test_groups_of_the_distributed_optimizer_sum_between_them_once_a_step():
    """ZeRO-1 in groups of 8 of 16 devices, as Megatron's instances of its distributed optimizer."""
    block, of_step = LLAMA.block_parameters(0), division(LLAMA, config(16, sharded=8)).combined("step")
    assert {(exchange.kind, exchange.axis): float(exchange.num_bytes[1, 1]) for exchange in of_step} == {
        ("reduce_scatter", SHARDED): 4 * block, ("all_reduce", REPLICATED): 4 * block / 8,
        ("all_gather", SHARDED): 2 * block,
    }  # fmt: skip
    assert not division(LLAMA, config(16, sharded=8)).combined("backward")


def test_tensor_parallel_devices_gather_latent_vectors_and_scatter_the_hidden_state():
    """Of DeepSeek's dense block: each makes latent vectors of its own tokens, which all need whole."""
    of_block, hidden, latent = division(DEEPSEEK, config(1, 8)), 2 * 4096 * 7168, 2 * 4096 * (1536 + 512 + 64)
    forward, backward = (sent(of_block.exchanges(1, phase)) for phase in ("forward", "backward"))
    assert forward == {("all_gather", TENSOR): latent + hidden, ("reduce_scatter", TENSOR): 2 * hidden}
    assert backward == {
        ("all_gather", TENSOR): latent + hidden + 2 * hidden, ("reduce_scatter", TENSOR): latent + hidden,
    }  # fmt: skip
    records = of_block.operators("forward")[1].records
    assert [record.input_shapes[0][0] for record in records if record.kind == "dot"] == [512, 4096, 512, *[4096] * 4]


def test_latent_attention_has_the_products_of_deepseek():
    records = division(LATENT, config()).operators("forward")[1].records
    shapes = [one.input_shapes[1] for one in records if one.kind == "dot"][:5]
    assert shapes == [(512, 96), (96, 8 * 96), (512, 96), (64, 8 * 128), (8 * 64, 512)]
    attention = next(one for one in records if one.kind == "attention")
    assert attention.flop == 4 * 8 * 256**2 * (64 + 32 + 64) / 2 / 2


def test_float8_casts_operands_and_keeps_attention_and_the_head_in_half_precision():
    size = dataclasses.replace(LLAMA, precision="float8")
    forward = division(size, config()).operators("forward")
    assert {one.dtype for one in forward[1].records if one.kind == "dot"} == {"float8"}
    assert sum(one.primitive == "cast" for one in forward[1].records) == 4
    assert {one.dtype for one in forward[1].records if one.kind == "attention"} == {"bfloat16"}
    assert {one.dtype for one in forward[-1].records if one.kind == "dot"} == {"bfloat16"}


def test_attention_is_the_frameworks_kernel():
    record = next(one for one in division(LLAMA, config()).operators("backward")[1].records if one.kind == "attention")
    assert FusedAttention.of_text(record.kernel) == FusedAttention("cudnn", True, True)
    plain = division(LLAMA, config(), MEGATRON.with_attention("plain"))
    assert not any(one.kind == "attention" for one in plain.operators("forward")[1].records)


@pytest.mark.parametrize(
    ("size", "mesh", "text"),
    [
        (LLAMA, config(1, 3), "num_heads is 32, but must be divisible among 3 tensor-parallel devices"),
        (LLAMA, config(3, context_parallel=3), "sequence is 8192, but must be divisible among 6 chunks of context-par"),
        (MOE, config(32, expert_parallel=32), "num_experts is 16, but must be divisible among 32 expert-parallel"),
        (LLAMA, config(2, expert_parallel=2), "num_experts is 0, but must be divisible among 2 expert-parallel"),
        (LLAMA, config(1, 2, expert_tensor=1), "num_experts is 0, but must be divisible among 1 expert-parallel"),
    ],
)
def test_divisions_that_a_model_cant_have(size, mesh, text):
    with pytest.raises(NoShardingError, match=text):
        division(size, mesh)


def test_unknown_names():
    with pytest.raises(ValueError, match="runtime is 'megatorn', but must be one of 'megatron'"):
        execution("megatorn")
    with pytest.raises(ValueError, match="attention is 'flash', but must be one of 'fused', 'plain'"):
        MEGATRON.with_attention("flash")


def test_a_model_comes_back_from_its_data():
    model = transformer_model(LATENT, MEGATRON.with_attention("plain"), 8)
    again = transformer_of(transformer_data(model))
    assert again.sharding == model.sharding
    assert again.flop == model.flop
    whole = transformer_model(LATENT, dataclasses.replace(MEGATRON, sequence_parallel=False), 8)
    assert transformer_of(transformer_data(whole)).sharding == whole.sharding
    before = {key: value for key, value in transformer_data(model).items() if key != "sequence_parallel"}
    assert transformer_of(before).sharding == model.sharding


@settings(max_examples=30, deadline=None)
@given(
    data=st.sampled_from([1, 2, 4]), tensor=st.sampled_from([1, 2, 4]), context=st.sampled_from([1, 2]),
    size=st.sampled_from([GPT, LLAMA, LATENT]), name=st.sampled_from(list(EXECUTIONS)),
)  # fmt: skip
def test_devices_together_do_all_of_the_work(data, tensor, context, size, name):
    """Products are divided exactly; only what sequence parallelism doesn't divide is done by each device."""
    mesh = config(data * context, tensor, context_parallel=context)
    model = transformer_model(size, execution(name), data)
    one, whole = model.sharding.on(model.layers, mesh), model.layers[1]
    together = data * context * tensor
    assert one.operators("forward")[1].product_flop * together == pytest.approx(whole.forward.product_flop, rel=0.2)
    assert memory(size, mesh, execution(name), data).peak(1)[0, -1] > 0


def test_without_sequence_parallelism_norms_and_residuals_are_whole():
    runs = dataclasses.replace(MEGATRON, sequence_parallel=False)
    kept = memory(GPT, config(1, 8), runs).per_micro_batch[1, 1]
    statistics = 4 * 2048 * 16 / 8
    assert kept == pytest.approx(2048 * 1024 * (8 + 24 / 8) + statistics)  # Korthikanti's 10 and 24, less the masks


def test_replicas_that_share_nothing_keep_what_a_smaller_micro_batch_does():
    kept = memory(LLAMA, config(16, remat="layer")).per_micro_batch[0, -1]
    assert kept == pytest.approx(memory(LLAMA, config(8, remat="layer")).per_micro_batch[0, -1])


@pytest.mark.parametrize("name", list(EXECUTIONS))
@pytest.mark.parametrize("remat", ["none", "selective", "layer"])
@pytest.mark.parametrize("mesh", [config(), config(4, 2), config(8, zero=3), config(4, 2, 3, sharded=2)])
def test_parts_add_up_to_the_peak(name, remat, mesh):
    mesh = dataclasses.replace(mesh, remat=remat)
    kept = memory(LLAMA, mesh, execution(name))
    parts = division(LLAMA, mesh, execution(name)).parts(remat)
    for kind in ("resident", "per_micro_batch", "temporary"):
        total = sum(one.num_bytes for one in parts if one.kind == kind)
        np.testing.assert_allclose(np.triu(total), np.triu(getattr(kept, kind)), rtol=1e-9)


def test_each_token_goes_to_its_experts_and_back():
    mesh = config(8, expert_parallel=4)
    tokens, of_layer = 256, division(MOE, mesh)
    assert sent(of_layer.exchanges(1, "forward"))["all_to_all", EXPERT] == 2 * (2 * tokens * 2 * 512)
    grouped = [one for one in of_layer.operators("forward")[1].records if one.kind == "grouped"]
    assert [one.input_shapes[1] for one in grouped] == [(4, 512, 512), (4, 256, 512)]
    assert grouped[0].flop == 2 * (2 * tokens) * 512 * 512


def test_gradients_of_experts_go_among_those_that_have_the_same_ones():
    mesh = config(8, expert_parallel=4)
    experts = 4 * 3 * 512 * 256 * 16 / 4
    of_step = {(one.kind, one.axis): float(one.num_bytes[0, -1]) for one in division(MOE, mesh).combined("step")}
    assert of_step["reduce_scatter", EXPERT_REPLICATED] == 4 * experts
    assert of_step["all_gather", EXPERT_REPLICATED] == 2 * experts
    others = MOE.num_parameters - experts * 4
    assert of_step["reduce_scatter", DATA] == pytest.approx(4 * others)


@pytest.mark.parametrize(
    ("sizes", "expert", "busier"),
    [({"imbalance": 1.5}, 4, 1.5), ({"imbalance": 1.5}, 1, 1), ({"imbalance": 3.0}, 2, 2),
     ({"capacity": 1.25}, 4, 1.25), ({"capacity": 1.25, "imbalance": 2.0}, 4, 1.25), ({"capacity": 1.25}, 1, 1.25)],
)  # fmt: skip
def test_the_busiest_device_has_more_tokens_and_a_capacity_is_filled(sizes, expert, busier):
    """Of 256 tokens each goes to 2 of 16 experts; two devices can't have more than twice the mean."""
    mesh, even = config(8, expert_parallel=expert), division(MOE, config(8, expert_parallel=expert))
    unlike = division(dataclasses.replace(MOE, **sizes), mesh)
    if expert > 1:
        assert sent(unlike.exchanges(1, "forward"))["all_to_all", EXPERT] == busier * 2 * (2 * 256 * 2 * 512)
    flop, of_even = (
        sum(record.flop for record in of.operators("backward")[1].records if record.kind == "grouped")
        for of in (unlike, even)
    )
    assert flop == busier * of_even
    kept, alike = (memory(size, mesh).per_micro_batch[1, 1] for size in (dataclasses.replace(MOE, **sizes), MOE))
    assert kept - alike == pytest.approx((busier - 1) * 2 * 512 * (512 + 3 * 256))


@pytest.mark.parametrize(
    ("sizes", "text"),
    [({"imbalance": 0.5}, "imbalance is 0.5, but must be from 1 to the number of experts, 16"),
     ({"capacity": 9.0}, "capacity is 9.0, but must be from 0 to 8, with which each expert takes all tokens")],
)  # fmt: skip
def test_experts_that_cant_have_so_many_tokens(sizes, text):
    with pytest.raises(ValueError, match=text):
        dataclasses.replace(MOE, **sizes)


def test_experts_are_divided_among_tensor_parallel_devices_too_where_fewer_share_each():
    """16 devices, of which 4 share a sample: each has its quarter of the 256 tokens for its own 2 of 16 experts."""
    mesh = config(4, 4, expert_parallel=8, expert_tensor=1)
    of_layer, pairs = division(MOE, mesh), 2 * 256 / 4
    assert mesh.groups(EXPERT) == [tuple(range(8)), tuple(range(8, 16))]
    assert mesh.groups(EXPERT_REPLICATED)[0] == (0, 8)
    hidden = 2 * 256 * 512
    assert sent(of_layer.exchanges(1, "forward")) == {
        ("all_to_all", EXPERT): 2 * (2 * pairs * 512), ("all_gather", TENSOR): 2 * hidden,
        ("reduce_scatter", TENSOR): 2 * hidden,
    }  # fmt: skip
    grouped = [record for record in of_layer.operators("forward")[1].records if record.kind == "grouped"]
    assert [record.input_shapes for record in grouped] == [((pairs, 512), (2, 512, 512)), ((pairs, 256), (2, 256, 512))]
    halved = division(MOE, config(4, 4, expert_parallel=4, expert_tensor=2))
    assert sent(halved.exchanges(1, "forward"))["all_gather", EXPERT_TENSOR] == 2 * (2 * pairs) * 512
    grouped = [record for record in halved.operators("forward")[1].records if record.kind == "grouped"]
    assert [record.input_shapes for record in grouped] == [((256, 512), (4, 512, 256)), ((256, 128), (4, 128, 512))]
    assert grouped[0].flop == 2 * 256 * 512 * 256


def test_hybrid_sharding_divides_experts_within_its_groups():
    mesh = config(32, zero=3, sharded=8, expert_parallel=4)
    assert [mesh.groups(axis)[0] for axis in (EXPERT_SHARDED, EXPERT_COPIES)] == [(0, 4), (0, 8, 16, 24)]
    experts = 3 * 512 * 256 * 16 / 4
    of_pass = division(MOE, mesh, execution("torchtitan")).combined("backward")
    total = {(exchange.kind, exchange.axis): float(exchange.num_bytes[1, 1]) for exchange in of_pass}
    assert total["all_gather", EXPERT_SHARDED] == 2 * experts
    assert total["reduce_scatter", EXPERT_SHARDED] == 4 * experts
    assert total["all_reduce", EXPERT_COPIES] == 4 * experts / 2


def test_deepseeks_block_among_64_devices_by_hand():
    """What DeepSeek-V3's paper says of a block, with 4 of 256 experts on each of 64 devices."""
    hidden, heads, tokens = 7168, 128, 4096
    queries, keys = 1536 * (hidden + 1 + heads * 192), 576 * hidden + 512 * (1 + heads * 256)
    attention = queries + keys + heads * 128 * hidden
    expert = 3 * hidden * 2048
    others = attention + expert + hidden * 256 + 2 * hidden
    assert DEEPSEEK.block_parameters(60) == others + 256 * expert
    kept = memory(DEEPSEEK, config(64, expert_parallel=64, zero=2))
    assert kept.resident[10, 10] == pytest.approx(18 * 4 * expert + (6 + 12 / 64) * others)
    elements = {
        "entering, norms, residual": 4 * hidden, "latent": 2 * (1536 + 512) + 64, "queries and keys": 2 * heads * 192,
        "values and attention": 2 * heads * 128, "statistics": 2 * heads, "router": 2 * 256, "shared": 3 * 2048,
        "experts": 8 * (hidden + 3 * 2048),
    }  # fmt: skip
    assert kept.per_micro_batch[10, 10] == pytest.approx(2 * tokens * sum(elements.values()))


def test_tensor_parallel_devices_have_norms_and_the_choice_of_experts_whole_and_a_head_of_keys_each():
    whole = memory(LLAMA, config(1, 16, zero=0)).resident[1, 1] / 18
    products = 4096 * (2 + 2) * 128 + 4096 * 4096 / 16 + 3 * 4096 * 14336 / 16
    assert whole == products + 2 * 4096
    with pytest.raises(NoShardingError, match="kv_heads is 12, but must be divisible among 8 tensor-parallel"):
        division(dataclasses.replace(LLAMA, num_heads=24, head_size=128, kv_heads=12), config(1, 8))


def test_what_is_computed_again():
    whole, half = (
        division(LLAMA, config(), execution("torchtitan")).recomputed(remat) for remat in ("layer", "selective")
    )
    assert len(whole[0]) == len(whole[-1]) == len(half[0]) == 0
    assert whole[1].total_flop == division(LLAMA, config()).operators("forward")[1].total_flop
    assert 0 < half[1].product_flop < whole[1].product_flop / 2
    assert not any(one.kind == "attention" for one in half[1].records)


GEMMA = Transformer(
    512, 4, 8, 1024, 2048, kv_heads=4, head_size=64, feed_forward=2048, window=256, global_every=2, norms="sandwich",
    attention_cap=50.0, logit_cap=30.0,
)  # fmt: skip


def test_blocks_with_a_window_compute_the_scores_inside_it():
    forward = division(GEMMA, config()).operators("forward")
    local, whole = (next(one for one in forward[layer].records if one.kind == "attention") for layer in (1, 2))
    inside = sum(min(query + 1, 256) - 1 / 2 for query in range(2048))  # a score of a token's own counts half
    assert local.flop == pytest.approx(4 * 8 * 64 * (inside + (2048 - 256) / 2), rel=1e-3)
    assert local.flop == 4 * 8 * 64 * GEMMA.pairs(0)
    assert whole.flop == 4 * 8 * 64 * 2048**2 / 2
    assert [FusedAttention.of_text(one.kernel).window for one in (local, whole)] == [256, 0]
    assert FusedAttention.of_text(local.kernel).capped
    assert GEMMA.alike_layers == [0, 1, 2, 1, 2, 5]
    plain = division(GEMMA, config(), MEGATRON.with_attention("plain")).operators("forward")
    assert plain[1].product_flop == plain[2].product_flop  # masked scores are computed, too


def test_norms_on_both_sides_read_and_keep_two_further_hidden_states():
    hidden = 2 * 2048 * 512
    sandwich, post, pre = (dataclasses.replace(GEMMA, norms=norms) for norms in ("sandwich", "post", "pre"))
    kept = [memory(size, config()).per_micro_batch[1, 1] for size in (sandwich, post, pre)]
    assert kept[0] - kept[2] == pytest.approx(2 * hidden)
    assert kept[1] == kept[2]  # what norms take in, in place of what they give
    norms = [sum(one.primitive == "norm" for one in division(size, config()).operators("forward")[1].records)
             for size in (sandwich, post, pre)]  # fmt: skip
    assert norms == [4, 2, 2]


def test_queries_and_keys_are_kept_ahead_of_their_norms_but_where_compilers_make_them_again():
    normed = dataclasses.replace(GEMMA, qk_norm=True)
    for name, more in (("megatron", 2 * 2048 * (8 + 4) * 64), ("torchtitan", 0)):
        kept = [memory(size, config(), execution(name)).per_micro_batch[1, 1] for size in (normed, GEMMA)]
        assert kept[0] - kept[1] == pytest.approx(more)


def test_a_further_predicted_token_costs_a_block_a_product_of_twice_the_width_and_a_head():
    predicts = dataclasses.replace(LATENT, predicted=1)
    alone, more = (division(size, config()).operators("forward") for size in (LATENT, predicts))
    joined = 2 * 256 * (2 * 512) * 512
    expected = 2 * alone[-1].product_flop + alone[-2].product_flop + joined
    assert more[-1].product_flop == pytest.approx(expected)
    assert [layer.total_flop for layer in more[:-1]] == [layer.total_flop for layer in alone[:-1]]
    again = division(predicts, config()).recomputed("layer")
    assert again[-1].product_flop == again[-2].product_flop == alone[-2].product_flop
    mesh = config(2, 2)
    of_head = [sent(division(size, mesh).exchanges(4, "forward")) for size in (LATENT, predicts)]
    of_block = sent(division(LATENT, mesh).exchanges(3, "forward"))
    hidden = 2 * 256 * 512
    assert of_head[1]["all_reduce", TENSOR] == 2 * of_head[0]["all_reduce", TENSOR]
    assert of_head[1]["all_gather", TENSOR] == pytest.approx(
        2 * of_head[0]["all_gather", TENSOR] + of_block["all_gather", TENSOR] + hidden
    )
    whole, kept = (memory(size, config()).per_micro_batch for size in (LATENT, predicts))
    assert kept[-1, -1] - whole[-1, -1] == pytest.approx(whole[3, 3] - hidden + 6 * hidden)


def test_caps_go_over_logits_once_more_and_over_scores_where_these_are_in_memory():
    plain = MEGATRON.with_attention("plain")
    for backward, reads in (("forward", 1), ("backward", 2)):
        capped, free = (
            division(size, config(), plain).operators(backward)
            for size in (GEMMA, dataclasses.replace(GEMMA, attention_cap=0.0, logit_cap=0.0))
        )
        for layer, elements in ((-1, 2048 * 1024), (1, 8 * 2048**2)):
            more = capped[layer].read_bytes.sum() - free[layer].read_bytes.sum()
            assert more == pytest.approx(2 * elements * reads)
