"""The names of fields, precisions and models in recipes, with the arguments of Megatron's that they stand for."""

from __future__ import annotations

import re
from typing import Any, Final

from alpa_dejavu.exports._model_names import named_sizes
from alpa_dejavu.exports.megatron._sizes import size_values
from alpa_dejavu.layers.models import transformer_size
from alpa_dejavu.planning.search.runtimes import RUNTIMES

NAMED: Final = {
    "num_moe_experts": "num-experts", "encoder_seq_length": "seq-length", "sequence_length": "seq-length",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "fp8": "fp8-format", "fp8_param": "fp8-param-gather", "fp8_params": "fp8-param-gather", "fp4": "fp4-format",
    "fp4_param": "fp4-param-gather", "fp8_dot_product_attention": "fp8-dpa", "fp8_multi_head_attention": "fp8-mha",
    "rope_scaling": "use-rope-scaling", "scale_factor": "rope-scaling-factor", "rotary_percentage": "rotary-percent",
    "activations_checkpoint_granularity": "recompute-granularity", "use_flash_attention": "use-flash-attn",
    "activations_checkpoint_method": "recompute-method", "ub_tp_comm_overlap": "tp-comm-overlap",
    "activations_checkpoint_num_layers": "recompute-num-layers", "name": "optimizer",
    "overlap_grad_sync": "overlap-grad-reduce", "overlap_param_sync": "overlap-param-gather",
    "overlap_p2p_comm_warmup_flush": "overlap-p2p-communication-warmup-flush",
    **{name: f"!{argument}" for name, argument in (
        ("add_bias_linear", "disable-bias-linear"), ("bias", "disable-bias-linear"),
        ("share_embeddings_and_output_weights", "untie-embeddings-and-output-weights"),
        ("grad_reduce_in_fp32", "grad-reduce-in-bf16"), ("overlap_p2p_comm", "no-overlap-p2p-communication"),
        ("bias_activation_fusion", "no-bias-swiglu-fusion"), ("bias_dropout_fusion", "no-bias-dropout-fusion"),
        ("bias_dropout_add_fusion", "no-bias-dropout-fusion"), ("persist_layer_norm", "no-persist-layer-norm"),
        ("masked_softmax_fusion", "no-masked-softmax-fusion"), ("apply_rope_fusion", "no-rope-fusion"),
        ("gradient_accumulation_fusion", "no-gradient-accumulation-fusion"), ("fp8_wgrad", "no-fp8-wgrad"),
        ("clone_scatter_output_in_embedding", "no-clone-scatter-output-in-embedding"),
        ("align_grad_reduce", "no-align-grad-reduce"), ("manual_gc_eval", "no-manual-gc-eval"),
        ("tp_comm_bulk_wgrad", "no-tp-comm-bulk-wgrad"), ("tp_comm_bulk_dgrad", "no-tp-comm-bulk-dgrad"),
        ("tp_comm_overlap_ag", "no-tp-comm-overlap-ag"), ("tp_comm_overlap_rs", "no-tp-comm-overlap-rs"),
        ("tp_comm_split_ag", "no-tp-comm-split-ag"), ("tp_comm_split_rs", "no-tp-comm-split-rs"),
        ("flight_recorder_dump_on_timeout", "no-flight-recorder-dump-on-timeout"),
        ("flight_recorder_include_only_active", "no-flight-recorder-include-only-active"),
        ("flight_recorder_extra_dump_on_exec", "no-flight-recorder-extra-dump-on-exec"),
    )},
}  # fmt: skip
"""The fields that aren't named as Megatron's arguments, with these; "!": what it is where the field is false."""
PRECISIONS: Final = {
    **dict.fromkeys(("bf16", "bf16-mixed", "bf16_mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("16", "16-mixed", "fp16_mixed", "fp16-mixed", "16-true"), "fp16"),
    **dict.fromkeys(("32", "32-true", "fp32"), ""),
}
SCALED_PRECISION = re.compile(r"(bf16|fp16)_with_(\w+)_mixed")
SCALINGS: Final[dict[str, dict[str, object]]] = {
    "fp8_delayed_scaling": {"fp8-format": "hybrid", "fp8-recipe": "delayed", "fp8-param-gather": True},
    "mxfp8": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8", "fp8-param-gather": True},
    "fp8_current_scaling": {
        "fp8-format": "hybrid", "fp8-recipe": "tensorwise", "fp8-param-gather": True, "first-last-layers-bf16": True,
        "num-layers-at-start-in-bf16": 1, "num-layers-at-end-in-bf16": 1,
    },
    "fp8_subchannel_scaling": {"fp8-format": "hybrid", "fp8-recipe": "blockwise"},
    "nvfp4": {"fp4-format": "e2m1", "fp4-param-gather": True},
}  # fmt: skip
"""What Megatron-Bridge's names of precisions stand for between "bf16_with_" and "_mixed"."""
ASIDE_CALLBACKS: Final = {
    "TimingCallback", "GarbageCollectionCallback", "ModelCheckpoint", "NsysCallback", "MemoryProfileCallback",
    "FLOPsMeasurementCallback", "SpeedMonitor", "MemoryMonitor", "OptimizerMonitor", "RuntimeEstimator",
    "PreemptionCallback", "LearningRateMonitor", "ProgressPrinter", "MegatronProgressBar", "ParameterDebugger",
    "ModelCallback", "PytorchProfilerCallback", "MegatronEnableExperimentalCallback", "StragglerDetectionCallback",
}  # fmt: skip
"""Callbacks of NeMo's without effect on the plan."""
_FAMILIES: Final = {
    **dict.fromkeys(("llama", "llama2", "llama3"), "llama-7b"), "llama31": "llama-3.1-8b", "llama32": "llama-3.2-1b",
    **dict.fromkeys(("qwen2", "qwen25"), "qwen2.5-7b"), "qwen3": "qwen3-8b", "mistral": "mistral-7b-v0.3",
    "mixtral": "mixtral-8x7b", "nemotron": "nemotron-4-15b", "phi3": "phi-3-mini",
}  # fmt: skip
"""The classes that say what kind of blocks there are, and leave the sizes to fields, with a model of each."""
_BARE: Final = ("gpt", "mla")
"""The classes whose fields say all, with Megatron's own defaults."""
_SIZES: Final = (
    "num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "kv-channels", "seq-length", "vocab-size",
    "max-position-embeddings", "group-query-attention", "num-query-groups", "num-experts", "moe-router-topk",
    "moe-ffn-hidden-size",
)  # fmt: skip


def model_arguments(name: str) -> dict[str, Any] | None:
    """Returns Megatron's arguments for what a model's class, or a recipe, says by its name; None: it isn't known.

    >>> model_arguments("nemo.collections.llm.gpt.model.llama.Llama3Config8B")["num-query-groups"]
    8
    """
    words = re.sub(r"Config|ModelProvider|MoE|[_\W]", "", name.partition("(")[0].rpartition(".")[2]).lower()
    words = re.sub(r"(?<=b)\d+k$", "", words)
    if words in _BARE:
        return {}
    sized = named_sizes("megatron", words)
    model = transformer_size(_FAMILIES.get(words, "")) if sized is None else sized
    if model is None or RUNTIMES["megatron"].why_not_written(model):
        return None
    left_out = {"max-position-embeddings", *(_SIZES if sized is None else ())}
    return {key: value for key, value in size_values(model).items() if key not in left_out}
