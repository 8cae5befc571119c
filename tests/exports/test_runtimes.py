"""Files for other runtimes: accepted by rules of their documentation, and read again without a difference."""

import dataclasses

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.exports import TARGETS, export
from alpa_dejavu.exports.megatron._writer import blocks_of_layout, layout_of
from alpa_dejavu.exports.testing import check_target
from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.planning.search.runtimes import RUNTIMES, hindrances
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import NO_OFFLOAD, Offload
from alpa_dejavu.problem.run import schedule_form
from alpa_dejavu.testing import example_cluster
from target_rules import RULES

READ = [name for name, target in TARGETS.items() if target.reader is not None]
OFFLOADS = (NO_OFFLOAD, Offload(0.5), Offload(1.0), Offload(1.0, 1.0), Offload(1.0, 1.0, 1.0), Offload(1, 1, 1, 1))
SCHEDULES = ("1f1b", "gpipe", "interleaved", "interleaved_3", "zb_h1", "zb_v", "v_half", "dualpipe_v")


@st.composite
def models(draw):
    heads = 2 ** draw(st.integers(2, 4))
    experts = draw(st.sampled_from([(0, 0, 0), (8, 2, 0), (4, 1, 32)]))
    return Transformer(
        64 * heads // 4, draw(st.integers(12, 20)), heads, draw(st.integers(64, 512)), 8 * draw(st.integers(1, 8)),
        kv_heads=heads // draw(st.sampled_from([1, 2])), feed_forward=64 * draw(st.integers(1, 4)),
        gated=draw(st.booleans()), rotary=draw(st.booleans()), rms_norm=draw(st.booleans()),
        biases=draw(st.sampled_from(["none", "qkv", "all"])), qk_norm=draw(st.booleans()), tied=draw(st.booleans()),
        num_experts=experts[0], experts_per_token=experts[1], shared_feed_forward=experts[2],
        capacity=draw(st.sampled_from([0.0, 1.25])) if experts[0] else 0.0,
        precision=draw(st.sampled_from(["bfloat16", "float16", "float32", "float8", "mxfp8"])),
        optimizer=draw(st.sampled_from(["adamw", "sgd"])),
    )  # fmt: skip


def rotating(model):
    """The model with another base of its positions' wavelengths than the usual one."""
    return dataclasses.replace(model, rotary=True, rotary_base=500_000, rotary_scaling=8.0)


@st.composite
def outlines(draw, model, limits):
    """A plan of equal stages; one that the limits of a runtime allow, where they say more than equal."""
    schedule, num_blocks = draw(st.sampled_from(SCHEDULES)), model.num_blocks
    chunks = schedule_form(schedule).chunks
    pipeline = 2 ** draw(st.integers(1 if chunks > 1 else 0, 1 if chunks == 3 else 2))
    stages = pipeline * chunks
    if limits.cuts.even:
        blocks = [num_blocks // stages] * stages
    else:
        inner = st.lists(st.integers(1, num_blocks - 1), min_size=stages - 1, max_size=stages - 1, unique=True)
        ends = sorted(draw(inner))
        blocks = [b - a for a, b in zip([0, *ends], [*ends, num_blocks], strict=True)]
    across = 2 ** draw(st.integers(0, 2))
    along = 2 ** draw(st.integers(0, 1)) if limits.tensor_parallel else 1
    count = 2 * pipeline * chunks * draw(st.integers(1, 2))
    remats = st.sampled_from(limits.remat)
    remat = [draw(remats) for _ in range(stages)] if limits.unlike_remat else [draw(remats)] * stages
    zero = draw(st.sampled_from(limits.zero_of(pipeline))) if across > 1 else 0
    offload = draw(st.sampled_from(OFFLOADS))
    allowed = limits.offloads(offload, zero) and (pipeline == 1 or limits.offload_in_pipeline)
    updates = across == 1 or zero
    offload = offload if allowed and updates and not (offload.parameters and across > 1 and zero < 3) else NO_OFFLOAD
    ways = st.sampled_from([ways for ways in (1, 2, 4) if across % ways == 0])
    degrees = {"context_parallel": draw(ways), "expert_parallel": draw(ways) if model.num_experts else 1}
    degrees["sharded"] = draw(st.sampled_from([0, 2])) if zero and across > 2 else 0
    if draw(st.booleans()):
        degrees = {}
    return Outline(
        across * count * draw(st.integers(1, 2)), count, schedule, across, along, tuple(blocks), tuple(remat), zero,
        offload, **degrees,
    )  # fmt: skip


def made(outline, model):
    devices = outline.num_devices
    return outline.plan(example_cluster(max(devices // 8, 1), min(devices, 8)), model)


@pytest.mark.parametrize("name", [name for name in RULES if name != "alpa"])
def test_the_rules_of_a_target_accept_what_is_written_for_it(name, tmp_path_factory):
    written = []

    @settings(max_examples=25, deadline=None)
    @given(st.data())
    def check(data):
        model = data.draw(models())
        if name == "maxtext":
            gated = model.gated
            model = dataclasses.replace(
                model, num_blocks=24, shared_feed_forward=0, rotary=gated, rms_norm=gated, precision="bfloat16",
                biases="none" if gated else "all", qk_norm=model.qk_norm and gated,
                capacity=model.capacity * gated,
                num_experts=model.num_experts * gated, experts_per_token=model.experts_per_token * gated,
            )  # fmt: skip
        if data.draw(st.booleans()):
            model = rotating(model)
        outline = data.draw(outlines(model, RUNTIMES[name]))
        plan = made(outline, model)
        if list(hindrances(plan, name, RUNTIMES[name])):
            with pytest.raises(ValueError, match=f"{name} can't run the plan"):
                export(plan, name, tmp_path_factory.mktemp("out"), model=model)
            return
        try:
            files = TARGETS[name].writer.write(plan, model)
        except ValueError as error:
            assert f"to be written for {name}; give another model" in str(error)  # noqa: PT017
            return
        RULES[name](files, plan)
        written.append(plan)
        if len(written) == 1:
            check_target(TARGETS[name], [(plan, model)], RULES[name])
        if name in READ:
            folder = tmp_path_factory.mktemp("read")
            written_to = export(plan, name, folder, model=model)
            paths = [path for kind in (".sh", ".json", ".py", ".yml") for path in written_to if path.suffix == kind]
            has_sizes = name in ("megatron", "maxtext")
            foreign = TARGETS[name].reader(paths[0], outline.num_devices, None if has_sizes else model)
            # One stage of theirs runs micro-batches one after the other, under whatever schedule.
            alone = name in ("torchtitan", "maxtext") and outline.pipeline == 1 and outline.chunks == 1
            assert foreign.outline == (dataclasses.replace(outline, schedule="1f1b") if alone else outline)
            assert foreign.model == model

    check()
    assert written


LLAMA = Transformer(
    4096, 32, 32, 128256, 8192, kv_heads=8, feed_forward=14336, rotary_base=500_000, rotary_scaling=8.0,
)  # fmt: skip


MIXTURE = Transformer(4096, 32, 32, 32000, 4096, kv_heads=8, feed_forward=14336, num_experts=8, experts_per_token=2)
DIVIDED = Outline(64, 4, "1f1b", 8, 1, (32,), ("none",), 3)
REFUSED = {
    "context_parallel": "context parallelism", "expert_parallel": "expert parallelism", "sharded": "ZeRO in groups",
    "expert_tensor": "tensor .*within", "remat": "'recompute selective'", "remat_share": "'recompute full of 25%",
}  # fmt: skip
CAN = {  # each division by the runtimes that have it, with what else it needs
    ("context_parallel", 2): "megatron torchtitan deepspeed galvatron maxtext",
    ("expert_parallel", 4): "megatron torchtitan galvatron maxtext",
    ("expert_tensor", 2): "megatron galvatron",
    ("sharded", 4): "megatron torchtitan deepspeed maxtext",
    ("remat", ("selective",)): "megatron torchtitan",
    ("remat_share", 0.25): "megatron galvatron",
    ("remat", ("layer",)): "megatron torchtitan deepspeed galvatron maxtext",
}


@pytest.mark.parametrize("name", [name for name in RULES if name != "alpa"])
@pytest.mark.parametrize(("field", "value"), CAN)
def test_each_division_is_written_and_read_or_refused_by_name(name, field, value, tmp_path):
    outline = dataclasses.replace(DIVIDED, remat=("layer",) if field == "remat_share" else ("none",))
    outline = dataclasses.replace(outline, **{field: value})
    plan = made(outline, MIXTURE)
    if name not in CAN[field, value].split():
        with pytest.raises(ValueError, match=rf"{name} can't run the plan: no {REFUSED[field]}.*; plan again with"):
            export(plan, name, tmp_path, model=MIXTURE)
        return
    RULES[name](TARGETS[name].writer.write(plan, MIXTURE), plan)
    path = export(plan, name, tmp_path, model=MIXTURE)[0]
    if name in READ:
        foreign = TARGETS[name].reader(path, 8, MIXTURE)
        assert (foreign.outline, foreign.model) == (outline, MIXTURE)


TRAINED = {  # how a model is trained, by the runtimes whose files say it
    ("optimizer", "sgd"): "megatron deepspeed maxtext",
    ("optimizer", "muon"): "megatron deepspeed maxtext",
    ("optimizer", "lion"): "deepspeed",
    ("optimizer", "adam8bit"): "",
    ("precision", "float8"): "megatron torchtitan maxtext",
    ("precision", "mxfp8"): "megatron torchtitan maxtext",
    ("precision", "fp8-blockwise"): "megatron",
    ("precision", "nvfp4"): "megatron",
    ("precision", "tf32"): "",
    ("gather", "fp8"): "megatron",
}


@pytest.mark.parametrize("name", [name for name in RULES if name != "alpa"])
@pytest.mark.parametrize(("field", "value"), TRAINED)
def test_how_a_model_is_trained_is_written_and_read_or_refused_by_name(name, field, value, tmp_path):
    precision = "float8" if field == "gather" else MIXTURE.precision
    model = dataclasses.replace(MIXTURE, **{"precision": precision, field: value})
    outline = dataclasses.replace(DIVIDED, zero=2)
    plan = made(outline, model)
    if name not in TRAINED[field, value].split():
        with pytest.raises(ValueError, match=f"{name}.*({field}|precision) is|({field}|precision) is .* for {name}"):
            export(plan, name, tmp_path, model=model)
        return
    RULES[name](TARGETS[name].writer.write(plan, model), plan)
    path = export(plan, name, tmp_path, model=model)[0]
    if name in READ:
        foreign = TARGETS[name].reader(path, 8, dataclasses.replace(MIXTURE, optimizer=model.optimizer))
        assert (foreign.outline, foreign.model) == (outline, model)


def test_megatron_computes_as_many_blocks_again_in_each_stage_or_refuses():
    outline = Outline(64, 4, "1f1b", 4, 1, (20, 12), ("layer", "layer"), 2, remat_share=0.25)
    with pytest.raises(ValueError, match="stages compute 5, 3 blocks again, but Megatron does with the same number"):
        TARGETS["megatron"].writer.write(made(outline, MIXTURE), MIXTURE)


def test_muon_is_shared_by_megatron_as_its_own_optimizer_does_or_refused():
    model = dataclasses.replace(MIXTURE, optimizer="muon")
    for zero, text in ((2, "--optimizer dist_muon"), (0, "--optimizer muon")):
        script = TARGETS["megatron"].writer.write(made(dataclasses.replace(DIVIDED, zero=zero), model), model)
        assert text in script["run_megatron.sh"]
        assert "--use-distributed-optimizer" not in script["run_megatron.sh"]
    assert "ZeRO 3, hybrid sharding or offload with Muon" in str(
        next(hindrances(made(DIVIDED, model), "megatron", RUNTIMES["megatron"]))
    )
    with pytest.raises(ValueError, match="optimizer is 'muon' with ZeRO 3, hybrid sharding or offload, which Megatron"):
        TARGETS["megatron"].writer.write(made(DIVIDED, model), model)


def test_a_division_that_a_runtime_has_with_others_alone_is_refused():
    for name, changes, said in (
        ("torchtitan", {"zero": 0, "context_parallel": 2}, "with no ZeRO there, but with ZeRO-1 or ZeRO-3 over all"),
        ("torchtitan", {"sharded": 2, "expert_parallel": 4}, "data-parallel devices or in groups of a multiple of 4"),
        ("torchtitan", {"data_parallel": 4, "tensor_parallel": 2, "expert_parallel": 2}, "within experts there"),
        ("maxtext", {"zero": 2, "expert_parallel": 2}, "with ZeRO-1 there, but with ZeRO-3 over all"),
        ("deepspeed", {"zero": 2, "sharded": 4}, "no ZeRO-1 in groups of 4 there"),
        ("deepspeed", {"zero": 2, "context_parallel": 2, "data_parallel": 4, "blocks": (16, 16)}, "in a pipeline"),
    ):
        outline = dataclasses.replace(DIVIDED, **changes)
        outline = dataclasses.replace(outline, remat=("none",) * len(outline.blocks))
        assert said in "; ".join(map(str, hindrances(made(outline, MIXTURE), name, RUNTIMES[name]))), name


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("megatron", {"norms": "sandwich"}, "norms is 'sandwich', but must be left out to be written for megatron"),
        ("megatron", {"latent_rank": 128, "kv_heads": 32, "rotary_size": 64}, "rotary_scaling is 8.0, but must be 1.0"),
        ("maxtext", {"window": 128}, "window is 128, but must be left out to be written for maxtext"),
        ("megatron", {"biases": "attention"}, "biases is 'attention', but must be"),
        ("torchtitan", {"precision": "float8", "gather": "fp8"}, "gather is 'fp8', but must be left out to be written"),
        ("torchtitan", {"precision": "nvfp4"}, "precision is 'nvfp4', but must be 'bfloat16' or 'float32' or"),
        ("maxtext", {"rotary_scaling": 4.0}, "rotary_scaling is 4.0, but must be 1.0 or 8.0"),
        ("maxtext", {"biases": "all"}, "biases is 'all', but must be 'none' or 'qkv'"),
        ("deepspeed", {"precision": "float8"}, "precision is 'float8', but must be"),
        ("galvatron", {"precision": "float8"}, "precision is 'float8', but must be"),
    ],
)
def test_a_writer_refuses_what_its_runtime_has_not(name, changes, said):
    model = dataclasses.replace(LLAMA, **changes)
    plan = made(Outline(16, 4, "1f1b", 2, 1, (32,), ("none",)), model)
    with pytest.raises(ValueError, match=said):
        TARGETS[name].writer.write(plan, model)


DECODERS = {  # by name what Megatron's arguments don't say of them
    **dict.fromkeys(("llama-3.2-1b", "qwen2.5-0.5b", "qwen3-235b-a22b", "mixtral-8x7b", "phi-3-mini"), ""),
    **dict.fromkeys(("deepseek-v2", "deepseek-v3", "nemotron-4-15b"), ""),
    "gemma-2-9b": "norms", "gpt-oss-20b": "expert_biases", "olmo-2-7b": "wide_qk_norm", "mpt-7b": "norm_bias",
    "phi-4-mini": "rotary_scaling",
}  # fmt: skip


@pytest.mark.parametrize(("name", "refused"), DECODERS.items())
def test_decoders_of_today_are_written_for_megatron_and_read_or_refused(name, refused, tmp_path):
    model = transformer_size(name)
    stages = (1, model.num_blocks - 1)
    plan = made(Outline(8, 4, "1f1b", 2, 1, stages, ("none", "none"), 2), model)
    if refused:
        with pytest.raises(ValueError, match=f"{refused} is .* to be written for megatron"):
            export(plan, "megatron", tmp_path, model=model)
        return
    written = TARGETS["megatron"].writer.write(plan, model)
    RULES["megatron"](written, plan)
    foreign = TARGETS["megatron"].reader(export(plan, "megatron", tmp_path, model=model)[0], 4, None)
    assert (foreign.model, foreign.outline.blocks) == (model, stages)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_a_layout_says_its_blocks_again(blocks):
    assert blocks_of_layout(layout_of(blocks)) == tuple(blocks)


def test_layouts_of_megatrons_documentation():
    assert blocks_of_layout("Et*3|(tt|)*29,tL") == (3, *[2] * 29, 1)
    assert blocks_of_layout("E|(t|)*3tL") == (0, 1, 1, 1, 1)
    assert blocks_of_layout("Et|ttmmL", 2) == (1, 2)
    for layout, said in (
        ("Et*3|(tt|)*29,m|L", "must end with mL in one stage, by --mtp-num-layers"),
        ("Et*3|txL", "must have the letters E, t, m and L alone, not 'x'"),
        ("t|EL", "must begin with the one E"),
        ("Et*99999999|tL", "letters|at most"),
    ):
        with pytest.raises(ValueError, match=said):
            blocks_of_layout(layout, layout.count("m"))


def test_maxtext_has_deepseeks_blocks():
    model = dataclasses.replace(transformer_size("deepseek-v3"), precision="float8")
    outline = dataclasses.replace(DIVIDED, blocks=(61,), expert_parallel=8)
    data = yaml.safe_load(TARGETS["maxtext"].writer.write(made(outline, model), model)["maxtext_plan.yml"])
    expected = {
        "decoder_block": "deepseek", "attention_type": "mla", "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "base_mlp_dim": 18432, "base_moe_mlp_dim": 2048, "first_num_dense_layers": 3, "shared_experts": 1,
        "mtp_num_layers": 1, "quantization": "te_fp8_currentscaling", "dtype": "bfloat16", "ici_expert_parallelism": 8,
        "ici_fsdp_parallelism": 1,
    }  # fmt: skip
    assert {name: data[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("megatron", ["--rotary-base 500000", "--use-rope-scaling", "--rope-scaling-factor 8.0", "--bf16"]),
        ("torchtitan", ['theta=500000, scaling="llama", scaling_factor=8.0', 'mixed_precision_param="bfloat16"']),
        ("maxtext", ["rope_max_timescale: 500000", 'rope_type: "llama3.1"', 'dtype: "bfloat16"']),
        ("galvatron", ["rotary_base=500000,rotary_scaling=8.0", "--mixed_precision bf16"]),
        ("deepspeed", ['"bf16": {']),
    ],
)
def test_a_writer_writes_the_models_own_properties(name, said):
    plan = made(Outline(16, 4, "1f1b", 2, 1, (32,), ("none",)), LLAMA)
    text = "".join(TARGETS[name].writer.write(plan, LLAMA).values())
    assert not [one for one in said if one not in text]
