"""A plan as the YAML of MaxText's settings over its own defaults."""

from __future__ import annotations

from typing import Any

from alpa_dejavu.exports._outline import commented, heading
from alpa_dejavu.exports._target import Files
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import Plan

_QUANTIZATIONS = {"float8": "fp8", "mxfp8": "te_mxfp8"}
RELEASE = "MaxText 0.2.5"
AXES = ("tensor", "context", "expert", "fsdp", "data", "pipeline")
"""Axes of devices, from those that are next to each other to those that are furthest away."""


def maxtext_files(plan: Plan, outline: Outline, sizes: Transformer) -> Files:
    """Returns the YAML of MaxText's settings, which is based on its `base.yml`."""
    hosts = len({host for stage in plan.stages for host in stage.hosts})
    batch: dict[str, Any] = {
        "per_device_batch_size": outline.batch / outline.num_devices,
        "num_pipeline_microbatches": outline.num_micro_batches,
        "num_layers_per_pipeline_stage": outline.blocks[0],
        "num_pipeline_repeats": 1,
    }
    if outline.pipeline == 1:
        batch = {
            "per_device_batch_size": outline.batch / outline.num_devices / outline.num_micro_batches,
            "gradient_accumulation_steps": outline.num_micro_batches,
        }
    # MaxText refuses fp8, whose scales are of earlier steps, where gradients are accumulated.
    scales_now = sizes.precision == "float8" and batch.get("gradient_accumulation_steps", 1) > 1
    eight_bits = {"quantization": "te_fp8_currentscaling"} if scales_now else {}
    memory = {
        "remat_policy": "full" if outline.remat[0] == "layer" else "none",
        "scan_layers": outline.pipeline == 1,
        "optimizer_memory_host_offload": bool(outline.offload.optimizer),
    }
    parts = {
        "The model, by the sizes that were planned for.": model_settings(sizes) | eight_bits,
        "The plan's stages and logical mesh: ici axes are devices that one fast network joins, dcn axes join "
        "those. Data-parallel devices are on the fsdp axis at ZeRO level 3, and those of context and experts share "
        "parameters, too; else they are on the data axis, as are groups of which each has the whole.":
            _mesh(outline, plan.num_devices // hosts),
        "The plan's batch over its devices, and its micro-batches.": batch,
        "The plan's remat and offload, which MaxText has alike in all stages.": memory,
        "Yours: what follows trains on made-up tokens.": {"run_name": "planned", "dataset_type": "synthetic"},
    }  # fmt: skip
    run = "Run: python3 -m maxtext.trainers.pre_train.train maxtext_plan.yml"
    text = commented([*heading(plan, outline, RELEASE), "", run]) + "base_config: base.yml\n"
    for comment, settings in parts.items():
        text += "\n" + commented([comment]) + "".join(f"{key}: {_value(value)}\n" for key, value in settings.items())
    return {"maxtext_plan.yml": text}


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def model_settings(sizes: Transformer) -> dict[str, Any]:
    """Returns the settings that say a model's sizes and how it is trained."""
    latent, width = sizes.latent_rank > 0, sizes.feed_forward
    if sizes.shared_feed_forward % width:
        raise ValueError(
            f"shared_feed_forward is {sizes.shared_feed_forward}, but must be a multiple of {width} to be written for "
            "maxtext; give another model"
        )
    plain = "qwen3" if sizes.qk_norm else "qwen2" if sizes.biases == "qkv" else "llama2"
    with_experts = "qwen3_moe" if sizes.qk_norm else "mixtral"
    settings: dict[str, Any] = {
        "decoder_block": "gpt3" if not sizes.gated else "deepseek" if latent
        else with_experts if sizes.num_experts else plain,
        "base_emb_dim": sizes.hidden,
        "base_num_decoder_layers": sizes.num_blocks,
        "base_num_query_heads": sizes.num_heads,
        "base_num_kv_heads": sizes.kv_heads,
        "head_dim": sizes.head_size,
        "base_mlp_dim": sizes.dense_feed_forward or width,
        "mlp_activations": ["silu", "linear"] if sizes.gated else ["gelu"],
        "vocab_size": sizes.vocabulary,
        "max_target_length": sizes.sequence,
        "logits_via_embedding": sizes.tied,
        "dtype": "float32" if sizes.precision == "float32" else "bfloat16",
        **({"quantization": _QUANTIZATIONS[sizes.precision]} if sizes.precision in _QUANTIZATIONS else {}),
        **({"attention_bias": True} if sizes.biases == "qkv" else {}),
        **({"use_qk_norm": True} if sizes.qk_norm else {}),
        **({"opt_type": sizes.optimizer} if sizes.optimizer not in ("adamw", "adam") else {}),
    }
    if latent:
        settings |= {
            "attention_type": "mla", "q_lora_rank": sizes.query_rank, "kv_lora_rank": sizes.latent_rank,
            "qk_nope_head_dim": sizes.head_size, "qk_rope_head_dim": sizes.rotary_size, "v_head_dim": sizes.value_size,
            "first_num_dense_layers": sizes.dense_blocks,
            "shared_experts": sizes.shared_feed_forward // width, "routed_bias": sizes.router_bias,
        }  # fmt: skip
        settings |= {"mtp_num_layers": sizes.predicted} if sizes.predicted else {}
    settings |= {"rope_max_timescale": sizes.rotary_base} if sizes.rotary else {}
    if sizes.rotary_scaling > 1:
        settings |= {"rope_type": "yarn", "rope_factor": sizes.rotary_scaling} if latent else {
            "rope_type": "llama3.1", "rope_use_scale": True,
        }  # fmt: skip
    if sizes.num_experts:
        settings |= {
            "num_experts": sizes.num_experts, "num_experts_per_tok": sizes.experts_per_token, "base_moe_mlp_dim": width,
        }  # fmt: skip
        settings |= {"capacity_factor": sizes.capacity, "sparse_matmul": False} if sizes.capacity else {}
    return settings | ({} if sizes.rotary else {"trainable_position_size": sizes.sequence})


def _mesh(outline: Outline, per_host: int) -> dict[str, Any]:
    """Axes within hosts and between them."""
    settings: dict[str, Any] = {
        f"{net}_{name}_parallelism": 1
        for net in ("ici", "dcn")
        for name in AXES
    }
    shared = (outline.sharded or outline.data_parallel) if outline.zero == 3 else 1
    sizes = {
        "tensor": outline.tensor_parallel,
        "context": outline.context_parallel,
        "expert": outline.expert_parallel,
        "fsdp": max(shared // (outline.context_parallel * outline.expert_parallel), 1),
        "data": outline.data_parallel // shared,
        "pipeline": outline.pipeline,
    }
    for name in AXES:
        size = sizes[name]
        inside = next(n for n in range(min(size, per_host), 0, -1) if size % n == 0 and per_host % n == 0)
        settings[f"ici_{name}_parallelism"], settings[f"dcn_{name}_parallelism"] = inside, size // inside
        per_host //= inside
    settings |= {"context_parallel_strategy": "all_gather"} if outline.context_parallel > 1 else {}
    return settings | ({"shard_optimizer_over_data": True} if outline.zero == 2 else {})
