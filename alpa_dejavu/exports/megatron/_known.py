"""Megatron-LM's arguments, each with what its reader does with it: it is applied, refused, or without effect on a plan.

Without effect are those that change neither the model nor its division, its memory or its price: data, tokenizers,
learning rates, checkpoints, logging, and choices of kernels beside the ones that prices rest on.
"""

from __future__ import annotations

from typing import Final

from alpa_dejavu.exports.megatron._sizes import SIZE_FLAGS, SIZE_VALUES

__all__ = ["APPLIED_FLAGS", "APPLIED_VALUES", "NEUTRAL", "REFUSED", "TELLING", "WITHOUT_EFFECT"]

TELLING: Final = frozenset(
    ("num-layers", "hidden-size", "num-attention-heads", "seq-length", "micro-batch-size", "global-batch-size",
     "tensor-model-parallel-size", "pipeline-model-parallel-size", "model-parallel-size")
)  # fmt: skip
"""Arguments by which a command that trains is known."""
APPLIED_FLAGS: Final = frozenset(
    (*SIZE_FLAGS, "sequence-parallel", "use-distributed-optimizer", "use-megatron-fsdp", "use-custom-fsdp",
     "use-torch-fsdp2", "optimizer-cpu-offload", "use-precision-aware-optimizer", "recompute-activations",
     "overlap-grad-reduce", "overlap-param-gather", "account-for-embedding-in-pipeline-split",
     "account-for-loss-in-pipeline-split", "use-flash-attn", "checkpoint-activations",
     "accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16")
)  # fmt: skip
APPLIED_VALUES: Final = frozenset(
    (*SIZE_VALUES, "tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size",
     "global-batch-size", "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage",
     "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout",
     "data-parallel-sharding-strategy", "recompute-granularity", "recompute-method", "recompute-num-layers",
     "optimizer-offload-fraction", "attention-backend")
)  # fmt: skip
NEUTRAL: Final[dict[str, tuple[str, ...]]] = {
    "context-parallel-size": ("1",), "expert-model-parallel-size": ("1",), "mtp-num-layers": ("0",),
    "num-distributed-optimizer-instances": ("1",), "optimizer": ("adam", "adamw"), "rotary-percent": ("1.0", "1"),
    "window-attn-skip-freq": (), "cpu-offloading-num-layers": ("0",), "main-grads-dtype": ("fp32",),
    "main-params-dtype": ("fp32",), "exp-avg-dtype": ("fp32",), "exp-avg-sq-dtype": ("fp32",),
    "recompute-modules": ("core_attn",), "softmax-type": ("vanilla",), "rope-type": ("rope",),
    "fp8-recipe": ("delayed", "tensorwise"), "hybrid-attention-ratio": ("0.0", "0"), "hybrid-mlp-ratio": ("0.0", "0"),
    "transformer-impl": ("transformer_engine",), "glu-linear-offset": ("0.0", "0"),
    "distributed-backend": ("nccl",), "num-residual-streams": ("1",), "cuda-graph-impl": ("none",),
    "rotary-scaling-factor": ("1.0", "1"), "mscale": ("1.0", "1"), "mscale-all-dim": ("0.0", "0"),
    "DDP-impl": ("local",), "expert-tensor-parallel-size": (), "moe-expert-capacity-factor": (),
    "first-last-layers-bf16": (),
    "rotary-seq-len-interpolation-factor": ("1",), "microbatch-group-size-per-virtual-pipeline-stage": (),
    "moe-upcycling-granularity": ("1",), "hierarchical-context-parallel-sizes": (), "zero-stage": ("0",),
    "empty-unused-memory-level": ("0",), "moe-expert-parallel-size": ("1",), "ds-sequence-parallel-size": ("1",),
    "sequence-parallel-size": ("1",), "lora-rank": ("0",), "context-parallel-algo": (),
}  # fmt: skip
"""Arguments that are refused but for these values, which leave all as it is."""
_OTHERS: Final = {
    "is of another model than one of blocks alike, of which each is attention and a feed-forward layer": (
        "window-size encoder-num-layers decoder-num-layers encoder-seq-length decoder-seq-length language-model-type "
        "vision-model-type vision-pretraining vision-pretraining-type vision-backbone-type swin-backbone-type spec "
        "heterogeneous-layers-config-path heterogeneous-layers-config-encoded-json hybrid-override-pattern "
        "is-hybrid-model hybrid-layer-pattern mamba-state-dim mamba-head-dim mamba-num-groups mamba-num-heads "
        "retro-project-dir retro-add-retriever retro-encoder-layers no-rope-freq "
        "apply-residual-connection-post-layernorm squared-relu quick-geglu geglu qk-l2-norm mrope-section "
        "relative-attention-num-buckets relative-attention-max-distance activation-func-clamp-value "
        "use-legacy-models multi-latent-attention q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim "
        "v-head-dim num-channels img-h img-w patch-dim num-classes ict-head-size biencoder-projection-dim "
        "biencoder-shared-query-context-model bert-no-binary-head dino-head-hidden-size onnx-safe "
        "retriever-seq-length moe-use-upcycling attention-output-gate linear-attention-type linear-attention-freq "
        "moe-latent-size rotary-interleaved dsa-indexer-topk topk expert-interval mlp-type moe-layer-pattern "
        "residual num-layers-teacher mos use-dualpipev pipeline-model-parallel-split-rank standalone-embedding-stage "
        "train-last freeze-lm freeze-vit alibi use-alibi-position-embeddings sliding-window"
    ),
    "trains in another way than a step of Adam over the whole model": (
        "perform-rl-step rampup-batch-size step-batch-size-schedule decrease-batch-size-if-needed "
        "variable-seq-lengths sft lora-alpha curriculum-learning-legacy curriculum-learning "
        "data-efficiency-curriculum-learning random-ltd skip-train grpo-group-size "
        "use-layer-wise-distributed-optimizer deepspeed deepspeed_config deepspeed-config "
        "deepspeed-activation-checkpointing no-pipeline-parallel use-checkpoint-args "
        "use-mp-args-from-checkpoint-args yaml-cfg batch-size compression-training teacher-forward "
        "export-kd-teacher-load rl-use-sequence-packing"
    ),
    "divides the model or orders its devices in a way that isn't planned": (
        "model-parallel-size use-tp-pp-dp-mapping enable-full-sharding-in-hsdp torch-fsdp2-no-reshard-after-forward "
        "moe-extended-tp overlap-moe-expert-parallel-comm delay-wgrad-compute hybrid-context-parallel "
        "defer-embedding-wgrad-compute sharding-strategy outer-dp-sharding-strategy expert-sharding-strategy"
    ),
    "changes what memory keeps in a way that isn't priced": (
        "distribute-saved-activations fp32-residual-connection moe-layer-recompute "
        "fine-grained-activation-offloading offload-modules cpu-offloading cpu-optimizer cpu_torch_adam "
        "cpu-torch-adam fp8-param-gather fp8-param-init keep-fp8-transpose-cache fsdp-double-buffer "
        "reuse-grad-buf-for-mxfp8-param-ag activations-checkpoint-method activations-checkpoint-num-layers "
        "checkpoint-num-layers partition-activations contigious-checkpointing checkpoint-in-cpu profile-backward "
        "synchronize-each-layer remote-device use-pin-memory memory-centric-tiled-linear tile-factor "
        "megatron-fsdp-main-params-dtype megatron-fsdp-main-grads-dtype moe-pad-expert-input-to-capacity "
        "enable-zbh1-pipeline enable-zbh1-exact-semantics"
    ),
    "computes in a way that isn't priced": (
        "fp4-format fp4-param-gather fp8-hybrid fp8-e4m3 fp8-dpa fp8-mha no-fp8-wgrad deterministic-mode "
        "no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion tp-comm-overlap kitchen-config-file "
        "kitchen-recipe-number te-precision-config-file overlap-param-gather-with-optimizer-step "
        "use-ring-exchange-p2p no-overlap-p2p-communication enable-cuda-graph external-cuda-graph cuda-graph-scope "
        "no-persist-layer-norm num-layers-at-start-in-bf16 num-layers-at-end-in-bf16 moe-enable-deepep "
        "moe-flex-dispatcher-backend moe-shared-expert-overlap moe-router-num-groups moe-router-group-topk "
        "batch-invariant-mode"
    ),
}  # fmt: skip
REFUSED: Final = {name: why for why, names in _OTHERS.items() for name in names.split()}
"""Why arguments are refused, as the end of a sentence."""
WITHOUT_EFFECT: Final = {
    **dict.fromkeys(
        (
            "no-masked-softmax-fusion no-log-loss-scale-to-tensorboard log-params-norm log-num-zeros-in-grad "
            "log-throughput log-progress log-energy no-barrier-with-level-1-timing log-timers-to-tensorboard "
            "log-validation-ppl-to-tensorboard log-memory-to-tensorboard log-world-size-to-tensorboard "
            "log-learning-rate-to-tensorboard log-batch-size-to-tensorboard no-log-learnig-rate-to-tensorboard "
            "no-one-logger one-logger-async enable-one-logger log-straggler disable-straggler-on-startup "
            "run-workload-inspector-server inprocess-restart inprocess-empty-cuda-cache enable-ft-package "
            "calc-ft-timeouts muon-no-split-qkv muon-use-nesterov no-check-for-nan-in-loss-and-grad "
            "check-for-nan-in-loss-and-grad check-for-spiky-loss check-for-large-grads "
            "no-clone-scatter-output-in-embedding profile use-pytorch-profiler record-memory-history "
            "disable-gloo-process-groups use-cpu-initialization calculate-per-token-loss exit-signal-handler "
            "use-fused-weighted-squared-relu no-rope-fusion cross-entropy-loss-fusion "
            "use-torch-optimizer-for-cpu-offload overlap-cpu-optimizer-d2h-h2d no-pin-cpu-grads no-pin-cpu-params "
            "no-async-tensor-model-parallel-allreduce async-tensor-model-parallel-allreduce "
            "no-gradient-accumulation-fusion use-mcore-models manual-gc no-manual-gc-eval use-te-activation-func "
            "data-parallel-random-init init-method-xavier-uniform override-opt_param-scheduler "
            "override-opt-param-scheduler use-checkpoint-opt_param-scheduler use-checkpoint-opt-param-scheduler "
            "override-lr-scheduler use-checkpoint-lr-scheduler no-save-optim no-save-rng no-load-optim no-load-rng "
            "load-main-params-from-ckpt no-strict-fsdp-dtensor-load finetune no-initialization "
            "no-use-tokenizer-model-from-checkpoint-args exit-on-missing-checkpoint use-dist-ckpt "
            "use-persistent-ckpt-worker auto-detect-ckpt-format ckpt-convert-update-legacy-dist-opt-format "
            "ckpt-fully-parallel-save no-ckpt-fully-parallel-save async-save ckpt-fully-parallel-load "
            "ckpt-assume-constant-structure dist-ckpt-save-pre-mcore-014 dist-ckpt-optim-fully-reshardable "
            "distrib-optim-fully-reshardable-mem-efficient apply-query-key-layer-scaling no-query-key-layer-scaling "
            "attention-softmax-in-fp32 fp16-lm-cross-entropy disable-bf16-reduced-precision-matmul "
            "overlap-p2p-communication-warmup-flush no-align-grad-reduce align-grad-reduce align-param-gather "
            "no-align-param-gather ddp-pad-buckets-for-high-nccl-busbw ddp-reduce-scatter-with-fp32-accumulation "
            "ddp-average-in-collective no-scatter-gather-tensors-in-pipeline use-nccl-ub "
            "disable-symmetric-registration use-sharp init-model-with-meta-device no-gradient-reduce-div-fusion "
            "replication full-validation multiple-validation-sets test-mode legacy-tokenizer trust-remote-code "
            "no-mmap-bin-files mock-data reset-position-ids reset-attention-mask eod-mask-loss "
            "no-create-attention-mask-in-dataloader create-attention-mask-in-dataloader allow-ambiguous-pad-tokens "
            "adlr-autoresume moe-grouped-gemm moe-use-legacy-grouped-gemm moe-router-fusion moe-router-pre-softmax "
            "moe-router-enable-expert-bias moe-router-force-load-balancing moe-router-padding-for-fp8 "
            "moe-per-layer-logging moe-permute-fusion moe-apply-probs-on-input enable-experimental disable-msc "
            "openai-gelu apply-layernorm-1p no-fp8-transpose-cache lazy-mpu-init disable-tp-comm-overlap-ag "
            "disable-tp-comm-overlap-rs tp-comm-overlap-rs-dgrad disable-tp-comm-bulk-dgrad "
            "disable-tp-comm-bulk-wgrad disable-tp-comm-split-ag disable-tp-comm-split-rs disable-mamba-mem-eff-path "
            "no-data-sharding use-one-sent-docs create-moe-param-group log-optimizer-states-to-tensorboard"
        ).split(),
        0,
    ),
    **dict.fromkeys(
        (
            "tensorboard-dir tensorboard-log-interval tensorboard-queue-size timing-log-level timing-log-option "
            "wandb-project wandb-entity wandb-exp-name wandb-save-dir logging-level straggler-ctrlr-port "
            "straggler-minmax-count one-logger-project one-logger-run-name app-tag-run-name app-tag-run-version "
            "config-logger-dir attention-dropout hidden-dropout weight-decay start-weight-decay end-weight-decay "
            "weight-decay-incr-style clip-grad adam-beta1 adam-beta2 adam-eps sgd-momentum norm-epsilon "
            "layernorm-epsilon profile-step-start profile-step-end memory-snapshot-path "
            "result-rejected-tracker-filename tp-comm-overlap-cfg tp-comm-bootstrap-backend "
            "check-weight-hash-across-dp-replicas-interval train-sync-interval train-iters train-samples "
            "train-tokens log-interval exit-interval exit-duration-in-mins cross-entropy-fusion-impl dataloader-type "
            "manual-gc-interval pipeline-model-parallel-comm-backend error-injection-rate error-injection-type "
            "rerun-mode seed init-method-std embedding-init-method-std lr lr-decay-style lr-wsd-decay-style "
            "lr-decay-iters lr-decay-samples lr-decay-tokens lr-wsd-decay-samples lr-wsd-decay-iters "
            "lr-warmup-fraction lr-warmup-iters lr-warmup-samples lr-warmup-tokens lr-warmup-init warmup min-lr "
            "decoupled-lr decoupled-min-lr save save-interval persistent-save-interval save-retain-interval load "
            "non-persistent-save-interval non-persistent-ckpt-type non-persistent-global-ckpt-dir "
            "non-persistent-local-ckpt-dir non-persistent-local-ckpt-algo pretrained-checkpoint ckpt-step "
            "dist-ckpt-format ckpt-format ckpt-convert-format ckpt-convert-save dist-ckpt-strictness loss-scale "
            "initial-loss-scale min-loss-scale loss-scale-window hysteresis distributed-timeout-minutes "
            "distributed-timeout-seconds-after-init wgrad-deferral-limit ddp-num-buckets ddp-bucket-size local-rank "
            "local_rank sharp-enabled-group suggested-communication-unit-size nccl-communicator-config-path "
            "replication-jump replication-factor eval-iters eval-interval vocab-file merge-file vocab-extra-ids "
            "tokenizer-type tokenizer-model tokenizer-metadata tokenizer-name-or-path tiktoken-pattern "
            "tiktoken-num-special-tokens split data-args-path per-split-data-args-path data-cache-path data-impl "
            "sample-rate mask-prob short-seq-prob num-workers num-dataset-builder-threads object-storage-cache-path "
            "mid-level-dataset-surplus adlr-autoresume-interval moe-router-dtype moe-router-score-function "
            "moe-router-topk-scaling-factor moe-router-bias-update-rate moe-z-loss-coeff moe-input-jitter-eps "
            "moe-token-dispatcher-type moe-deepep-num-sms moe-token-drop-policy mtp-loss-scaling-factor fp8-margin "
            "fp8-interval fp8-amax-history-len fp8-amax-compute-algo muon-momentum muon-scale-mode "
            "muon-fp32-matmul-prec muon-num-ns-steps muon-tp-mode muon-extra-scale-factor cp-comm-type "
            "inprocess-max-iterations inprocess-granularity inprocess-soft-timeout inprocess-hard-timeout "
            "dump-param-to-param-group-map distributed-timeout log-level"
        ).split(),
        1,
    ),
    **dict.fromkeys(
        (
            "data-path train-data-path valid-data-path test-data-path iterations-to-skip profile-ranks "
            "high-priority-stream-groups tiktoken-special-tokens moe-router-load-balancing-type moe-aux-loss-coeff"
        ).split(),
        2,
    ),
}
"""How many values arguments without effect have: none, one, or (2) any number."""
