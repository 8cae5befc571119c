"""The keys of DeepSpeed's JSON, section by section, each with what its reader does with it."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["APPLIED", "OFF", "WITHOUT_EFFECT", "is_off"]

APPLIED: Final[dict[str, frozenset[str]]] = {
    "": frozenset(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization",
         "pipeline", "bf16", "bfloat16", "fp16", "activation_checkpointing", "optimizer", "data_types",
         "tensor_parallel", "communication_data_type")
    ),
    "zero_optimization": frozenset(
        ("stage", "offload_optimizer", "offload_param", "cpu_offload", "cpu_offload_param", "cpu_offload_params",
         "overlap_comm")
    ),
    "offload_optimizer": frozenset(("device", "ratio")),
    "offload_param": frozenset(("device", "ratio")),
    "pipeline": frozenset(("stages", "parts", "recompute", "activation_checkpoint_interval", "partition")),
    "bf16": frozenset(("enabled",)),
    "fp16": frozenset(("enabled",)),
    "activation_checkpointing": frozenset(("cpu_checkpointing",)),
    "optimizer": frozenset(("type",)),
    "data_types": frozenset(("grad_accum_dtype",)),
}  # fmt: skip
"""By sections, of which "" is the whole file."""
OFF: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    "": dict.fromkeys(
        ("amp", "sparse_attention", "sparse_gradients", "progressive_layer_drop", "curriculum_learning",
         "data_efficiency", "compression_training", "elasticity", "hybrid_engine", "quantize_training", "eigenvalue",
         "autotuning", "torch_autocast", "compile", "domino", "graph_harvesting", "mesh_param", "moe", "zenflow"),
        (),
    ) | {"sequence_parallel_size": (1,)},
    "zero_optimization": {
        "zero_hpz_partition_size": (0, 1), "mics_shard_size": (-1, 0), "mics_hierarchical_params_gather": (),
        "zero_quantized_weights": (), "zero_quantized_nontrainable_weights": (), "zero_quantized_gradients": (),
        "zeropp_loco_param": (), "zenflow": (), "allgather_sequential": (), "stage3_allgather_sequential": (),
    },
    "offload_optimizer": {"super_offload": ()},
    "bf16": {"bf16_master_weights_and_grads": (), "bf16_optimizer_states": (), "bf16_optimizer_states_only": ()},
    "fp16": {"fp16_master_weights_and_grads": ()},
    "activation_checkpointing": {"partition_activations": ()},
}  # fmt: skip
"""Keys that are refused unless they are off: null, false, not enabled, or one of these values."""
_STAGE_3 = (
    "prefetch_bucket_size param_persistence_threshold model_persistence_threshold max_live_parameters "
    "max_reuse_distance gather_16bit_weights_on_model_save gather_fp16_weights_on_model_save "
    "module_granularity_threshold use_all_reduce_for_fetch_params partition_stream_chunk_size"
).split()
WITHOUT_EFFECT: Final[dict[str, frozenset[str]]] = {
    "": frozenset(
        "steps_per_print wall_clock_breakdown gradient_clipping scheduler zero_allow_untested_optimizer "
        "zero_force_ds_cpu_optimizer prescale_gradients gradient_predivide_factor dump_state memory_breakdown "
        "flops_profiler tensorboard wandb comet csv_monitor comms_logger monitor_config checkpoint "
        "dataloader_drop_last disable_allgather nebula aio vocabulary_size use_data_before_expert_parallelism "
        "seq_parallel_communication_data_type timers allgather_size seed".split()
    ),
    "zero_optimization": frozenset(
        (
            *"contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce "
            "allgather_partitions allgather_bucket_size load_from_fp32_weights elastic_checkpoint sub_group_size "
            "cpu_offload_use_pin_memory ignore_unused_parameters legacy_stage1 round_robin_gradients "
            "memory_efficient_linear pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings "
            "enable_sanity_checks save_muon_momentum_buffer_in_memory leaf_module".split(),
            *_STAGE_3,
            *(f"stage3_{name}" for name in _STAGE_3),
        )
    ),
    "offload_optimizer": frozenset(
        "pin_memory buffer_count fast_init nvme_path pipeline_read pipeline_write pipeline buffer_size "
        "cpuadam_cores_perc".split()
    ),
    "offload_param": frozenset(("pin_memory", "buffer_count", "buffer_size", "max_in_cpu", "nvme_path")),
    "pipeline": frozenset(("seed_layers", "pipe_partitioned", "grad_partitioned", "use_reentrant")),
    "bf16": frozenset(("immediate_grad_update", "check_grad_overflow")),
    "fp16": frozenset(
        "auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis min_loss_scale "
        "fused_mode".split()
    ),
    "activation_checkpointing": frozenset(
        "number_checkpoints contiguous_memory_optimization synchronize_checkpoint_boundary profile".split()
    ),
    "optimizer": frozenset(("params", "legacy_fusion", "adam_w_mode")),
    "data_types": frozenset(),
}
"""Keys that change neither the model nor its division, its memory or its price."""


def is_off(value: Any) -> bool:
    """Returns whether a feature's value switches it off: null, false, nothing, or groups that aren't enabled.

    >>> is_off({"weights": {"shared_parameters": {"enabled": False}, "different_groups": {"a": {"bits": 8}}}})
    True
    """
    if not isinstance(value, dict):
        return value is None or value is False
    for key in ("enabled", "deepcompile", "shared_parameters"):
        if key in value:
            return is_off(value[key])
    return all(is_off(inner) for inner in value.values())
