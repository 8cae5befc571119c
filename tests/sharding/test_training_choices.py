"""Optimizers, adapters, frozen weights and precisions of a transformer by its sizes: bytes, work and exchanges by hand
and by published figures.
"""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.costs.memory import ModelMemory, stage_memory
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.problem import DATA, MeshConfig
from alpa_dejavu.sharding.transformers import execution, training_text, transformer_model

LLAMA = Transformer(4096, 32, 32, 128256, 8192, kv_heads=8, feed_forward=14336)
BIG = Transformer(8192, 80, 64, 128256, 4096, kv_heads=8, feed_forward=28672)
MOE = Transformer(512, 4, 8, 1024, 256, feed_forward=256, num_experts=16, experts_per_token=2)
SHAPES = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336)]
"""The matrices of a block of Llama-3-8B."""
MATRICES = 32 * sum(rows * columns for rows, columns in SHAPES)
TABLES, NORMS = 2 * 128256 * 4096, (2 * 32 + 1) * 4096


def config(data=1, tensor=1, zero=2, **more):
    return MeshConfig((data, tensor), data, tensor, {}, "none", zero, **more)


def division(size, mesh, runtime="megatron"):
    model = transformer_model(size, execution(runtime), mesh.data_parallel)
    return model.sharding.on(model.layers, mesh)


def parts(size, mesh, runtime="megatron"):
    return {part.name: float(part.num_bytes[0, -1]) for part in division(size, mesh, runtime).parts("none")}


def changed(size, **fields):
    return dataclasses.replace(size, **fields)


def flop(size, phase, mesh=None, layer=1, runtime="megatron"):
    return division(size, mesh or config(), runtime).operators(phase)[layer].product_flop


@pytest.mark.parametrize(
    ("optimizer", "of_matrix", "of_table", "of_vector"),
    [
        ("adamw", 8, 8, 8), ("adam", 8, 8, 8), ("sgd", 4, 4, 4), ("lion", 4, 4, 4), ("muon", 4, 8, 8),
        ("adam8bit", 2 + 2 * 4 / 256, 2 + 2 * 4 / 256, 8),
    ],
)  # fmt: skip
def test_the_bytes_that_each_optimizer_and_runtime_keep_of_a_parameter(optimizer, of_matrix, of_table, of_vector):
    size = changed(LLAMA, optimizer=optimizer)
    moments = of_matrix * MATRICES + of_table * TABLES + of_vector * NORMS
    every = MATRICES + TABLES + NORMS
    assert every == LLAMA.num_parameters
    for runtime, zero, rest, master in (("megatron", 0, 6, 4), ("megatron", 2, 6, 4), ("torchtitan", 3, 8, 0)):
        kept, shared = parts(size, config(8, zero=zero), runtime), 8 if zero else 1
        assert kept["optimizer's states"] == pytest.approx((moments + master * every) / shared)
        assert kept["weights"] + kept["gradients"] == pytest.approx(rest * every / (8 if zero == 3 else 1))


def test_adafactor_keeps_a_number_for_each_row_and_column():
    kept = parts(changed(LLAMA, optimizer="adafactor"), config(zero=0))["optimizer's states"]
    lines = 32 * sum(rows + columns for rows, columns in SHAPES) + 2 * (128256 + 4096)
    assert kept == pytest.approx(4 * LLAMA.num_parameters + 4 * lines + 4 * NORMS)


@pytest.mark.parametrize("number", [1, -1])
def test_an_update_reads_and_writes_its_state(number):
    usual, lion = (
        sum(division(size, config()).operators("step")[number].read_bytes)
        for size in (LLAMA, changed(LLAMA, optimizer="lion"))
    )
    parameters = LLAMA.block_parameters(0) if number == 1 else TABLES / 2 + 4096
    assert usual - lion == pytest.approx(4 * parameters)


def test_muon_makes_whole_matrices_orthogonal():
    """By hand: of m <= n an iteration takes 2 m m n, 2 m m m and 2 m m n operations, and there are five."""
    muon = changed(LLAMA, optimizer="muon")
    by_hand = sum(5 * (4 * min(shape) ** 2 * max(shape) + 2 * min(shape) ** 3) for shape in SHAPES)
    assert by_hand == pytest.approx(2.0809e13, rel=1e-4)
    assert flop(muon, "step") == pytest.approx(by_hand)
    assert flop(muon, "step", config(8)) == pytest.approx(by_hand / 8)  # each device has whole matrices of its own
    for runtime, zero in (("torchtitan", 3), ("torchtitan", 2), ("megatron", 0), ("megatron", 3)):
        assert flop(muon, "step", config(8, zero=zero), runtime=runtime) == pytest.approx(by_hand)
    assert flop(muon, "step", layer=0) == flop(muon, "step", layer=-1) == 0
    experts = changed(MOE, optimizer="muon")
    attention = 4 * 5 * 6 * 512**3
    of_experts = 3 * 16 * 5 * (4 * 256**2 * 512 + 2 * 256**3)
    assert flop(experts, "step") == pytest.approx(attention + of_experts)


def test_muon_sends_whole_gradients_to_who_owns_a_matrix_or_gathers_all_updates():
    muon, block = changed(LLAMA, optimizer="muon"), sum(rows * columns for rows, columns in SHAPES)

    def sent(size, mesh, runtime):
        of_step = division(size, mesh, runtime).combined("step")
        return {(one.kind, one.axis): float(one.num_bytes[1, 1]) for one in of_step}

    assert sent(muon, config(8), "megatron") == {
        ("all_reduce", DATA): 4 * block, ("reduce_scatter", DATA): 4 * 2 * 4096,
        ("all_gather", DATA): 2 * LLAMA.block_parameters(0),
    }  # fmt: skip
    assert sent(muon, config(8, zero=3), "torchtitan") == {("all_gather", DATA): 2 * block}
    assert sent(LLAMA, config(8, zero=3), "torchtitan") == {}


def test_a_step_of_muon_under_fsdp_is_as_much_slower_as_was_measured_elsewhere():
    asked = {"batch": 8, "micro_batches": 1, "runtime": "torchtitan", "zero": (3,), "remat": ("none",), "cache": False}
    usual = plan_model(LLAMA.text, "dgx-h100", **asked).plan
    assert usual.stages[0].data_parallel == 8
    muon = PlanEstimator(usual, changed(LLAMA, optimizer="muon").text, cache=False).estimate(usual).plan
    assert 1.5 < muon.step_s / usual.step_s < 2.7


@pytest.mark.parametrize(("targets", "trained"), [("attention", 13_631_488), ("all", 41_943_040)])
def test_adapters_of_rank_16_have_the_parameters_that_are_known_of_llama_3(targets, trained):
    size = changed(LLAMA, lora=16, lora_targets=targets)
    assert f"{trained:,} of 8,030,261,248 parameters: adapters of rank 16 on " in training_text(size)
    kept = parts(size, config(zero=0))
    assert kept["gradients"] == pytest.approx(4 * trained)
    assert kept["optimizer's states"] == pytest.approx(12 * trained)
    assert kept["weights"] == pytest.approx(2 * LLAMA.num_parameters + 2 * trained)


def test_frozen_products_have_no_gradients_of_weights():
    tokens, size = 8192, changed(LLAMA, lora=16)
    products, adapters = 2 * tokens * MATRICES / 32, 2 * tokens * 13_631_488 / 32
    attention = 4 * 8192**2 * 4096 / 2
    assert flop(size, "forward") == pytest.approx(products + adapters + attention)
    assert flop(size, "backward") == pytest.approx(products + 2 * adapters + 2.5 * attention)
    head = 2 * tokens * 128256 * 4096
    assert flop(size, "backward", layer=-1) == pytest.approx(head)
    assert len(division(size, config()).operators("backward")[0]) == 0
    assert flop(size, "step") == flop(size, "step", layer=-1) == 0


@pytest.mark.parametrize(("frozen", "width"), [("", 2), ("8bit", 1), ("4bit", 0.5 + 0.127 / 8)])
def test_frozen_weights_are_kept_gathered_and_read_in_their_width(frozen, width):
    """QLoRA: 4 bits and 0.127 of scales, about 35 GB of Llama-3-70B's blocks."""
    size = changed(BIG, lora=16, frozen=frozen)
    matrices = 80 * (2 * 8192**2 + 2 * 1024 * 8192 + 3 * 8192 * 28672)
    ends, adapters = BIG.num_parameters - matrices, 65_536_000
    weights = parts(size, config(zero=0))["weights"]
    assert weights == pytest.approx(width * matrices + 2 * (ends + adapters))
    if frozen == "4bit":
        assert width * matrices == pytest.approx(35e9, rel=0.02)
    gathered = division(size, config(8, zero=3), "torchtitan").combined("backward")
    sent = {one.kind: float(one.num_bytes[1, 1]) for one in gathered}
    norms = 2 * 8192
    assert sent["all_gather"] == pytest.approx((width * matrices + 2 * adapters) / 80 + 2 * norms)
    assert sent["reduce_scatter"] == pytest.approx(4 * adapters / 80)
    records = division(size, config()).operators("forward")[1].records
    read = sum(record.read_bytes for record in records if record.primitive == "dequantise")
    assert read == pytest.approx(width * matrices / 80 if frozen else 0)


def test_only_the_last_blocks_are_trained():
    size = changed(LLAMA, train_last=2)
    backward = division(size, config()).operators("backward")
    assert [len(layer) > 0 for layer in backward] == [False] * 31 + [True] * 3
    whole = division(LLAMA, config()).operators("backward")
    assert backward[-2].total_flop == whole[-2].total_flop
    kept = parts(size, config(zero=0))
    trained = 2 * LLAMA.block_parameters(0) + TABLES / 2 + 4096
    assert kept["gradients"] == pytest.approx(4 * trained)
    alike = parts(changed(LLAMA, num_blocks=2), config(zero=0))
    assert kept["other activations"] == pytest.approx(alike["other activations"])
    few = changed(size, lora=8)
    assert training_text(few).startswith(f"{13_631_488 // 32:,} of 8,030,261,248 parameters: adapters of rank 8")
    assert not division(size, config(8, zero=3), "torchtitan").combined("backward")[0].num_bytes[1, 1]


def test_stages_of_frozen_layers_send_what_they_compute_and_keep_nothing_of_it():
    """Hidden states go forward between all layers, and their gradients back as far as something is trained."""
    model = transformer_model(changed(LLAMA, train_last=2), execution("megatron"), 1)
    last, hidden = 2 * 34 - 1, 2 * 8192 * 4096
    sent = {
        (tensor.producer, *tensor.users): tensor.num_bytes for tensor in model.tensors if tensor.role == "activation"
    }
    assert sent[4, 5] == sent[29, 30] == sent[30, 31, last - 31] == hidden
    assert sent[last - 33, last - 32] == sent[last - 32, last - 31] == hidden
    assert (last - 31, last - 30) not in sent


@pytest.mark.parametrize("fields", [{"train_last": 3}, {"lora": 16, "frozen": "8bit"}, {"lora": 4, "train_last": 2}])
@pytest.mark.parametrize("remat", ["none", "selective", "layer"])
@pytest.mark.parametrize("mesh", [config(), config(4, 2), config(8, zero=3)])
@pytest.mark.parametrize("tied", [False, True])
def test_parts_add_up_to_the_peak_where_layers_are_frozen(fields, remat, mesh, tied):
    size, mesh = changed(LLAMA, tied=tied, optimizer="muon", **fields), dataclasses.replace(mesh, remat=remat)
    for runtime in ("megatron", "fsdp"):
        model = transformer_model(size, execution(runtime), mesh.data_parallel)
        own = model.sharding.on(model.layers, mesh)
        kept = stage_memory(ModelMemory.of(model), own.memory(remat), remat == "layer")
        for kind in ("resident", "per_micro_batch", "temporary"):
            total = sum(part.num_bytes for part in own.parts(remat) if part.kind == kind)
            np.testing.assert_allclose(np.triu(total), np.triu(getattr(kept, kind)), rtol=1e-9)


def test_adapters_keep_the_operands_that_they_take():
    attention, all_products = (
        parts(changed(LLAMA, lora=16, lora_targets=targets), config())["other activations"]
        for targets in ("attention", "all")
    )
    low = 16 * 3  # two of the products ahead and one behind
    assert all_products - attention == pytest.approx(32 * 2 * 8192 * (4096 + 14336 + low))


@pytest.mark.parametrize(
    ("precision", "operand"), [("float8", 1), ("fp8-blockwise", 1 + 4 / 128), ("mxfp8", 33 / 32), ("nvfp4", 9 / 16)]
)
def test_what_fewer_bits_keep_and_send(precision, operand):
    """Transformer Engine keeps weights in 8 bits twice, as they are and transposed, beside those of 16 bits or, where
    they are gathered in 8 bits, in place of them; FSDP gathers each block in 16 bits, or in 8.
    """
    size = changed(LLAMA, precision=precision)
    others = TABLES + NORMS
    kept = parts(size, config(zero=0))
    assert kept["weights"] == pytest.approx((2 + 2 * operand) * MATRICES + 2 * others)
    assert kept["optimizer's states"] == pytest.approx(12 * LLAMA.num_parameters)
    operands = 32 * 8192 * (3 * 4096 + 14336)  # both norms' results, attention's and the activation's
    usual = parts(LLAMA, config(zero=0))["other activations"] - 2 * 32 * 8192 * (2 * 4096 + 14336)
    assert kept["other activations"] == pytest.approx(usual + operand * operands)
    frozen = parts(changed(size, lora=16), config(zero=0))["weights"]
    assert frozen == pytest.approx(kept["weights"] + 2 * 13_631_488)
    block, products = (sum(a * b for a, b in SHAPES), LLAMA.block_parameters(0))
    gathered = [division(size, config(8, zero=3), "torchtitan").combined("forward")[0].num_bytes[1, 1]]
    if precision != "nvfp4":
        narrow = changed(size, gather="fp8")
        assert parts(narrow, config(zero=0))["weights"] == pytest.approx(2 * operand * MATRICES + 2 * others)
        gathered.append(division(narrow, config(8, zero=3), "torchtitan").combined("forward")[0].num_bytes[1, 1])
    assert gathered == [2 * products, operand * block + 2 * (products - block)][: len(gathered)]


def test_routers_attention_and_the_head_stay_in_half_precision():
    records = division(changed(MOE, precision="nvfp4"), config()).operators("forward")
    dtypes = {record.primitive: record.dtype for record in records[1].records if record.kind != "elementwise"}
    assert dtypes["grouped_dot"] == "float4"
    routers = [one.dtype for one in records[1].records if one.kind == "dot" and one.output_shapes[0][-1] == 16]
    assert routers == ["bfloat16"] == [record.dtype for record in records[-1].records if record.kind == "dot"]
    assert dtypes["attention"] == "bfloat16"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"optimizer": "adams"}, "optimizer is 'adams', but must be one of 'adamw', 'adam'"),
        ({"precision": "fp6"}, "precision is 'fp6', but must be one of 'bfloat16'"),
        ({"lora": 5000}, "lora is 5000, but must be at most the hidden width, 4096; give a smaller rank"),
        ({"lora_targets": "all"}, "lora_targets is 'all', but must be left out where there are no adapters"),
        ({"frozen": "4bit"}, "frozen is '4bit', but must be left out where the whole model is trained; give --lora"),
        ({"lora": 8, "frozen": "3bit"}, "frozen is '3bit', but must be one of"),
        ({"gather": "fp8"}, "gather is 'fp8', but must be left out where products aren't in FP8; give --precision fp8"),
    ],
)
def test_wrong_choices_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        changed(LLAMA, **fields)


def test_what_is_usual_has_no_words_and_texts_come_back():
    assert training_text(LLAMA) == training_text(changed(LLAMA, optimizer="adamw", precision="bf16")) == ""
    size = changed(LLAMA, optimizer="muon", precision="fp8", gather="fp8", lora=4, lora_targets="all", frozen="4bit")
    assert Transformer.of_text(size.text) == size
    assert changed(LLAMA, lora=4, frozen="bf16") == changed(LLAMA, lora=4)


@pytest.mark.parametrize(("optimizer", "traced"), [("sgd", True), ("adafactor", True), ("muon", False)])
def test_alpa_traces_the_optimizers_that_jax_models_have(optimizer, traced):
    size = changed(Transformer(64, 2, 4, 128, 32), optimizer=optimizer)
    asked = {"batch": 8, "micro_batches": 1, "cache": False}
    if traced:
        assert plan_model(size.text, "dgx-a100", **asked).plan.step_s > 0
        return
    with pytest.raises(ValueError, match="optimizer is 'muon', but must be left out where JAX traces the model; give"):
        plan_model(size.text, "dgx-a100", **asked)
