"""Configurations of other runtimes: what is wrong in them is said by its line, and what is left aside, too."""

import json
import os
import subprocess
import sys

import pytest

from alpa_dejavu._util import units
from alpa_dejavu.clusters.figures import write_cluster
from alpa_dejavu.exports import TARGETS, export, import_plan, read_model
from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.plans import plan_changes
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.plans.plan_file import read_plan, write_plan
from alpa_dejavu.problem import Offload
from alpa_dejavu.testing import example_cluster

SIZES = Transformer(64, 8, 4, 128, 16, feed_forward=128)
SCRIPT = """\
#!/bin/bash
# a run of ours
LAYERS=8
GPUS=4
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS --nnodes 1)
MODEL_ARGS="
    --num-layers ${LAYERS} --hidden-size 64 --ffn-hidden-size 128
"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    --num-layers $LAYERS \\
    --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 4 \\
    --seq-length 16 --max-position-embeddings 16 --vocab-size 128 \\
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \\
    --untie-embeddings-and-output-weights \\
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 \\
    --micro-batch-size 2 --global-batch-size=16 --use-distributed-optimizer --bf16 \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
    --overlap-grad-reduce --overlap-param-gather --lr 1e-4 --attention-backend flash
"""


def megatron(tmp_path, text, devices=4, model=None):
    path = tmp_path / "run.sh"
    path.write_text(text)
    return TARGETS["megatron"].reader(path, devices, model)


def test_a_script_as_people_write_it(tmp_path):
    foreign = megatron(tmp_path, SCRIPT)
    outline = foreign.outline
    assert (outline.batch, outline.num_micro_batches, outline.data_parallel) == (16, 4, 2)
    assert outline.blocks == (4, 4)
    assert outline.remat == ("layer", "layer")
    assert outline.zero == 2
    assert foreign.model == SIZES
    assert foreign.ignored == ("line 18: --lr, --attention-backend",)
    assert megatron(tmp_path, SCRIPT.replace("# a run of ours", "set -euo pipefail")).ignored == foreign.ignored
    divided = SCRIPT.replace("--tensor-model-parallel-size 1", "--tensor-model-parallel-size 2")
    whole, shared = megatron(tmp_path, divided), megatron(tmp_path, divided.replace("--lr", "--sequence-parallel --lr"))
    assert (foreign.sequence_parallel, whole.sequence_parallel, shared.sequence_parallel) == (True, False, True)
    assert whole.ignored == foreign.ignored


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("--global-batch-size=16", "--global-batch-size=9", "line 16: --global-batch-size is 9, but must be a"),
        ("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 3", "must divide the 4 devices"),
        ("--lr 1e-4", "--micro-batch-size 4", "line 18: --micro-batch-size is '4', but line 16 has '2'; leave one out"),
        ("--lr 1e-4", "--pipeline-model-parallel-layout 'Et*3|t*4L'", "line 18: the layout has 7 blocks in 2 stages"),
        ("--nnodes 1", "--nnodes 4", "line 5: 4 nodes of 4 processes aren't the 4 devices"),
        ("--micro-batch-size 2", "", "--micro-batch-size is missing"),
        ("--vocab-size 128", "", "--vocab-size is missing.*or give --model"),
        ("# a run of ours", "echo 'open", "line 2: it can't be read: No closing quotation"),
        (
            "--recompute-method uniform --recompute-num-layers 1", "--recompute-method block --recompute-num-layers 0",
            "line 17: 0 blocks of each stage are",
        ),
        ("--swiglu", "--optimizer-cpu-offload --optimizer-offload-fraction 2", "line 13: .*a share from 0 to 1"),
    ],
)
def test_what_is_wrong_in_a_script_is_said_by_its_line(tmp_path, old, new, said):
    assert old in SCRIPT
    with pytest.raises(ValueError, match=said):
        megatron(tmp_path, SCRIPT.replace(old, new))


def test_other_ways_to_cut_in_megatron(tmp_path):
    first = megatron(tmp_path, SCRIPT.replace("--lr 1e-4", "--decoder-first-pipeline-num-layers 3"))
    assert first.outline.blocks == (3, 5)
    chunked = megatron(tmp_path, SCRIPT.replace("--lr 1e-4", "--num-virtual-stages-per-pipeline-rank 2"))
    assert (chunked.outline.blocks, chunked.outline.schedule) == ((2, 2, 2, 2), "interleaved")
    offloaded = megatron(tmp_path, SCRIPT.replace("--lr 1e-4", "--optimizer-cpu-offload"))
    assert offloaded.outline.offload == Offload(1.0)


STRATEGY = {
    "pp_deg": 2, "tp_sizes_enc": "2,2,2,2,2,2,2,2", "tp_consecutive_flags": "1,1,1,1,1,1,1,1",
    "dp_types_enc": "0,0,0,0,0,0,0,0", "global_bsz": 8, "chunks": 4, "pp_division": "5,3", "pipeline_type": "gpipe",
    "default_dp_type": "zero2", "checkpoint": "1,1,1,1,1,0,0,0", "vtp": 2, "vsp": 0, "embed_sdp": None,
}  # fmt: skip


def galvatron(tmp_path, changes=(), devices=8):
    path = tmp_path / "strategy.json"
    path.write_text(json.dumps(STRATEGY | dict(changes), indent=1))
    return TARGETS["galvatron"].reader(path, devices, SIZES)


PUBLISHED = (
    "pp_deg", "tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "use_sp", "checkpoint", "global_bsz", "chunks",
    "pp_division", "pipeline_type", "default_dp_type", "vtp", "vsp",
)  # fmt: skip
"""The keys that Galvatron's own search writes, by its repository's tests of that."""


def test_a_strategy_as_galvatrons_search_writes_it_is_read_and_one_of_ours_has_all_of_its_keys(tmp_path):
    ends = {"pp_deg": 2, "pp_division": "3,5", "global_bsz": 64, "chunks": 16, "vtp": 1, "vsp": 0}
    lists = {"tp_sizes_enc": 1, "tp_consecutive_flags": 1, "dp_types_enc": 0, "use_sp": 0, "checkpoint": 0}
    kinds = {"pipeline_type": "pipedream_flush", "default_dp_type": "zero2"}
    searched = {**ends, **{key: ",".join([str(value)] * 8) for key, value in lists.items()}, **kinds}
    assert sorted(searched) == sorted(PUBLISHED)
    path = tmp_path / "galvatron_config.json"
    path.write_text(json.dumps(searched), encoding="utf-8")
    outline = TARGETS["galvatron"].reader(path, 8, SIZES).outline
    assert outline == Outline(64, 16, "1f1b", 4, 1, (3, 5), ("none",) * 2, 2)
    again = TARGETS["galvatron"].writer.write(outline.plan(example_cluster(1, 8), SIZES), SIZES)
    written = json.loads(again["galvatron_config.json"])
    assert {key: written[key] for key in PUBLISHED} == searched


def test_a_strategy_of_galvatrons(tmp_path):
    foreign = galvatron(tmp_path)
    assert foreign.outline.blocks == (5, 3)
    assert foreign.outline.remat == ("layer", "none")
    assert (foreign.outline.zero, foreign.outline.schedule) == (2, "gpipe")
    assert foreign.ignored == ()
    twos = STRATEGY["tp_sizes_enc"]
    assert foreign.priced_by == {}
    divided = galvatron(tmp_path, {"cp_sizes_enc": twos, "ep_sizes_enc": twos, "vcp": 2})
    assert divided.priced_by == {"runtime": "megatron"}
    parts = divided.outline
    assert (parts.data_parallel, parts.replicas, parts.context_parallel, parts.expert_parallel) == (2, 1, 2, 2)
    some = galvatron(tmp_path, {"checkpoint": "1,0,0,1,1,1,1,0"}).outline
    assert (some.again, some.remat_share) == ((3, 2), 3 / 5)
    assert galvatron(tmp_path, {"tp_consecutive_flags": "0,0,0,0,0,0,0,0"}, devices=4).outline.data_parallel == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pp_division": "5,2"}, "line 8: pp_division has 7 blocks in 2 stages, but must have 8 in 2"),
        ({"tp_sizes_enc": "2,2,2,2,2,2,2,4"}, "line 3: tp_sizes_enc has 2 for block 0 and 4 for block 7"),
        ({"tp_sizes_enc": "0,0,0,0,0,0,0,0"}, "line 3: tp_sizes_enc has 0, but must have at least 1"),
        ({"pp_deg": 0}, "line 2: pp_deg is 0, but must be a whole number of at least 1"),
        ({"chunks": 3}, "line 7: 3 chunks on 2 replicas must divide a batch of 8"),
        ({"checkpoint": "1,0,1,1,1,0,0,1"}, r"line 11: checkpoint has \[4, 1\] blocks of stages, but must have one"),
        ({"pipeline_type": "zb"}, "line 9: pipeline_type is 'zb', but must be pipedream_flush or gpipe"),
        ({"dp_types_enc": "0,0,0,0,0,0,0,1"}, "line 5: dp_types_enc and embed_sdp must be alike"),
        ({"pp_deg": 3}, "line 2: 3 stages of 2 tensor-parallel devices must divide"),
        ({"use_sp": "1,0,0,0,0,0,0,0"}, "use_sp has 1, but must have 0 alone"),
        ({"vtp": 1}, "line 12: vtp is 1, but must be 2: the vocabulary is planned as divided like blocks"),
        ({"vsp": 1}, "line 13: vsp is 1, but must be 0"),
        ({"tp_consecutive_flags": "1,1,1,1,1,1,1,0"}, "line 4: tp_consecutive_flags has 0, but must have 1"),
        ({"ep_sizes_enc": "3,3,3,3,3,3,3,3"}, "ep_sizes_enc is 3, but must divide the 2 data-parallel devices"),
        ({"cp_sizes_enc": "2,2,2,2,2,2,2,4"}, "cp_sizes_enc has 2 for block 0 and 4 for block 7"),
        ({"dp_types_enc": "2,2,2,2,2,2,2,2"}, "line 5: dp_types_enc has 2, but must have 0 and 1 alone"),
        ({"default_dp_type": ["zero2"]}, r"default_dp_type is \['zero2'\], but must be one of"),
        ({"search": "ours"}, "line 15: search isn't known"),
        ({"pipeline_type": [0]}, r"line 9: pipeline_type is \[0\], but must be pipedream_flush or gpipe"),
        ({"embed_sdp": [0]}, r"embed_sdp is \[0\], but must be a whole number of at least 0"),
        ({"pp_division": "5," + "9" * 5000}, r"line 8: pp_division is '5,9{97} \.\.\., but must be whole numbers"),
        ({"tp_sizes_enc": "two"}, "tp_sizes_enc is 'two', but must be whole numbers with commas between"),
    ],
)
def test_what_is_wrong_in_a_strategy_is_said_by_its_line(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        galvatron(tmp_path, changes)


CONFIG = {
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2},
    "wall_clock_breakdown": True, "bf16": {"enabled": True},
}  # fmt: skip


def deepspeed(tmp_path, changes=(), devices=4, model=SIZES):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG | dict(changes), indent=1))
    return TARGETS["deepspeed"].reader(path, devices, model)


def test_a_configuration_of_deepspeeds(tmp_path):
    foreign = deepspeed(tmp_path)
    assert (foreign.outline.num_micro_batches, foreign.outline.data_parallel, foreign.outline.zero) == (2, 4, 2)
    assert foreign.outline.blocks == (8,)
    assert foreign.ignored == ("line 7: wall_clock_breakdown",)
    whole = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    assert deepspeed(tmp_path, {"zero_optimization": whole}).outline.offload == Offload(1.0, 1.0, 1.0)
    old = {"stage": 2, "cpu_offload": True}
    assert deepspeed(tmp_path, {"zero_optimization": old}).outline.offload == Offload(1.0, 1.0)
    nothing = {"stage": 3, "offload_optimizer": None, "offload_param": {"device": "none"}}
    assert not deepspeed(tmp_path, {"zero_optimization": nothing, "fp16": None}).outline.offload.any
    assert deepspeed(tmp_path, {"zero_optimization": True}).outline.zero == 2
    groups = {"weight_quantization": {"shared_parameters": {"enabled": False}, "different_groups": {"a": {"bits": 8}}}}
    off = {"compression_training": groups, "amp": {"enabled": False}, "tensor_parallel": {"autotp_size": 1}}
    assert deepspeed(tmp_path, off).outline.data_parallel == 4
    parts = {"zero_optimization": {"stage": 3, "mics_shard_size": 2}, "sequence_parallel_size": 2}
    outline = deepspeed(tmp_path, parts).outline
    assert (outline.data_parallel, outline.context_parallel, outline.sharded, outline.batch) == (4, 2, 2, 16)
    equal = deepspeed(tmp_path, {"zero_optimization": {}, "pipeline": {"stages": 2}})
    assert equal.outline.blocks == (4, 4)


def test_what_zero_2_shares_beside_what_is_priced_is_said(tmp_path):
    less = units.size(2 * SIZES.num_parameters * 3 / 4)
    often = "ZeRO 2 is priced as ZeRO 1: it sums gradients after each of 2 micro-batches, not once"
    assert deepspeed(tmp_path).otherwise == (f"{often}, and shares them, which keeps {less} less on each device",)
    away = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert deepspeed(tmp_path, {"zero_optimization": away}).otherwise == (often,)
    assert deepspeed(tmp_path, {"zero_optimization": {"stage": 1}}).otherwise == ()
    alone = {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2}
    assert deepspeed(tmp_path, alone, devices=1).otherwise == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gradient_accumulation_steps": 3}, "line 2: train_batch_size is 16, but must be train_micro"),
        ({"pipeline": {"stages": 2}}, "line 5: zero_optimization.stage is 2, but must be 0 or 1 under a pipeline"),
        ({"pipeline": {"stages": 3}}, "3 stages must divide the 4 devices"),
        ({"pipeline": {"stages": 2, "parts": [0, 4]}, "zero_optimization": {}}, r"parts is \[0, 4\], but must be 0"),
        ({"zero_optimization": {"stage": 4}}, "stage is 4, but must be 0, 1, 2 or 3"),
        ({"train_batch_size": "auto"}, "line 2: train_batch_size is 'auto', but must be a whole number"),
        ({"zero_optimization": {"offload_param": {"device": "tpu"}}}, "offload_param.device is 'tpu'"),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "with ZeRO stage 2, but must be"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": "half"}}},
            "line 8: zero_optimization.offload_optimizer.ratio is 'half', but must be a number",
        ),
        ({"tensor_parallel": {"autotp_size": 4}}, "line 12: tensor_parallel.autotp_size is 4, but must be 1"),
        ({"tensor_parallel": {"tp": {"tp_size": 2}}}, "line 13: tensor_parallel.tp.tp_size is 2, but must be 1"),
        (
            {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}},
            "line 6: .*_size is 8, which isn't planned",
        ),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, "line 6: .* is 8, but must be a divisor of the 4"),
        ({"zero_optimization": {"stage": 2, "mics_shard_size": 2}}, "_size is 2, but must be .* with ZeRO stage 3"),
        ({"zero_optimization": {"stage": 3, "stag3_x": 8}}, "line 6: zero_optimization.stag3_x isn't known"),
        ({"optimizer": {"type": "OneBitAdam"}}, "optimizer.type is 'OneBitAdam', but must be one of AdamW, SGD"),
        ({"fp16": {"enabled": True}}, "fp16 and bf16 are both enabled"),
        ({"bf16": {"enabled": "auto"}}, "bf16.enabled is 'auto', but must be true or false"),
        ({"data_types": {"grad_accum_dtype": "fp32"}}, "grad_accum_dtype is 'fp32', but must be bf16"),
        ({"curriculum_learning": {"enabled": True}}, "curriculum_learning is .*, which isn't planned"),
        ({"compression_training": {"a": {"shared_parameters": {"enabled": True}}}}, "compression_training is"),
        ({"sequence_parallel_size": 3}, "times 3 context-parallel ones must divide the 4 devices"),
        ({"sequence_parallel_size": 2, "pipeline": {"stages": 2}, "zero_optimization": {}}, "2, but must be 1 under"),
        ({"activation_checkpointing": {"partition_activations": True}}, "partition_activations is True, which isn't"),
        ({"wall_clock": 1}, "wall_clock isn't known.* did you mean 'wall_clock_breakdown'"),
    ],
)
def test_what_is_wrong_in_a_configuration_is_said_by_its_line(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        deepspeed(tmp_path, changes)


def test_deepspeeds_precision_and_overlap_are_applied(tmp_path):
    for changes, precision in (
        ({"bf16": None}, "float32"), ({"bf16": {}, "fp16": {"enabled": True, "loss_scale": 0}}, "float16"),
        ({"bf16": {"enabled": False}, "bfloat16": {"enabled": True}}, "float32"), ({}, "bfloat16"),
    ):  # fmt: skip
        assert deepspeed(tmp_path, changes).model.precision == precision
    assert deepspeed(tmp_path).priced_by == {"overlap": "none"}
    assert deepspeed(tmp_path, {"zero_optimization": {"stage": 3}}).priced_by == {}
    assert deepspeed(tmp_path, {"zero_optimization": {"stage": 2, "overlap_comm": True}}).priced_by == {}


def test_an_imported_plan_is_estimated_and_runs_where_it_came_from(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    imported = import_plan(tmp_path / "run.sh", "megatron", example_cluster(1, 4), cache=False)
    plan = imported.result.plan
    assert plan.step_s > 0
    assert [stage.layers for stage in plan.stages] == [(0, 4), (5, 9)]
    assert (plan.priced_by.runs_on, plan.priced_by.runtime) == ("megatron", "megatron")
    assert not [note for note in plan.notes if "before plans held" in note or "the plan's" in note]
    with pytest.raises(ValueError, match="aren't the 8 devices"):
        import_plan(tmp_path / "run.sh", "megatron", example_cluster(2, 4), cache=False)
    with pytest.raises(ValueError, match="source is 'alpa', but must be one of megatron, torchtitan, deeps"):
        import_plan(tmp_path / "run.sh", "alpa", example_cluster(1, 4))


def test_files_are_written_though_nobody_reads_what_is_printed(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    write_cluster(example_cluster(1, 4), tmp_path / "cluster.json")
    read, write = os.pipe()
    os.close(read)
    words = "import run.sh --from megatron --cluster cluster.json --json plan.json --html page.html".split()
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", "alpa_dejavu", *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths},
        stdout=write, stderr=subprocess.PIPE, text=True, timeout=600,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
    assert read_plan(tmp_path / "plan.json").step_s > 0
    assert "ignored: " in (tmp_path / "page.html").read_text(encoding="utf-8")


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip


def config(tmp_path, data, sequence=None):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data, indent=1))
    return read_model(path, sequence)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"model_type": "mistral"}, {"kv_heads": 8, "feed_forward": 14336, "num_parameters": 7_241_732_096}),
        ({"model_type": "mixtral"}, {"kv_heads": 8, "num_experts": 8, "rotary_base": 1_000_000}),
        ({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8},
         {"head_size": 128, "qk_norm": True}),
        ({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8,
          "head_dim": None}, {"head_size": 64}),
        # Qwen1.5-MoE-A2.7B
        ({"model_type": "qwen2_moe"}, {"shared_gate": True, "num_parameters": 14_315_784_192}),
        ({"model_type": "gpt2"}, {"num_parameters": 124_439_808, "precision": "bfloat16"}),
        # Llama-3.1-8B, Mixtral-8x7B, Qwen2-7B, Qwen3-30B-A3B
        (LLAMA, {"num_parameters": 8_030_261_248, "sequence": 131072}),
        (LLAMA | {"model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
         {"num_parameters": 46_702_792_704}),
        (LLAMA | {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
                  "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064},
         {"num_parameters": 7_615_616_512}),
        (LLAMA | {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_key_value_heads": 4,
                  "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
                  "num_experts_per_tok": 8, "vocab_size": 151936}, {"num_parameters": 30_532_122_624}),
        (LLAMA | {"rope_theta": 500000.0}, {"rotary_base": 500000, "rotary_scaling": 1.0}),
        (LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 500000}}, {"rotary_base": 500000}),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                   "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
         {"rotary_scaling": 8.0}),
        (LLAMA | {"torch_dtype": "float32"}, {"precision": "float32"}),
        (LLAMA | {"dtype": "float16", "torch_dtype": "float32"}, {"precision": "float16"}),
        (LLAMA | {"attention_bias": True}, {"biases": "attention"}),
        (LLAMA | {"mlp_bias": True},
         {"biases": "feed_forward", "num_parameters": 8_030_261_248 + 32 * (2 * 14336 + 4096)}),
        (LLAMA | {"attention_bias": True, "mlp_bias": True}, {"biases": "all"}),
        (LLAMA | {"model_type": "mistral", "attention_bias": True}, {"biases": "none"}),
        (LLAMA | {"model_type": "qwen2_moe", "qkv_bias": False, "mlp_only_layers": [0]},
         {"biases": "none", "dense_blocks": 1, "dense_feed_forward": 14336}),
        (LLAMA | {"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": False}, {"sequence": 131072}),
        (LLAMA | {"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 32},
         {"sequence": 131072}),
        (LLAMA | {"model_type": "mistral", "sliding_window": None}, {"sequence": 131072}),
    ],
)  # fmt: skip
def test_a_config_is_read_with_the_defaults_of_its_class(tmp_path, data, expected):
    windowed = data["model_type"] == "mistral" and "sliding_window" not in data
    model = config(tmp_path, data, 4096 if windowed else None)
    assert {name: getattr(model, name) for name in expected} == expected
    assert Transformer.of_text(model.text) == model


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True},
         r"line 11: sliding_window is 512 in layers \[28, 29, 30, 31\] of 32, but must be in all, or in all but every"),
        ({"model_type": "qwen3", "sliding_window": 512,
          "layer_types": ["full_attention", "sliding_attention"] * 16}, "give --sequence 512 or fewer"),
        ({"layer_types": ["linear_attention"]}, "layer_types has other layers than"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 2}},
         "line 11: rope_scaling is .*, but must be as Llama 3.1"),
        ({"rope_scaling": {"type": "ntk", "factor": 2.0}}, "rotary_scaling_kind is 'ntk', but must be one of"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "new_width": 3}}, "rope_scaling is .*, but must be an"),
        ({"rope_theta": "big"}, "rope_theta is 'big', but must be a whole number"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype is 'float8_e4m3fn', but must be one of bfloat16"),
        ({"hidden_act": "tanh"}, "line 11: hidden_act is 'tanh', but must be one of"),
        ({"quantization_config": {"bits": 4}}, "line 11: quantization_config is .*, which isn't planned"),
        ({"num_experts_of_heads": 4}, "line 11: num_experts_of_heads isn't known, so it may change what is planned"),
        ({"kv_lora_rank": 4}, "line 11: kv_lora_rank isn't known"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers is 1, which isn't planned"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures is .*, but must be that of a ...ForCau"),
        ({"attention_bias": [1]}, r"attention_bias is \[1\], but must be true or false"),
        ({"model_type": "mpt", "attn_config": {"alibi": False}}, "attn_config has alibi False, but must have True"),
        ({"model_type": "gemma3", "text_config": 3}, "text_config is 3, but must be an object of sizes"),
        ({"model_type": "gemma_2"}, "line 2: model_type is 'gemma_2', .* did you mean 'gemma2'"),
        ({"model_type": "lama"}, "line 2: model_type is 'lama', .* did you mean 'llama'"),
        ({"hidden_size": "big"}, "line 3: hidden_size is 'big', but must be a whole number"),
        ({"num_hidden_layers": 10**7}, "num_blocks is 10000000, but must be at most 254"),
        ({"num_key_value_heads": 5}, "kv_heads is 5, but must divide num_heads, 32"),
        ({"model_type": ["llama"]}, r"model_type is \['llama'\], but must be one of"),
    ],
)  # fmt: skip
def test_what_a_config_has_and_is_not_planned_is_refused(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        config(tmp_path, LLAMA | changes)


def test_tensor_parallelism_is_priced_as_it_divides_norms_and_residuals(tmp_path):
    divided = SCRIPT.replace("--tensor-model-parallel-size 1", "--tensor-model-parallel-size 2")
    divided = divided.replace("--recompute-granularity full", "--recompute-granularity selective")
    plans = {}
    for name, text in {"whole": divided, "shared": divided.replace("--lr", "--sequence-parallel --lr")}.items():
        (tmp_path / "run.sh").write_text(text)
        imported = import_plan(tmp_path / "run.sh", "megatron", example_cluster(1, 4), attention="plain", cache=False)
        plans[name] = imported.result.plan
    # A block keeps four hidden states of 2 x 16 tokens, 64 wide, of which each device had half; 4 blocks and 2 of the
    # micro-batches in flight. The embeddings' output isn't among them.
    more = plans["whole"].stages[0].memory_bytes - plans["shared"].stages[0].memory_bytes
    assert more >= 2 * 4 * 4 * (2 * 16 * 64 * 2) / 2
    assert plans["whole"].notes[0].startswith("norms and residuals are priced whole on each tensor-parallel device")
    assert not any("sequence parallelism" in note for note in plans["shared"].notes)
    written = read_plan(write_plan(plans["whole"], tmp_path / "plan.json"))
    again = PlanEstimator(written, cluster=example_cluster(1, 4), cache=False).estimate(written).plan
    assert again.step_s == plans["whole"].step_s
    assert again.stages[0].memory_bytes == plans["whole"].stages[0].memory_bytes
    assert list(plan_changes.changes(written, plans["shared"])) == [("sequence parallel", "no", "yes")]
    halfway = plan_changes.between(written, plans["shared"], ["sequence parallel"])
    assert not list(plan_changes.changes(plans["shared"], halfway))
    for name, plan in plans.items():
        export(plan, "megatron", tmp_path / name)
        assert ("--sequence-parallel" in (tmp_path / name / "run_megatron.sh").read_text()) == (name == "shared")
        export(plan, "torchtitan", tmp_path / name)
        text = (tmp_path / name / "torchtitan_plan.py").read_text()
        assert ("enable_sequence_parallel=False" in text) == (name == "whole")


def test_sizes_as_text_are_the_sizes_again():
    for name in ("gpt-39b", "gpt2-125m"):
        size = transformer_size(name)
        assert Transformer.of_text(size.text) == size
    for text, said in (("heads=two", "heads=two, but must have a whole number"), ("hiden=8", "did you mean 'hidden'")):
        with pytest.raises(ValueError, match=said):
            transformer_size(f"transformer:{text}")
