"""Configurations of other runtimes: what is wrong in them is said by its line, and what is left aside, too."""

import json

import pytest

from alpa_dejavu.exports import TARGETS, import_plan, read_model
from alpa_dejavu.layers.models import Transformer
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
    --micro-batch-size 2 --global-batch-size=16 --use-distributed-optimizer \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
    --lr 1e-4 --attention-backend flash
"""


def megatron(tmp_path, text, devices=4, model=None):
    path = tmp_path / "run.sh"
    path.write_text(text)
    return TARGETS["megatron"].reader.read(path, devices, model)


def test_a_script_as_people_write_it(tmp_path):
    foreign = megatron(tmp_path, SCRIPT)
    outline = foreign.outline
    assert (outline.batch, outline.num_micro_batches, outline.data_parallel) == (16, 4, 2)
    assert outline.blocks == (4, 4)
    assert outline.remat == (True, True)
    assert outline.zero == 2
    assert foreign.model == SIZES
    assert foreign.ignored == ("line 18: --lr, --attention-backend",)
    assert megatron(tmp_path, SCRIPT.replace("# a run of ours", "set -euo pipefail")).ignored == foreign.ignored
    divided = SCRIPT.replace("--tensor-model-parallel-size 1", "--tensor-model-parallel-size 2")
    lacks = "there is no --sequence-parallel, but tensor parallelism is priced with it"
    assert megatron(tmp_path, divided).ignored == (*foreign.ignored, lacks)
    assert megatron(tmp_path, divided.replace("--lr", "--sequence-parallel --lr")).ignored == foreign.ignored


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("--global-batch-size=16", "--global-batch-size=9", "line 16: --global-batch-size is 9, but must be a"),
        ("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 3", "must divide the 4 devices"),
        ("--tensor-model-parallel-size 1", "--tensor-model-parallel-size x", "line 15: .* is 'x', but must be a whole"),
        ("--lr 1e-4", "--micro-batch-size 4", "line 18: --micro-batch-size is '4', but line 16 has '2'; leave one out"),
        ("--lr 1e-4", "--context-parallel-size 2", "line 18: --context-parallel-size isn't planned"),
        ("--lr 1e-4", "--pipeline-model-parallel-layout 'Et*3|t*4L'", "line 18: the layout has 7 blocks in 2 stages"),
        ("--lr 1e-4", "--pipeline-model-parallel-layout 'Et*3|t*5'", "line 18: .*must begin with the one E and end"),
        ("--nnodes 1", "--nnodes 4", "line 5: 4 nodes of 4 processes aren't the 4 devices"),
        ("--micro-batch-size 2", "", "--micro-batch-size is missing"),
        ("--vocab-size 128", "", "--vocab-size is missing.*or give --model"),
        ("# a run of ours", "echo 'open", "line 2: it can't be read: No closing quotation"),
        ("--recompute-method uniform", "--recompute-method block", "line 17: 1 blocks of each stage are"),
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
    "default_dp_type": "zero2", "checkpoint": "1,1,1,1,1,0,0,0", "search": "ours",
}  # fmt: skip


def galvatron(tmp_path, changes=(), devices=8):
    path = tmp_path / "strategy.json"
    path.write_text(json.dumps(STRATEGY | dict(changes), indent=1))
    return TARGETS["galvatron"].reader.read(path, devices, SIZES)


def test_a_strategy_of_galvatrons(tmp_path):
    foreign = galvatron(tmp_path)
    assert foreign.outline.blocks == (5, 3)
    assert foreign.outline.remat == (True, False)
    assert (foreign.outline.zero, foreign.outline.schedule) == (2, "gpipe")
    assert foreign.ignored == ("line 12: search",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pp_division": "5,2"}, "line 8: pp_division has 7 blocks in 2 stages, but must have 8 in 2"),
        ({"tp_sizes_enc": "2,2,2,2,2,2,2,4"}, "line 3: tp_sizes_enc has 2 for block 0 and 4 for block 7"),
        ({"chunks": 3}, "line 7: 3 chunks on 2 replicas must divide a batch of 8"),
        ({"checkpoint": "1,0,1,1,1,0,0,0"}, "line 11: checkpoint isn't alike in the blocks of stage 0"),
        ({"pipeline_type": "zb"}, "line 9: pipeline_type is 'zb', but must be one of pipedream_flush, gpipe"),
        ({"dp_types_enc": "0,0,0,0,0,0,0,1"}, "line 5: dp_types_enc and embed_sdp must be alike"),
        ({"pp_deg": 3}, "line 2: 3 stages of 2 tensor-parallel devices must divide"),
        ({"use_sp": "1,0,0,0,0,0,0,0"}, "use_sp has 1, but must have none"),
        ({"tp_sizes_enc": "two"}, "tp_sizes_enc is 'two', but must be whole numbers with commas between"),
    ],
)
def test_what_is_wrong_in_a_strategy_is_said_by_its_line(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        galvatron(tmp_path, changes)


CONFIG = {
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}, "wall_clock": True,
}  # fmt: skip


def deepspeed(tmp_path, changes=(), devices=4, model=SIZES):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG | dict(changes), indent=1))
    return TARGETS["deepspeed"].reader.read(path, devices, model)


def test_a_configuration_of_deepspeeds(tmp_path):
    foreign = deepspeed(tmp_path)
    assert (foreign.outline.num_micro_batches, foreign.outline.data_parallel, foreign.outline.zero) == (2, 4, 2)
    assert foreign.outline.blocks == (8,)
    aside = "line 5: that ZeRO 2 shares gradients, too; it is priced as ZeRO 1"
    assert foreign.ignored == ("line 7: wall_clock", aside)
    whole = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    assert deepspeed(tmp_path, {"zero_optimization": whole}).outline.offload == Offload(1.0, 1.0, 1.0)
    equal = deepspeed(tmp_path, {"zero_optimization": {}, "pipeline": {"stages": 2}})
    assert equal.outline.blocks == (4, 4)


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
    ],
)
def test_what_is_wrong_in_a_configuration_is_said_by_its_line(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        deepspeed(tmp_path, changes)


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
    with pytest.raises(ValueError, match="source is 'maxtext', but must be one of megatron, deepspeed, galvatron"):
        import_plan(tmp_path / "run.sh", "maxtext", example_cluster(1, 4))


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "number"),
    [  # as many parameters as published: Llama-3.1-8B, Mixtral-8x7B, Qwen2-7B, Qwen3-30B-A3B, GPT-2
        (LLAMA, 8_030_261_248),
        (
            LLAMA | {"model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
            46_702_792_704,
        ),
        (
            LLAMA | {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
                     "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064},
            7_615_616_512,
        ),
        (
            LLAMA | {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_key_value_heads": 4,
                     "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
                     "num_experts_per_tok": 8, "vocab_size": 151936},
            30_532_122_624,
        ),
        (
            {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
             "vocab_size": 50257},
            124_439_808,
        ),
    ],
)  # fmt: skip
def test_a_config_of_hugging_face_is_a_model_of_as_many_parameters(tmp_path, config, number):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    sizes = read_model(path)
    assert sizes.num_parameters == number
    assert sizes.sequence == (1024 if config["model_type"] == "gpt2" else 4096)
    assert Transformer.of_text(sizes.text) == sizes


def test_what_is_wrong_in_a_config_is_said(tmp_path):
    path = tmp_path / "config.json"
    for changes, said in (
        ({"model_type": "lama"}, "line 2: model_type is 'lama', .* did you mean 'llama'"),
        ({"hidden_size": "big"}, "line 3: hidden_size is 'big', but must be a whole number"),
        ({"num_key_value_heads": 5}, "kv_heads is 5, but must divide num_heads, 32"),
    ):
        path.write_text(json.dumps(LLAMA | changes, indent=1))
        with pytest.raises(ValueError, match=said):
            read_model(path)
