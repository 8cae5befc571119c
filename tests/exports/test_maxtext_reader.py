"""MaxText's configurations, YAML and scripts: each setting is applied, refused by its line, or left aside."""

import dataclasses
import pathlib
import re

import pytest

from alpa_dejavu._util import units
from alpa_dejavu.exports import TARGETS, export, import_plan
from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import Offload
from alpa_dejavu.testing import example_cluster

JOB = """\
# a run of ours
base_config: "base.yml"
run_name: "first"
model_name: "llama3.1-8b"
hardware: "gpu"
steps: 1_000
learning_rate: 3.e-4
per_device_batch_size: 2
max_target_length: 8192
remat_policy: "full"
ici_fsdp_parallelism: 8
dcn_data_parallelism: -1
"""
OWN = """\
base_config: base.yml
decoder_block: llama2
base_emb_dim: 1024
base_num_query_heads: 16
base_num_kv_heads: 4
head_dim: 64
base_mlp_dim: 4096
base_num_decoder_layers: 24
vocab_size: 32768
max_target_length: 1024
per_device_batch_size: 4
"""


def read(tmp_path, text, devices=16, hosts=2, model=None, name="job.yml"):
    (tmp_path / name).write_text(text)
    return TARGETS["maxtext"].reader(tmp_path / name, devices, model, hosts=hosts)


def test_a_job_as_people_write_it(tmp_path):
    foreign = read(tmp_path, JOB)
    assert foreign.outline == Outline(32, 1, "1f1b", 16, 1, (32,), ("layer",), 3, sharded=8)
    assert foreign.model == dataclasses.replace(transformer_size("llama-3.1-8b"), sequence=8192)
    assert foreign.ignored == ("line 3: run_name", "line 5: hardware", "line 6: steps", "line 7: learning_rate")
    assert (foreign.priced_by, foreign.otherwise) == ({}, ())


AXES = {  # what is written over a model of 24 blocks, on 4 hosts of 8: data, tensor, stages, and degrees that differ
    "ici_fsdp_parallelism: -1": (32, 1, 1, {"zero": 3, "sharded": 8}),
    "dcn_data_parallelism: 1\ndcn_fsdp_parallelism: -1": (32, 1, 1, {"zero": 3}),
    "ici_tensor_parallelism: 4": (8, 4, 1, {"zero": 3, "sharded": 2}),
    "ici_tensor_parallelism: 8\nici_fsdp_parallelism: 1": (4, 8, 1, {"zero": 0}),
    "ici_data_parallelism: -1\nici_fsdp_parallelism: 1\nshard_optimizer_over_data: true": (32, 1, 1, {"zero": 2}),
    "ici_context_parallelism: 2": (32, 1, 1, {"zero": 3, "sharded": 8, "context_parallel": 2, "replicas": 16}),
    "ici_fsdp_transpose_parallelism: 2\nici_fsdp_parallelism: 4": (32, 1, 1, {"zero": 3, "sharded": 8}),
    "ici_expert_parallelism: 4": (32, 1, 1, {"zero": 3, "sharded": 8}),  # experts' axis is one more of the parameters
    "num_slices: 1\ndcn_data_parallelism: 1\nici_fsdp_parallelism: 32": (32, 1, 1, {"zero": 3}),
    "dcn_pipeline_parallelism: 4\nnum_layers_per_pipeline_stage: 6\nnum_pipeline_microbatches: 8\n"
    "dcn_data_parallelism: 1": (8, 1, 4, {"zero": 3, "blocks": (6,) * 4, "schedule": "gpipe", "num_micro_batches": 8}),
    "dcn_pipeline_parallelism: 2\ndcn_data_parallelism: 2\nnum_layers_per_pipeline_stage: 12":
        (16, 1, 2, {"zero": 3, "sharded": 8, "num_micro_batches": 2, "batch": 128}),
}  # fmt: skip


@pytest.mark.parametrize("settings", AXES)
def test_axes_are_applied(tmp_path, settings):
    across, along, stages, more = AXES[settings]
    outline = read(tmp_path, f"{OWN}{settings}\n", 32, 4).outline
    assert (outline.data_parallel, outline.tensor_parallel, outline.pipeline) == (across, along, stages)
    assert outline.num_devices == 32
    more = {"batch": 128, "sharded": 0, "context_parallel": 1, "expert_parallel": 1} | more
    assert {name: getattr(outline, name) for name in more} == more


def test_batches_remat_offload_and_precision_are_applied(tmp_path):
    outline = read(tmp_path, f"{OWN}gradient_accumulation_steps: 4\noptimizer_memory_host_offload: true\n").outline
    assert (outline.batch, outline.num_micro_batches, outline.offload) == (256, 4, Offload(1.0))
    half = read(tmp_path, OWN.replace("batch_size: 4", "batch_size: 0.5") + "ici_tensor_parallelism: 8\n").outline
    assert (half.batch, half.data_parallel, half.sharded) == (8, 2, 0)
    for policy, remat in (("none", "none"), ("minimal_with_context", "none"), ("full", "layer")):
        assert read(tmp_path, f"{OWN}remat_policy: {policy}\n").outline.remat == (remat,)
    model = read(tmp_path, f"{OWN}quantization: fp8\nopt_type: sgd\nattention: dot_product\n")
    assert (model.model.precision, model.model.optimizer, model.priced_by) == (
        "float8", "sgd", {"attention": "plain"}
    )  # fmt: skip
    assert read(tmp_path, f"{OWN}dtype: float32\n").model.precision == "float32"


def test_what_is_priced_otherwise_is_told_with_its_amount(tmp_path):
    # Of 24 blocks a device keeps the attention's output of 4 samples of 1,024 tokens, 1,024 wide, in half precision.
    (kept,) = read(tmp_path, f"{OWN}remat_policy: minimal\n").otherwise
    assert kept.endswith(f"attention isn't computed again, and {units.size(24 * 4 * 1024 * 1024 * 2)} kept")
    (tiles,) = read(tmp_path, f"{OWN}num_vocab_tiling: 4\n").otherwise
    assert f"up to {units.size(10 * 4 * 1024 * 32768 * 3 / 4)} more" in tiles
    (ring,) = read(tmp_path, f"{OWN}ici_context_parallelism: 2\ncontext_parallel_strategy: ring\n").otherwise
    assert ring.startswith("context_parallel_strategy ring is priced as all_gather")


SIZES = {  # further settings, and the parameters that they make, by hand: 24 blocks of 1,024 with 16 heads of 64
    "": 2 * 32768 * 1024 + 24 * (2 * 1024 * 1024 + 2 * 1024 * 256 + 3 * 1024 * 4096 + 2 * 1024) + 1024,
    "logits_via_embedding: true": 32768 * 1024 + 24 * (2 * 1024**2 + 2 * 1024 * 256 + 3 * 1024 * 4096 + 2048) + 1024,
    "decoder_block: qwen2\nattention_bias: true":
        2 * 32768 * 1024 + 24 * (2 * 1024**2 + 2 * 1024 * 256 + 1024 + 512 + 3 * 1024 * 4096 + 2048) + 1024,
    "decoder_block: qwen3\nuse_qk_norm: true":
        2 * 32768 * 1024 + 24 * (2 * 1024**2 + 2 * 1024 * 256 + 128 + 3 * 1024 * 4096 + 2048) + 1024,
    "decoder_block: mixtral\nnum_experts: 8\nnum_experts_per_tok: 2\nbase_moe_mlp_dim: 2048":
        2 * 32768 * 1024 + 24 * (2 * 1024**2 + 2 * 1024 * 256 + 8 * 3 * 1024 * 2048 + 8 * 1024 + 2048) + 1024,
    # a scale of 2 is twice as many heads and twice the width of feed-forward, of 8 twice all
    "global_parameter_scale: 2":
        2 * 32768 * 1024 + 24 * (2 * 1024 * 2048 + 2 * 1024 * 512 + 3 * 1024 * 8192 + 2048) + 1024,
    "global_parameter_scale: 8":
        2 * 32768 * 2048 + 48 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 4096) + 2048,
}  # fmt: skip


@pytest.mark.parametrize("settings", SIZES)
def test_sizes_make_as_many_parameters_as_by_hand(tmp_path, settings):
    names = {line.partition(":")[0] for line in settings.splitlines()}
    own = "".join(f"{line}\n" for line in OWN.splitlines() if line.partition(":")[0] not in names)
    assert read(tmp_path, own + settings).model.num_parameters == SIZES[settings]


def test_base_yml_alone_is_maxtexts_own_model(tmp_path):
    model = read(tmp_path, "base_config: base.yml\n").model
    # 16 blocks of 2,048 with 16 heads of 128, feed-forward 7,168, a vocabulary of 32,000, norms, and 12 samples each
    by_hand = 2 * 32000 * 2048 + 16 * (4 * 2048**2 + 3 * 2048 * 7168 + 2 * 2048) + 2048
    assert (model.num_parameters, model.sequence) == (by_hand, 2048)
    assert read(tmp_path, "base_config: base.yml\n").outline.batch == 192


NAMES = {
    "llama2-7b": 6_738_415_616, "llama3-8b": 8_030_261_248, "llama3.1-70b-Instruct": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704, "qwen3-30b-a3b": 30_532_122_624, "qwen2.5-7b": 7_615_616_512,
    "deepseek2-16b": 15_706_484_224, "deepseek3-671b": 671_026_419_200, "qwen3-8b-base": 8_190_735_360,
    "mixtral-8x22b": 140_630_071_296, "gpt-oss-20b": 20_914_757_184, "gemma2-9b": 9_242_164_736,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_models_by_name_have_as_many_parameters_as_they_are_known_for(tmp_path, name):
    model = read(tmp_path, f"model_name: {name}\nmax_target_length: 512\n").model
    assert (model.num_parameters, model.sequence, model.predicted) == (NAMES[name], 512, 0)


SCRIPT = """\
#!/bin/bash
set -e
export EXECUTABLE="train"
HOSTS=2
RUN_NAME=first-$(date +%d)
export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true
--xla_gpu_enable_triton_gemm=false"
python3 -m MaxText.$EXECUTABLE MaxText/configs/base.yml model_name=llama2-7b \\
    run_name=$RUN_NAME per_device_batch_size=4 max_target_length=4096 \\
    dcn_data_parallelism=$HOSTS ici_fsdp_parallelism=8 \\
    remat_policy=minimal_flash steps=30 'mlp_activations=[silu, linear]'
"""


def test_a_script_with_settings(tmp_path):
    foreign = read(tmp_path, SCRIPT, name="run.sh")
    assert foreign.outline == Outline(64, 1, "1f1b", 16, 1, (32,), ("none",), 3, sharded=8)
    assert foreign.model == dataclasses.replace(transformer_size("llama-2-7b"), sequence=4096)
    assert foreign.ignored == ("line 9: run_name", "line 11: steps")
    wider = SCRIPT.replace("model_name=llama2-7b", "model_name=mixtral-8x7b base_num_decoder_layers=5")
    with pytest.raises(ValueError, match="line 8: base_num_decoder_layers is 5, but model_name mixtral-8x7b has 32"):
        read(tmp_path, wider, name="run.sh")
    over = read(tmp_path, wider.replace("steps=30", "override_model_config=true"), name="run.sh")
    assert over.outline.blocks == (5,)
    by_file = SCRIPT.replace("python3 -m MaxText.$EXECUTABLE MaxText/configs/base.yml", "python3 train.py job.yml")
    (tmp_path / "job.yml").write_text("per_device_batch_size: 1\ngradient_accumulation_steps: 2\n")
    assert read(tmp_path, by_file, name="run.sh").outline.batch == 128
    (tmp_path / "job.yml").unlink()
    with pytest.raises(ValueError, match=r"run.sh, line 8: 'job.yml' has further settings, but isn't there; put it"):
        read(tmp_path, by_file, name="run.sh")
    with pytest.raises(ValueError, match=r"line 3: 'per_device_batch_size=.*' isn't known"):
        read(tmp_path, 'set -e\n\nfor n in 1 2; do B=$n; done\npython3 train.py base.yml steps=1 '
             "per_device_batch_size=$B\n", name="run.sh")  # fmt: skip
    for front, line in (("export M_PER_DEVICE_BATCH_SIZE=2\n", 2), ("M_PER_DEVICE_BATCH_SIZE=2 ", 8)):
        text = SCRIPT.replace("set -e\n", f"{front}\n") if line < 8 else SCRIPT.replace("python3", f"{front}python3")
        with pytest.raises(ValueError, match=f"line {line}: M_PER_DEVICE_BATCH_SIZE sets per_device_batch_size in"):
            read(tmp_path, text, name="run.sh")
    read(tmp_path, SCRIPT.replace("set -e\n", "set -e\nexport M_RUN_NAME=ours\n"), name="run.sh")
    with pytest.raises(ValueError, match="line 11: 'fast' isn't a setting as name=value; leave it out"):
        read(tmp_path, SCRIPT.replace("steps=30", "steps=30 fast"), name="run.sh")
    with pytest.raises(ValueError, match="there are no arguments of MaxText's in it; give the script of the run"):
        read(tmp_path, "echo steps=3\n", name="run.sh")


def test_files_that_others_are_based_on_are_read_where_they_are(tmp_path):
    (tmp_path / "group.yml").write_text(f"{OWN}ici_tensor_parallelism: 2\n")
    foreign = read(tmp_path, "base_config: group.yml\nper_device_batch_size: 8\n")
    assert (foreign.outline.tensor_parallel, foreign.outline.batch, foreign.model.hidden) == (2, 128, 1024)
    (tmp_path / "group.yml").write_text(OWN.replace("head_dim: 64", "head_dim: none"))
    with pytest.raises(ValueError, match=r"group.yml, line 6: head_dim is 'none', but must be a whole number"):
        read(tmp_path, "base_config: group.yml\n")
    (tmp_path / "base.yml").write_text(f"{OWN}logical_axis_rules: [['norm', 'tensor']]\nbase_emb_dim_: 3\n")
    with pytest.raises(ValueError, match=r"base.yml, line 13: base_emb_dim_ isn't known"):
        read(tmp_path, "base_config: base.yml\n")
    (tmp_path / "base.yml").write_text(OWN.replace("base_config: base.yml\n", "mesh_axes: [data, fsdp]\nsteps: 3\n"))
    foreign = read(tmp_path, "base_config: base.yml\n")
    assert foreign.otherwise == ("mesh_axes of base.yml are taken to be MaxText's own",)
    whole = TARGETS["maxtext"].reader(tmp_path / "base.yml", 16, None, hosts=2)
    assert whole.ignored == (f"1 settings of {tmp_path / 'base.yml'}",)


PIPELINE = "dcn_data_parallelism: 1\ndcn_pipeline_parallelism: 2\n"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("base_config: ours.yml", "'ours.yml' has further settings, but isn't there; put it beside this file"),
        ("per_device_batch: 4", "per_device_batch isn't known, so it may change .* did you mean 'per_device_b"),
        ("ici_tensor_parallelism: 3", "the degrees are tensor 3 times fsdp 2 times data 2, but .* the 16 dev"),
        ("ici_tensor_parallelism: -1", "must be a number: .* is what is left, too"),
        ("ici_tensor_parallelism: true", "ici_tensor_parallelism is True, but must be a whole number"),
        ("dcn_tensor_parallelism: 2\ndcn_data_parallelism: 1", "dcn_tensor_parallelism is 2 beside ici_fsdp"),
        ("ici_sequence_parallelism: 2", "ici_sequence_parallelism is 2, which isn't planned; make it 1"),
        ("ici_tensor_sequence_parallelism: 2", "which isn't planned; make it 1"),
        (f"{PIPELINE}num_layers_per_pipeline_stage: 5", "2 stages times .* 5 times .* must be the 24 blocks"),
        (f"{PIPELINE}num_layers_per_pipeline_stage: 4", "num_pipeline_repeats comes to 3, .*_stage 12"),
        (f"{PIPELINE}num_layers_per_pipeline_stage: 12\nnum_pipeline_repeats: 2", "must be the 24 blocks"),
        (f"{PIPELINE}num_layers_per_pipeline_stage: 12\nnum_pipeline_microbatches: 3", "batch of 64, but .* of 24: 3"),
        (f"{PIPELINE}num_layers_per_pipeline_stage: 12\ngradient_accumulation_steps: 2", "but must be 1 in a pipe"),
        ("gradient_accumulation_steps: 0", "gradient_accumulation_steps is 0, but must be a whole number"),
        ("remat_policy: save_qkv_proj", "remat_policy is 'save_qkv_proj', but must be one of full, none"),
        ("remat_policy: custom\nmlpwo: offload", "remat_policy is 'custom', but must be one of"),
        ("attention: paged", "attention is 'paged', but must be one of dot_product, autoselected"),
        ("quantization: int8", "quantization is 'int8', but must be one of"),
        ("quantization: fp8\ndtype: float32", "dtype is 'float32', but must be bfloat16 beside a quant"),
        ("dtype: float16", "dtype is 'float16', but must be bfloat16 or float32; mend it"),
        ("weight_dtype: bfloat16", "weight_dtype is 'bfloat16', which isn't planned; make it 'float32'"),
        ("mu_dtype: bfloat16", "mu_dtype is 'bfloat16', which isn't planned"),
        ("opt_type: adagrad", "opt_type is 'adagrad', but must be one of adamw, adam_pax, sgd, muon"),
        ("num_experts: 8\nnum_experts_per_tok: 2\nsparse_matmul: false", "sparse_matmul is False, but must be"),
        ("num_experts: 8\nnum_experts_per_tok: 9", "experts_per_token is 9, but must be from 1 to num_experts, 8"),
        ("attention_type: local_sliding\nsliding_window_size: 128", "sliding_window_size is 128, which isn't"),
        ("attention_type: mla", "attention_type is 'mla', but must be mla with decoder_block deepseek"),
        ("decoder_block: gemma2", "decoder_block is 'gemma2', but must be one of llama2, mistral, mixtral"),
        ("mlp_activations: [relu]", r"mlp_activations is \['relu'\], but must be silu and linear"),
        ("global_parameter_scale: 3", "global_parameter_scale is 3, but must be a power of two"),
        ("rope_max_timescale: big", "rope_max_timescale is 'big', but must be a number"),
        ("capacity_factor: true\nnum_experts: 2", "capacity_factor is True, but must be a number"),
        ("enable_rampup_batch_size: true", "enable_rampup_batch_size is True, which isn't planned"),
        ("logical_axis_rules: [['norm', 'fsdp']]", "logical_axis_rules is written, but must be MaxText's own"),
        ("custom_mesh: hybrid_ring_64x4", "custom_mesh is 'hybrid_ring_64x4', which isn't planned"),
        ("shard_optimizer_over_data: true", ".* is True, but must be false where axes share parameters"),
        ("model_name: llama3-8b", "base_emb_dim is 1024, but model_name llama3-8b has 4096, which wins"),
        ("model_name: gemma2-9b", "decoder_block is 'llama2', but model_name gemma2-9b has its own, which wins"),
        ("model_name: gpt3-175b", "the sizes of model_name gpt3-175b aren't known; give --model"),
        ("per_device_batch_size: 0.3", "is 0.3, which makes a batch of 4.8, but that must be a multiple of 16"),
        ("per_device_batch_size: many", "per_device_batch_size is 'many', but must be a number"),
        ("per_device_batch_size: .inf", "per_device_batch_size is inf, but must be a number; mend it"),
        ("per_device_batch_size: 0", "per_device_batch_size is 0, but must be above 0; mend it"),
        ("head_dim: 64\nhead_dim: 65", "the key 'head_dim' is there twice"),
        ("a: [", "this isn't YAML"),
        ("lists: &a [1]\nagain: *a", "named by an anchor, but must be written where it is meant"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_by_its_line(tmp_path, settings, said):
    names = {line.partition(":")[0] for line in settings.splitlines()}
    rows = [row for row in OWN.splitlines() if row.partition(":")[0] not in names]
    with pytest.raises(ValueError, match=said) as error:
        read(tmp_path, "\n".join([*rows, settings]))
    text, line = str(error.value), re.search(r"job.yml, line (\d+): ", str(error.value))
    assert "\n" not in text
    assert "job.yml" in text
    if names.isdisjoint({"num_experts", "model_name", "num_pipeline_microbatches"}):
        assert line is not None
        assert int(line[1]) > len(rows)


def test_a_model_that_is_given_has_no_other_sizes_than_the_settings(tmp_path):
    llama = transformer_size("llama-3.1-8b")
    assert read(tmp_path, JOB, model=llama).model == read(tmp_path, JOB).model
    for name, text, said in (
        ("base_emb_dim: 1024", OWN, "line 3: base_emb_dim is 1024, but --model has 4096"),
        ("num_experts: 8", "num_experts: 8\n", "line 1: num_experts is 8, but --model has 1"),
        ("model_name", JOB.replace("8b", "70b"), "line 4: model_name is llama3.1-70b, but --model has hidden=4096"),
    ):
        assert name in text
        with pytest.raises(ValueError, match=said):
            read(tmp_path, text, model=llama)
    with pytest.raises(ValueError, match=r"line 1: 'aaa.* isn't there; put it beside this file"):
        read(tmp_path, f"base_config: {'a' * 400}\n")


def test_what_is_written_for_maxtext_is_read_back_with_its_model(tmp_path):
    latent = dataclasses.replace(
        transformer_size("deepseek-v2-lite"), num_blocks=8, sequence=1024, num_experts=8, experts_per_token=2
    )
    mixture = Transformer(256, 8, 8, 512, 128, kv_heads=4, feed_forward=512, num_experts=4, experts_per_token=2)
    qwen = Transformer(256, 8, 8, 512, 128, kv_heads=4, feed_forward=512, biases="qkv", rotary_base=1_000_000)
    llama = Transformer(256, 8, 8, 512, 128, kv_heads=4, feed_forward=512, rotary_scaling=8.0, precision="float8")
    plain = Transformer(
        256, 8, 8, 512, 128, feed_forward=1024, gated=False, rotary=False, rms_norm=False, biases="all", tied=True
    )
    outlines = (
        Outline(64, 4, "gpipe", 4, 2, (4, 4), ("layer",) * 2, 3),
        Outline(64, 2, "1f1b", 16, 1, (8,), ("none",), 3, sharded=8),
        Outline(64, 1, "1f1b", 8, 2, (8,), ("none",), 2, Offload(1.0)),
        Outline(64, 1, "1f1b", 16, 1, (8,), ("layer",), 3, context_parallel=2),
    )
    for model in (latent, mixture, qwen, llama, plain):
        for n, outline in enumerate(outlines):
            plan = outline.plan(example_cluster(2, 8), model)
            (path,) = export(plan, "maxtext", tmp_path / str(n), force=True, model=model)
            foreign = TARGETS["maxtext"].reader(path, 16, None, hosts=2)
            assert (foreign.outline, foreign.model) == (outline, model)
            # MaxText itself refuses fp8 where gradients are accumulated.
            accumulates = "gradient_accumulation_steps: 2" in path.read_text()
            assert not (accumulates and 'quantization: "fp8"' in path.read_text())


def test_a_plan_of_maxtexts_is_estimated(tmp_path):
    read(tmp_path, OWN)
    plan = import_plan(tmp_path / "job.yml", "maxtext", example_cluster(2, 8), cache=False).result.plan
    assert (plan.priced_by.runs_on, plan.priced_by.runtime) == ("maxtext", "maxtext")
    assert plan.step_s > 0
    assert pathlib.Path(tmp_path / "job.yml").read_text() == OWN
