"""Recipes of NeMo and Megatron-Bridge in YAML: the same plan as a script with Megatron's arguments, or a refusal."""

import dataclasses
import json
import re

import pytest
import yaml
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.exports import SOURCES, import_plan
from alpa_dejavu.layers.models import transformer_size
from alpa_dejavu.plans import read_plan

BRIDGE = """\
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  seq_length: 8192
  vocab_size: 128256
  normalization: RMSNorm
  gated_linear_unit: true
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  add_bias_linear: false
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  rotary_base: 500000
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: true
train: {global_batch_size: 128, micro_batch_size: 1, train_iters: 1000}
optimizer: {optimizer: adam, lr: 0.0003, use_distributed_optimizer: true}
ddp: {overlap_grad_reduce: true, overlap_param_gather: true, grad_reduce_in_fp32: true}
mixed_precision: bf16_mixed
dataset: {seq_length: 8192, random_seed: 1}
logger: {log_interval: 10}
"""
LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256 --normalization RMSNorm "
    "--swiglu --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope "
    "--rotary-base 500000 --optimizer adam "
)
PLAN = (
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 "
    "--global-batch-size 128 --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
)
NEMO_2 = """\
_target_: nemo.collections.llm.api.pretrain
_partial_: true
data:
  _target_: nemo.collections.llm.gpt.data.mock.MockDataModule
  global_batch_size: 128
  micro_batch_size: 1
  seq_length: 8192
log: {_target_: nemo.lightning.nemo_logger.NeMoLogger, name: default}
model:
  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel
  config: {_target_: nemo.collections.llm.gpt.model.llama.Llama3Config8B}
optim:
  _target_: nemo.lightning.pytorch.optim.megatron.MegatronOptimizerModule
  config:
    _target_: megatron.core.optimizer.optimizer_config.OptimizerConfig
    bf16: true
    lr: 0.0003
    optimizer: adam
    use_distributed_optimizer: true
  lr_scheduler: {_target_: nemo.lightning.pytorch.optim.lr_scheduler.CosineAnnealingScheduler, warmup_steps: 10}
trainer:
  _target_: nemo.lightning.pytorch.trainer.Trainer
  callbacks:
  - _target_: nemo.utils.exp_manager.TimingCallback
  devices: 8
  max_steps: 100
  num_nodes: 1
  plugins:
    _target_: nemo.lightning.pytorch.plugins.mixed_precision.MegatronMixedPrecision
    grad_reduce_in_fp32: true
    params_dtype: {_call_: false, _target_: torch.bfloat16}
    precision: bf16-mixed
  strategy:
    _target_: nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy
    ddp:
      _target_: megatron.core.distributed.distributed_data_parallel_config.DistributedDataParallelConfig
      overlap_grad_reduce: true
      overlap_param_gather: true
    pipeline_model_parallel_size: 2
    sequence_parallel: true
    tensor_model_parallel_size: 2
"""
NEMO_1 = """\
name: mine
trainer: {devices: 8, num_nodes: 1, precision: bf16, max_steps: 100}
exp_manager: {name: '${name}'}
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  encoder_seq_length: 8192
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  vocab_size: 128256
  bias: false
  normalization: rmsnorm
  activation: fast-swiglu
  position_embedding_type: rope
  rotary_base: 500000
  share_embeddings_and_output_weights: false
  megatron_amp_O2: true
  tokenizer: {library: sentencepiece, model: '???'}
  data: {data_prefix: ['???'], seq_length: '${model.encoder_seq_length}'}
  optim:
    name: distributed_fused_adam
    lr: 0.0001
    overlap_param_sync: true
    sched: {name: CosineAnnealing, warmup_steps: 10}
"""
TEXTS = {"megatron-bridge": BRIDGE, "nemo": NEMO_2, "nemo-1": NEMO_1}


def read(tmp_path, text, source, devices=8, model=None):
    path = tmp_path / f"{source}{'.sh' if source == 'megatron' else '.yaml'}"
    path.write_text(text)
    return SOURCES[source].reader(path, devices, model)


def changed(text, changes):
    """The recipe with fields set, or left out where they are None, by their dotted names."""
    data = yaml.safe_load(text)
    for name, value in changes.items():
        *outer, last = name.split(".")
        section = data
        for part in outer:
            section = section[int(part)] if part.isdigit() else section.setdefault(part, {})
        if value is None:
            section.pop(last)
        else:
            section[last] = value
    return yaml.safe_dump(data, sort_keys=False)


def run(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def same(tmp_path, text, source, arguments, devices=8, but=()):
    """Checks that a recipe is read as a script is."""
    recipe = read(tmp_path, text, source, devices)
    script = read(tmp_path, f"torchrun --nproc_per_node {devices} pretrain_gpt.py {arguments}\n", "megatron", devices)
    apart = dict.fromkeys(("ignored", "otherwise", "trained_by"), ())
    assert dataclasses.replace(recipe, **apart) == dataclasses.replace(script, **apart)
    assert len(recipe.otherwise) - len(but) == len(script.otherwise)
    return recipe


@pytest.mark.parametrize("name", TEXTS)
def test_a_recipe_is_read_as_the_script_of_its_arguments(tmp_path, name):
    foreign = same(tmp_path, TEXTS[name], name.removesuffix("-1"), LLAMA + PLAN)
    assert foreign.model == dataclasses.replace(transformer_size("llama-3-8b"), sequence=8192)


STRATEGY, CONFIG = "trainer.strategy.", "model.config."
BOTH = {
    "context_parallel_size": (2, "--context-parallel-size 2"),
    "virtual_pipeline_model_parallel_size": (4, "--num-virtual-stages-per-pipeline-rank 4"),
    "num_layers_in_first_pipeline_stage": (12, "--decoder-first-pipeline-num-layers 12"),
    "sequence_parallel": (False, "--sequence-parallel"),
    "pipeline_model_parallel_layout": ("Et*15|t*17L", "--pipeline-model-parallel-layout 'Et*15|t*17L'"),
}
MODEL = {
    "recompute_granularity": ("selective", "--recompute-granularity selective"),
    "window_size": ([1023, 0], "--window-size 1023,0"),
    "qk_layernorm": (True, "--qk-layernorm"),
    "attention_backend": (
        {"_target_": "megatron.core.transformer.enums.AttnBackend", "_call_": True, "_args_": [3]},
        "--attention-backend unfused",
    ),
    "cuda_graph_impl": ("local", "--cuda-graph-impl local"),
    "add_qkv_bias": (True, "--add-qkv-bias"),
}


@pytest.mark.parametrize(
    ("name", "field", "value", "arguments"),
    [
        *(("megatron-bridge", f"model.{field}", *both) for field, both in (BOTH | MODEL).items()),
        *(("nemo", STRATEGY + field, *both) for field, both in BOTH.items()),
        *(("nemo", CONFIG + field, *both) for field, both in MODEL.items()),
        *(("nemo-1", f"model.{field}", *both) for field, both in BOTH.items() if "layout" not in field),
        ("nemo-1", "model.activations_checkpoint_granularity", "selective", "--recompute-granularity selective"),
        ("nemo-1", "model.optim.grad_sync_dtype", "bf16", "--grad-reduce-in-bf16"),
        ("nemo-1", "model.fp8", True, "--fp8-format hybrid"),
        ("nemo-1", "model.optim.name", "fused_adam", ""),
        ("nemo", "trainer.strategy.fsdp", "pytorch", "--use-torch-fsdp2"),
        ("nemo", "trainer.plugins.grad_reduce_in_fp32", False, "--grad-reduce-in-bf16"),
        ("nemo", "trainer.plugins.fp8", "hybrid", "--fp8-format hybrid"),
        ("nemo", "trainer.callbacks", [{"_target_": "nemo.x.MegatronCommOverlapCallback", "tp_comm_overlap": True}],
         "--tp-comm-overlap"),
        ("megatron-bridge", "mixed_precision", "bf16_with_mxfp8_mixed",
         "--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather"),
        ("megatron-bridge", "mixed_precision", "bf16_with_fp8_current_scaling_mixed",
         "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather --first-last-layers-bf16"),
        ("megatron-bridge", "mixed_precision", {"bf16": True, "grad_reduce_in_fp32": False}, "--grad-reduce-in-bf16"),
        ("megatron-bridge", "dist", {"use_torch_fsdp2": True}, "--use-torch-fsdp2"),
        ("megatron-bridge", "ddp.use_megatron_fsdp", True,
         "--use-megatron-fsdp --data-parallel-sharding-strategy no_shard"),
        ("megatron-bridge", "optimizer.optimizer", "muon", "--optimizer muon"),
        ("megatron-bridge", "comm_overlap", {"tp_comm_overlap": True}, "--tp-comm-overlap"),
    ],
)  # fmt: skip
def test_each_field_is_read_as_its_argument(tmp_path, name, field, value, arguments):
    script = LLAMA + PLAN
    if field.endswith("sequence_parallel"):
        script = script.replace(arguments, "")
    elif "optimizer" in arguments:
        script = script.replace("--optimizer adam", arguments)
    elif value == "fused_adam":
        script = script.replace("--use-distributed-optimizer --overlap-grad-reduce", "")
    else:
        script += arguments
    text = changed(TEXTS[name], {field: value})
    sends = ("overlap_p2p_comm",) if "virtual" in field else ()
    foreign = same(tmp_path, text, name.removesuffix("-1"), script, but=sends)
    assert dataclasses.replace(foreign, ignored=()) != dataclasses.replace(
        read(tmp_path, TEXTS[name], name.removesuffix("-1")), ignored=()
    )
    assert not any("--" in sentence for sentence in foreign.otherwise)


DEEPSEEK = {
    "model": {
        "_target_": "megatron.bridge.models.deepseek.deepseek_provider.DeepSeekV3ModelProvider",
        "seq_length": 4096, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4,
        "expert_model_parallel_size": 16, "expert_tensor_parallel_size": 1, "sequence_parallel": True,
        "pipeline_model_parallel_layout": [
            ["embedding", *["decoder"] * 15], ["decoder"] * 16, ["decoder"] * 16, [*["decoder"] * 14, "mtp", "loss"],
        ],
        "moe_layer_freq": [0] * 3 + [1] * 58, "recompute_granularity": "selective",
    },
    "train": {"micro_batch_size": 1, "global_batch_size": 64},
    "mixed_precision": "bf16_mixed", "optimizer": {"use_distributed_optimizer": True},
}  # fmt: skip


def test_a_model_by_its_name_with_experts_and_latent_attention(tmp_path):
    foreign = read(tmp_path, yaml.safe_dump(DEEPSEEK), "megatron-bridge", 64)
    assert foreign.model == dataclasses.replace(transformer_size("deepseek-v3"), sequence=4096)
    outline = foreign.outline
    assert (outline.blocks, outline.replicas, outline.zero) == ((15, 16, 16, 14), 8, 2)
    assert outline.degrees == {"context_parallel": 1, "expert_parallel": 16, "expert_tensor": 1, "sharded": 0}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("llama3_8b", "llama-3-8b"), ("llama31_405b", "llama-3.1-405b"), ("llama3_70b_64k", "llama-3-70b"),
        ("nemo.collections.llm.gpt.model.qwen3.Qwen3Config30B_A3B", "qwen3-30b-a3b"),
        ("megatron.bridge.models.qwen.qwen_provider.Qwen3MoEModelProvider30B_A3B", "qwen3-30b-a3b"),
        ("nemo.collections.llm.gpt.model.nemotron.Nemotron4Config15B", "nemotron-4-15b"),
        ("nemo.collections.llm.gpt.model.mixtral.MixtralConfig8x7B", "mixtral-8x7b"),
    ],
)  # fmt: skip
def test_models_that_are_known_by_name_give_the_sizes(tmp_path, name, model):
    changes = {"model.config._target_": name} if "." in name else {"model": {"_factory_": f"{name}(seq_length=1)"}}
    changes |= {"trainer.strategy.pipeline_model_parallel_size": 1}
    sizes = read(tmp_path, changed(NEMO_2, changes), "nemo").model
    assert sizes == dataclasses.replace(transformer_size(model), sequence=8192)


def test_a_familys_class_leaves_the_sizes_to_fields(tmp_path):
    config = {
        "_target_": "nemo.collections.llm.gpt.model.llama.LlamaConfig", "num_layers": 16, "hidden_size": 2048,
        "num_attention_heads": 32, "vocab_size": 32000,
    }  # fmt: skip
    model = read(tmp_path, changed(NEMO_2, {"model.config": config}), "nemo").model
    assert (model.feed_forward, model.kv_heads, model.head_size, model.gated) == (8192, 32, 64, True)
    with pytest.raises(ValueError, match=r"line \d+: vocab_size is missing, but must be there"):
        read(tmp_path, changed(NEMO_2, {"model.config": {**config, "vocab_size": None}}), "nemo")


def test_a_model_that_is_given_wins_over_a_class_that_isnt_known(tmp_path):
    text = changed(NEMO_2, {"model.config._target_": "nemo.collections.llm.gpt.model.gemma2.Gemma2Config9B"})
    with pytest.raises(ValueError, match=r"line \d+: the sizes of '.*Gemma2Config9B' aren't known; give --model"):
        read(tmp_path, text, "nemo")
    foreign = read(tmp_path, text, "nemo", model=transformer_size("gemma-2-9b"))
    assert (foreign.model.hidden, foreign.model.sequence, foreign.outline.blocks) == (3584, 8192, (21, 21))
    with pytest.raises(ValueError, match=r"num_layers is 40, but --model has num_blocks=42; give the model of the run"):
        read(tmp_path, changed(text, {"model.config.num_layers": 40}), "nemo", model=transformer_size("gemma-2-9b"))


@pytest.mark.parametrize(
    ("name", "changes", "model", "said"),
    [
        ("nemo-1", {"model.activation": "squared-relu"}, "", r"line \d+: .*, but --model has gated=True, activation"),
        ("nemo-1", {"model.num_moe_experts": 8}, "", r"num_moe_experts is 8, but --model has num_experts=0"),
        ("nemo-1", {"model.bias": True}, "", r"line \d+: .*but --model has biases=none"),
        ("nemo", {"model.config.rotary_base": 10000}, "", "rotary_base is 10000, but --model has rotary_base=500000"),
        ("nemo", {"model.config.normalization": "LayerNorm"}, "", "is 'LayerNorm', but --model has rms_norm=True"),
        ("nemo", {"model.config.add_qkv_bias": True}, "", "add_qkv_bias is True, but --model has biases=none"),
        ("nemo", {}, "llama-3.2-1b", r"line 14: num_layers is 32, but --model has num_blocks=16"),
    ],
)  # fmt: skip
def test_a_model_that_is_given_has_no_other_sizes_than_the_fields(tmp_path, name, changes, model, said):
    source, text, given = name.removesuffix("-1"), TEXTS[name], transformer_size(model or "llama-3-8b")
    with pytest.raises(ValueError, match=said):
        read(tmp_path, changed(text, changes), source, model=given)
    alike = transformer_size("llama-3-8b")
    assert read(tmp_path, text, source, model=alike).model == dataclasses.replace(alike, sequence=8192)


def test_what_a_precision_sets_over_is_told(tmp_path):
    changes = {"mixed_precision": "bf16_with_mxfp8_mixed", "model.fp8": "hybrid", "model.fp16": True}
    foreign = read(tmp_path, changed(BRIDGE, changes), "megatron-bridge")
    assert foreign.model.precision == "mxfp8"
    assert "model: fp16 (set by mixed_precision), fp8 (set by mixed_precision)" in foreign.ignored
    with pytest.raises(ValueError, match=r"line 22: model.fp8 is 'int8', but must be"):
        read(tmp_path, changed(BRIDGE, {"model.fp8": "int8"}), "megatron-bridge")


def test_devices_are_counted(tmp_path):
    assert read(tmp_path, changed(NEMO_1, {"trainer.devices": list(range(8))}), "nemo").outline.num_devices == 8
    for devices in (-1, "auto"):
        assert read(tmp_path, changed(NEMO_1, {"trainer.devices": devices}), "nemo").outline.num_devices == 8
    for changes, said in (
        ({"trainer.devices": [0, 1]}, "1 nodes of 2 devices aren't the 8 devices"),
        ({"trainer.devices": "4"}, "1 nodes of 4 devices aren't the 8 devices"),
        ({"trainer.num_nodes": "two"}, "num_nodes is 'two', but must be a whole number of at least 1, a list, -1 or"),
    ):
        with pytest.raises(ValueError, match=rf"line \d+: .*{said}"):
            read(tmp_path, changed(NEMO_1, changes), "nemo")


def test_flags_of_one_section_that_contradict_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model.add_bias_linear is True, but model.bias in line \d+ is False; "):
        read(tmp_path, changed(NEMO_1, {"model.add_bias_linear": True}), "nemo")
    foreign = read(tmp_path, changed(BRIDGE, {"ddp.use_distributed_optimizer": False}), "megatron-bridge")
    assert foreign.outline.zero == 2
    assert "ddp: use_distributed_optimizer (set by optimizer.use_distributed_optimizer)" in foreign.ignored


def test_what_is_left_aside_is_told(tmp_path):
    ignored = read(tmp_path, BRIDGE, "megatron-bridge").ignored
    assert ignored == ("train: train_iters", "optimizer: lr", "dataset: random_seed", "logger")
    text = changed(NEMO_2, {"trainer.strategy.ddp.grad_reduce_in_fp32": False})
    foreign = read(tmp_path, text, "nemo")
    told = "trainer.strategy.ddp: grad_reduce_in_fp32 (set by trainer.plugins.grad_reduce_in_fp32)"
    assert told in foreign.ignored
    assert "runtime" not in foreign.priced_by


def test_a_kind_of_exchange_for_each_block_is_told(tmp_path):
    changes = {"model.context_parallel_size": 2, "model.cp_comm_type": ["a2a", "p2p"] * 16}
    foreign = same(tmp_path, changed(BRIDGE, changes), "megatron-bridge",
                   f"{LLAMA} {PLAN} --context-parallel-size 2 --cp-comm-type {'a2a p2p ' * 16}")  # fmt: skip
    assert foreign.otherwise == ("model.cp_comm_type a2a p2p is priced as p2p: keys and values go round a ring",)


def test_without_o2_it_is_priced_as_with_it_and_told(tmp_path):
    foreign = read(tmp_path, changed(NEMO_1, {"model.megatron_amp_O2": False}), "nemo")
    assert foreign.otherwise[0].startswith("model.megatron_amp_O2 isn't true: it is priced as if it was")


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("megatron-bridge", {"model.num_layer": 3}, r"line \d+: model.num_layer isn't known.*'num_layers'"),
        ("megatron-bridge", {"modle": {}}, r"line \d+: modle isn't known, so it may.*'model'"),
        ("megatron-bridge", {"peft": {"dim": 8}}, r"line \d+: peft {'dim': 8} isn't planned; leave it out"),
        ("megatron-bridge", {"model.is_hybrid_model": True}, r"is_hybrid_model True is of another model"),
        ("megatron-bridge", {"model.cpu_offloading": True}, r"cpu_offloading True changes what memory keeps"),
        ("megatron-bridge", {"train.rampup_batch_size": [1, 1, 1]}, r"trains in another way"),
        ("megatron-bridge", {"model.fp32_residual_connection": True}, r"model.fp32_residual_connection True changes"),
        ("megatron-bridge", {"model.sequence_parallel": "yes please"}, r"but must be true or false; mend it"),
        ("megatron-bridge", {"model.tensor_model_parallel_size": [1, 2]}, r"line \d+: model.tensor_model_parallel_"
         r"size is '1,2', but must be a whole number of at least 1"),
        ("megatron-bridge", {"model.tensor_model_parallel_size": 3}, r"stages of 3 tensor-parallel devices must"),
        ("megatron-bridge", {"dataset.seq_length": 4096}, r"dataset.seq_length is 4096, but model.seq_length in line "
         r"\d+ is 8192; leave one out"),
        ("megatron-bridge", {"mixed_precision": "int8_mixed"}, r"mixed_precision is 'int8_mixed', but must be one of"),
        ("megatron-bridge", {"train.micro_batch_size": None}, r"line 1: micro_batch_size is missing, but must be"),
        ("megatron-bridge", {"train.global_batch_size": None}, r"line 1: global_batch_size is missing, but must be"),
        ("megatron-bridge", {"mixed_precision": None}, r"line 1: mixed_precision is missing, but must be there"),
        ("nemo-1", {"trainer.precision": None}, r"trainer.precision is missing, but must be there to know"),
        ("megatron-bridge", {"model.activation_func": {"_target_": "torch.nn.functional.gelu"}}, r"activation_func is "
         r"'gelu', but must be SiLU with a gate"),
        ("megatron-bridge", {"logger": {"hook": {"_target_": "builtins.eval", "_args_": ["1"]}}}, r"line \d+: "
         r"_target_ 'builtins.eval' isn't of nemo, megatron, torch"),
        ("megatron-bridge", {"model.hidden_size": "${oc.env:HIDDEN}"}, r"isn't a value of this file; write it out"),
        ("megatron-bridge", {"model.hidden_size": "${model.nothing}"}, r"isn't a value of this file; write it out"),
        ("megatron-bridge", {"model.hidden_size": "${model.hidden_size}"}, r"isn't a value of this file; write it"),
        ("megatron-bridge", {"model": ["a", "b"]}, r"model is \['a', 'b'\], but must be a section of fields"),
        ("nemo-1", {"model.hidden_size": "${.ffn_hidden_size}", "model.ffn_hidden_size": "${.nothing}"},
         r"model.ffn_hidden_size is '\$\{.nothing\}', which isn't a value of this file"),
        ("nemo-1", {"trainer.precision": 32, "model.fp8": True}, r"model.fp8 is without bf16 beside it, .*; train in"),
        ("nemo-1", {"model.fp8": True, "model.transformer_engine": False}, r"transformer_engine is False, but must be "
         "true for products in 8 bits"),
        ("nemo-1", {"model.transformer_engine": "no"}, r"transformer_engine is 'no', but must be true or false"),
        ("nemo", {"trainer.num_nodes": 2}, r"line \d+: 2 nodes of 8 devices aren't the 8 devices of the cluster"),
        ("nemo", {"data": {"_factory_": "mock"}}, r"_factory_ 'mock' makes fields by code, which isn't run"),
        ("nemo", {"trainer.callbacks.0._target_": "mine.Hook"}, r"_target_ 'mine.Hook' isn't of nemo"),
        ("nemo", {"trainer.callbacks.0._target_": "nemo.x.Hook"}, r"callback 'Hook' isn't known, so it may change"),
        ("nemo", {"model.tensor_parallel": 2}, r"model.tensor_parallel isn't known"),
        ("nemo", {"trainer.accumulate_grad_batches": 4}, r"accumulate_grad_batches 4 isn't planned; make it 1"),
        ("nemo", {"trainer.strategy.fsdp": "deepspeed"}, r"fsdp is 'deepspeed', but must be megatron or pytorch"),
        ("nemo-1", {"defaults": ["_self_", "base"]}, r"line \d+: defaults is .*, which are other files; write out"),
        ("nemo-1", {"model.num_layers": "???"}, r"model.num_layers is '\?\?\?', but must be given; write it out"),
        ("nemo-1", {"model.optim.name": "lamb"}, r"model.optim.name is 'lamb', but must be one of"),
        ("nemo-1", {"model.transformer_block_type": "post_ln"}, r"'post_ln' isn't planned; make it 'pre_ln'"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_an_error_of_one_line_with_its_place(tmp_path, name, changes, said):
    with pytest.raises(ValueError, match=said) as error:
        read(tmp_path, changed(TEXTS[name], changes), name.removesuffix("-1"))
    assert "yaml, line " in str(error.value)
    assert "\n" not in str(error.value)
    assert "--" not in str(error.value).replace("--cluster and --hosts", "").replace("--model", "")


def test_a_recipe_for_the_other_source_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"line \d+: trainer is a section of recipes for nemo; give --from nemo$"):
        read(tmp_path, NEMO_2, "megatron-bridge")
    with pytest.raises(ValueError, match=r"line \d+: train is a section of recipes for megatron-bridge; give --from"):
        read(tmp_path, BRIDGE, "nemo")


def test_references_are_read_from_where_they_stand(tmp_path):
    fields = {"model.max_position_embeddings": 8192, "model.encoder_seq_length": "${.max_position_embeddings}",
              "model.data.seq_length": "${model.encoder_seq_length}"}  # fmt: skip
    same(tmp_path, changed(NEMO_1, fields), "nemo", LLAMA + PLAN)


def test_kernels_of_nemo_1_are_priced_or_told(tmp_path):
    plain = read(tmp_path, changed(NEMO_1, {"model.use_flash_attention": False}), "nemo")
    assert plain.priced_by["attention"] == "plain"
    flash = {"model.use_flash_attention": False, "model.transformer_engine": True}
    fused = read(tmp_path, changed(NEMO_1, flash), "nemo")
    assert "attention" not in fused.priced_by
    assert any(text.startswith("use_flash_attention false is priced as true") for text in fused.otherwise)
    engine = read(tmp_path, changed(NEMO_1, {"model.transformer_engine": False}), "nemo")
    assert any(text.startswith("model.transformer_engine false is priced as true") for text in engine.otherwise)
    dropout = read(tmp_path, changed(NEMO_1, {"model.hidden_dropout": 0.1}), "nemo")
    assert any(text.startswith("model.hidden_dropout 0.1 is priced as 0") for text in dropout.otherwise)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{BRIDGE}---\n{BRIDGE}", r"line 26: a second document begins"),
        (BRIDGE + "x: !!python/object/apply:os.system ['touch gone']\n", r"line 26: this is 'python/object"),
        (BRIDGE + "x: !include other.yaml\n", r"line 26: this is '!include'"),
        ("a: &a [1, 1]\n" + "".join(f"{c}: &{c} [*{b}, *{b}]\n" for b, c in zip("abcde", "bcdef", strict=True)),
         r"line 1: this is named by an anchor"),
        ("- model: {}\n- model: {}\n", r"must be an object"),
        ("model: {num_layers: 1\n", r"this isn't YAML"),
        ("x" * 200_000, r"must have at most"),
        ("", r"the file is empty"),
    ],
)  # fmt: skip
def test_what_is_no_recipe_is_refused_and_nothing_is_run(tmp_path, text, said):
    for source in ("nemo", "megatron-bridge"):
        with pytest.raises(ValueError, match=said) as error:
            read(tmp_path, text, source)
        assert "\n" not in str(error.value)
        assert str(error.value).endswith("give a recipe in YAML, with its fields written out")


def test_an_optimizer_is_given_where_the_file_names_none(tmp_path):
    def imported(text, optimizer):
        (tmp_path / "run.yaml").write_text(text)
        return import_plan(tmp_path / "run.yaml", "megatron-bridge", "dgx-h100", optimizer=optimizer).result.plan

    silent = changed(BRIDGE, {"optimizer.optimizer": None})
    assert ",optimizer=muon" in imported(silent, "muon").model
    assert imported(BRIDGE, "adamw").model == imported(silent, None).model
    with pytest.raises(ValueError, match="the configuration of megatron-bridge names 'adamw'; leave --optimizer out"):
        imported(BRIDGE, "sgd")
    with pytest.raises(ValueError, match="megatron can't train the model: its files can't say that optimizer is 'li"):
        imported(silent, "lion")


def test_import_leads_on_to_other_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plans = []
    for number, text in enumerate((BRIDGE, changed(BRIDGE, {"model.tensor_model_parallel_size": 4}))):
        path, plan = f"{number}.yaml", f"{number}.json"
        (tmp_path / path).write_text(text)
        run("import", path, "--from", "megatron-bridge", "--cluster", "dgx-h100", "--json", plan)
        plans.append(plan)
    first = read_plan(tmp_path / plans[0])
    assert (first.priced_by.runs_on, first.priced_by.runtime) == ("megatron", "megatron")
    assert json.loads((tmp_path / "0.json").read_text())["model"].startswith("transformer:hidden=4096")
    assert re.search(r"^tensor +2 +4 ", run("diff", *plans), re.MULTILINE)
    assert "tensor 2, pipeline 2, data 2, ZeRO-1" in run("explain", plans[0])
    run("export", plans[0], "--to", "megatron", "--output", tmp_path / "out")
    again = SOURCES["megatron"].reader(tmp_path / "out" / "run_megatron.sh", 8, None)
    assert again.outline.blocks == (16, 16)


def test_tokens_that_are_asked_for_must_be_the_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(BRIDGE)
    arguments = ["import", "run.yaml", "--from", "megatron-bridge", "--cluster", "dgx-h100", "--sequence"]
    result = CliRunner().invoke(main, [*arguments, "4096"])
    assert result.exit_code == 1
    assert "sequence is 4096, but run.yaml says 8192; leave --sequence out" in result.output
    run(*arguments, 8192)
