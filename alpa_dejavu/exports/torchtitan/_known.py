"""torchtitan's settings, section by section, each with what its reader does with it."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["APPLIED", "OFF", "WITHOUT_EFFECT"]

APPLIED: Final[dict[str, frozenset[str]]] = {
    "model": frozenset(("name", "flavor")),
    "optimizer": frozenset(("name",)),
    "training": frozenset(
        ("local_batch_size", "batch_size", "global_batch_size", "seq_len", "mixed_precision_param",
         "enable_cpu_offload", "compile")
    ),
    "parallelism": frozenset(
        ("data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
         "tensor_parallel_degree", "pipeline_parallel_degree", "module_fqns_per_model_part",
         "pipeline_parallel_split_points", "pipeline_parallel_layers_per_stage",
         "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers",
         "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv", "pipeline_parallel_microbatch_size")
    ),
    "compile": frozenset(("enable",)),
    "activation_checkpoint": frozenset(("mode", "selective_ac_option")),
}  # fmt: skip
OFF: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    "model": {"converters": ([], ""), "norm_type": ("rmsnorm", "fused_rmsnorm"), "use_flex_attn": (False,)},
    "optimizer": {"early_step_in_backward": (False,), "implementation": ("fused",)},
    "training": {"dtype": ("float32",), "mixed_precision_reduce": ("float32",), "deterministic": (False,)},
    "parallelism": {
        "context_parallel_degree": (1,), "expert_parallel_degree": (1,), "expert_tensor_parallel_degree": (1,),
        "enable_async_tensor_parallel": (False,), "disable_loss_parallel": (False,), "full_dtensor": (False,),
        "enable_compiled_autograd": (False,), "enable_fsdp_symm_mem": (False,), "enable_sequence_parallel": (True,),
        "pipeline_parallel_expert_parallel_overlap": (False,), "spmd_backend": ("default",),
    },
    "compile": {
        "components": (["model", "loss"],), "backend": ("inductor",), "enable_async_tensor_parallel": (False,)
    },
    "memory_estimation": {"enabled": (False,), "enable": (False,)},
    "fault_tolerance": {"enable": (False,)},
    "experimental": {"custom_import": ("",), "custom_args_module": ("",)},
    "job": {"custom_config_module": ("",)},
    "comm": {"mode": ("default",)},
    "debug": {"deterministic": (False,), "batch_invariant": (False,), "detect_anomaly": (False,)},
}  # fmt: skip
"""Settings that are refused but for these values, which leave all as it is."""
WITHOUT_EFFECT: Final[dict[str, frozenset[str] | None]] = {
    "model": frozenset(
        ("tokenizer_path", "hf_assets_path", "print_after_conversion", "tokenizer_backend")
    ),
    "optimizer": frozenset(("lr", "beta1", "beta2", "eps", "weight_decay")),
    "training": frozenset(("dataset", "dataset_path", "max_norm", "steps", "gc_freq", "gc_debug", "seed")),
    "parallelism": frozenset(("context_parallel_rotate_method", "context_parallel_load_balancer")),
    "activation_checkpoint": frozenset(
        ("per_op_sac_force_recompute_mm_shapes_by_fqns", "preserve_rng_state", "determinism_check", "debug")
    ),
    "debug": frozenset(("seed", "deterministic_warn_only", "print_config", "save_config_file")),
    **dict.fromkeys(
        ("job", "profiling", "profiler", "metrics", "lr_scheduler", "checkpoint", "validation", "validator", "comm",
         "memory_estimation", "fault_tolerance", "experimental", "float8", "mx", "quantize")
    ),
}  # fmt: skip
"""Settings that change neither the model nor its division, its memory or its price; None: all of a section. What is
said of number formats counts only where `model.converters` names them.
"""
