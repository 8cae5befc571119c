"""Megatron's arguments are applied, refused by their line, or without effect on model, division, memory and price."""

import dataclasses

import pytest

from alpa_dejavu.exports import TARGETS, import_plan, read_model
from alpa_dejavu.layers.models import transformer_size
from alpa_dejavu.planning import plan_model

RUN = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 1024 --max-position-embeddings 1024 --vocab-size 50304 --micro-batch-size 4 --global-batch-size 64 "
)


def read(tmp_path, more, old="", new="", devices=8):
    path = tmp_path / "run.sh"
    path.write_text(f"# a run\n{RUN.replace(old, new) if old else RUN}{more}\n")
    return TARGETS["megatron"].reader(path, devices)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", {"precision": "float32"}),
        ("--bf16", {"precision": "bfloat16", "num_parameters": 354_871_296}),
        ("--fp16", {"precision": "float16"}),
        ("--bf16 --fp8-format hybrid --fp8-recipe delayed", {"precision": "float8", "gather": ""}),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather", {"precision": "mxfp8", "gather": "fp8"}),
        ("--bf16 --fp4-format e2m1", {"precision": "nvfp4"}),
        ("--bf16 --optimizer sgd", {"optimizer": "sgd"}),
        ("--bf16 --optimizer muon --use-layer-wise-distributed-optimizer", {"optimizer": "muon"}),
        ("--bf16 --swiglu", {"feed_forward": 2688, "num_parameters": 351_756_288}),
        ("--bf16 --swiglu --ffn-hidden-size 4096", {"feed_forward": 4096}),
        ("--bf16 --group-query-attention", {"kv_heads": 1}),
        ("--bf16 --group-query-attention --num-query-groups 4", {"kv_heads": 4}),
        ("--bf16 --make-vocab-size-divisible-by 256", {"vocabulary": 50432}),
        ("--bf16 --make-vocab-size-divisible-by 64", {"vocabulary": 50304}),
        ("--bf16 --padded-vocab-size 51200", {"vocabulary": 51200}),
        ("--bf16 --position-embedding-type rope --rotary-base 500000", {"rotary_base": 500000, "rotary": True}),
        (
            "--bf16 --use-rotary-position-embeddings --no-position-embedding --use-rope-scaling",
            {"rotary": True, "rotary_base": 10000, "rotary_scaling": 8.0},
        ),
        (
            "--bf16 --num-experts 8 --disable-bias-linear --moe-layer-freq '([0]*1+[1]*23)' --moe-ffn-hidden-size 512",
            {"dense_blocks": 1, "dense_feed_forward": 4096, "feed_forward": 512, "experts_per_token": 2},
        ),
        (
            "--bf16 --num-experts 8 --disable-bias-linear --moe-shared-expert-intermediate-size 512 "
            "--moe-shared-expert-gate",
            {"shared_feed_forward": 512, "shared_gate": True},
        ),
        (
            "--bf16 --num-experts 8 --disable-bias-linear --moe-layer-freq '([0,1]*12)'",
            {"dense_blocks": 0, "experts_every": 2, "dense_feed_forward": 4096},
        ),
        (
            "--bf16 --num-experts 8 --disable-bias-linear --moe-expert-capacity-factor 1.5 "
            "--moe-pad-expert-input-to-capacity", {"capacity": 1.5},
        ),
        ("--bf16 --window-size 127,0 --window-attn-skip-freq 6", {"window": 128, "global_every": 6}),
        ("--bf16 --window-size '(511,0)' --window-attn-skip-freq '[1,1,0]*8'", {"window": 512, "global_every": 3}),
        ("--bf16 --softmax-type learnable --squared-relu", {"sinks": True, "activation": "relu2", "gated": False}),
        ("--bf16 --position-embedding-type rope --rotary-percent 0.5", {"rotated": 32}),
    ],
)  # fmt: skip
def test_what_makes_the_model_is_applied(tmp_path, more, expected):
    model = read(tmp_path, more).model
    assert {name: getattr(model, name) for name in expected} == expected


DEEPSEEK = """\
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --bf16 --use-distributed-optimizer --sequence-parallel \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --expert-model-parallel-size 16 \\
  --expert-tensor-parallel-size 1 --pipeline-model-parallel-layout "Et*15|t*16|t*16|t*14mL" \\
  --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --vocab-size 129280 \\
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --mtp-num-layers 1 \\
  --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 \\
  --v-head-dim 128 --qk-layernorm --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0 --kv-channels 128 \\
  --num-experts 256 --moe-router-topk 8 --moe-layer-freq '([0]*3+[1]*58)' --moe-ffn-hidden-size 2048 \\
  --moe-shared-expert-intermediate-size 2048 --moe-router-enable-expert-bias --moe-router-score-function sigmoid \\
  --moe-router-num-groups 8 --moe-router-group-topk 4 --disable-bias-linear --normalization RMSNorm --swiglu \\
  --untie-embeddings-and-output-weights --position-embedding-type rope --recompute-granularity selective
"""


def test_a_run_of_deepseek_as_people_write_it(tmp_path):
    (tmp_path / "run.sh").write_text(DEEPSEEK)
    foreign = TARGETS["megatron"].reader(tmp_path / "run.sh", 64)
    assert foreign.model == dataclasses.replace(transformer_size("deepseek-v3"), sequence=4096)
    outline = foreign.outline
    assert (outline.blocks, outline.replicas, outline.remat) == ((15, 16, 16, 14), 8, ("selective",) * 4)
    assert outline.degrees == {"context_parallel": 1, "expert_parallel": 16, "expert_tensor": 1, "sharded": 0}
    assert foreign.otherwise[0].startswith("--moe-router-group-topk 4 is priced as if")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--use-torch-fsdp2", {"zero": 3}),
        ("--use-custom-fsdp", {"zero": 3}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", {"zero": 2}),
        ("--checkpoint-activations", {"remat": ("layer",)}),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4", {"blocks": (4,) * 6}),
        (
            "--context-parallel-size 2 --expert-model-parallel-size 4 --num-experts 8 --disable-bias-linear "
            "--use-distributed-optimizer --num-distributed-optimizer-instances 2",
            {"data_parallel": 8, "context_parallel": 2, "expert_parallel": 4, "sharded": 4, "num_micro_batches": 4},
        ),
        (
            "--tensor-model-parallel-size 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 "
            "--num-experts 8 --disable-bias-linear", {"data_parallel": 4, "expert_parallel": 8, "expert_tensor": 1},
        ),
        ("--recompute-activations", {"remat": ("selective",)}),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3 "
            "--pipeline-model-parallel-size 2", {"remat": ("layer",) * 2, "remat_share": 3 / 12},
        ),
        ("--recompute-granularity selective --recompute-modules core_attn", {"remat": ("selective",)}),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 3", {"blocks": (3, 7, 7, 7)}),
    ],
)  # fmt: skip
def test_what_divides_the_model_is_applied(tmp_path, more, expected):
    outline = read(tmp_path, f"--bf16 {more}").outline
    assert {name: getattr(outline, name) for name in expected} == expected


EXPERTS = "--num-experts 8 --disable-bias-linear --expert-model-parallel-size 4 --moe-grouped-gemm"


@pytest.mark.parametrize(
    ("more", "otherwise"),
    [
        ("--tensor-model-parallel-size 2 --tp-comm-overlap", "--tp-comm-overlap is priced as if products waited"),
        ("--cuda-graph-impl local", "--cuda-graph-impl local is priced as kernels that are launched one by one"),
        (EXPERTS, "--moe-token-dispatcher-type allgather is priced as alltoall"),
        (f"{EXPERTS} --moe-token-dispatcher-type flex", "--moe-token-dispatcher-type flex is priced as alltoall"),
        ("--context-parallel-size 2 --cp-comm-type p2p a2a+p2p", "--cp-comm-type p2p a2a+p2p is priced as p2p: keys"),
        ("--fp8-format e4m3 --first-last-layers-bf16 --num-layers-at-end-in-bf16 3",
         "--first-last-layers-bf16: 4 blocks compute in bf16, but are priced in float8"),
        ("--num-experts 8 --disable-bias-linear", "experts are without --moe-grouped-gemm, but priced with it"),
        ("--attention-dropout 0.1 --hidden-dropout 0.0", "--attention-dropout 0.1 is priced as 0, without masks"),
        ("--no-bias-gelu-fusion", "--no-bias-gelu-fusion is priced as fused"),
    ],
)  # fmt: skip
def test_what_is_priced_otherwise_is_told(tmp_path, more, otherwise):
    (sentence,) = read(tmp_path, f"--bf16 {more}").otherwise
    assert sentence.startswith(otherwise)


def test_a_file_that_a_script_reads_in_is_told(tmp_path):
    (tmp_path / "run.sh").write_text(f"source common.sh\n{RUN}--bf16\n")
    assert TARGETS["megatron"].reader(tmp_path / "run.sh", 8, None).ignored[0] == (
        "line 1: source common.sh, whose variables aren't read"
    )


def test_products_in_pieces_are_priced_so(tmp_path):
    foreign = read(tmp_path, "--bf16 --tensor-model-parallel-size 2 --sequence-parallel --overlap-grad-reduce "
                             "--tp-comm-overlap")  # fmt: skip
    assert (foreign.priced_by, foreign.otherwise) == ({"overlap": "tensor"}, ())


def test_a_model_that_is_given_has_the_arguments_tokens_and_no_other_sizes(tmp_path):
    model = dataclasses.replace(transformer_size("gpt2-350m"), sequence=77)
    path = tmp_path / "run.sh"
    path.write_text(f"{RUN}--bf16\n")
    assert TARGETS["megatron"].reader(path, 8, model).model.sequence == 1024
    with pytest.raises(ValueError, match="line 1: --num-layers is 24, but --model has num_blocks=12; give the model"):
        TARGETS["megatron"].reader(path, 8, transformer_size("gpt2-125m"))
    path.write_text(f"{RUN}--bf16 --swiglu\n")
    with pytest.raises(ValueError, match="line 1: --swiglu is True, but --model has gated=False"):
        TARGETS["megatron"].reader(path, 8, model)


def test_embedding_and_loss_count_as_blocks(tmp_path):
    both = "--bf16 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    stages = f"{both} --pipeline-model-parallel-size 4"
    assert read(tmp_path, stages, "--num-layers 24", "--num-layers 30").outline.blocks == (7, 8, 8, 7)
    assert read(tmp_path, both).outline.blocks == (24,)
    with pytest.raises(ValueError, match=r"line 2: 30 blocks with the ends that count as blocks can't be cut into 4"):
        read(tmp_path, stages, "--num-layers 24", "--num-layers 28")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--cp-comm-type ring", "--cp-comm-type is 'ring', but must be p2p, allgather, a2a or"),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
            "--microbatch-group-size-per-virtual-pipeline-stage 4",
            "is 4, but must be 2, the stages of the pipeline",
        ),
        ("--context-parallel-size 3", "times 3 context-parallel ones must divide the 8 devices"),
        ("--expert-model-parallel-size 16", "--expert-model-parallel-size is 16, but must divide the 8 data"),
        ("--expert-tensor-parallel-size 3", "-size is 1 and --expert-tensor-parallel-size 3, but their"),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 3", "must be a divisor of the 8 data"),
        ("--window-size 128,64", "--window-size is '128,64', but must be as 'N,0'"),
        ("--window-attn-skip-freq 2", "--window-attn-skip-freq is without --window-size; add that, or leave it out"),
        ("--window-size 127,0 --window-attn-skip-freq '[1,0,0]*8'", "must be N, or a list of 24 in which every Nth"),
        ("--encoder-num-layers 4", "'--encoder-num-layers 4' is of another model"),
        ("--language-model-type x", "is of another model"),
        ("--multi-latent-attention --q-lora-rank 4", "latent attention without norms of its vectors isn't planned"),
        ("--kv-lora-rank 512", "--kv-lora-rank is without --multi-latent-attention; add that, or leave it out"),
        ("--moe-expert-capacity-factor 1.5", "is planned with --moe-pad-expert-input-to-capacity alone; give both"),
        ("--moe-router-topk 4", "--moe-router-topk is without --num-experts; add that, or leave it out"),
        ("--mtp-num-layers 25", "predicted is 25, but must be from 0 to the number of blocks"),
        ("--optimizer lion", "--optimizer is 'lion', but must be one of adam, adamw, sgd, muon, dist_muon"),
        ("--position-embedding-type rope --rotary-percent x", "--rotary-percent is 'x', but must be a number"),
        ("--position-embedding-type relative", "--position-embedding-type is 'relative', but must be"),
        ("--num-experts 8", "experts with biases aren't planned; add --disable-bias-linear"),
        ("--num-experts 8 --disable-bias-linear --moe-layer-freq 2", "--moe-layer-freq is 2, but must be 1 or as"),
        ("--num-experts 8 --disable-bias-linear --moe-layer-freq '[1]*999999999'", "--moe-layer-freq is"),
        ("--make-vocab-size-divisible-by 1000", "--make-vocab-size-divisible-by makes 51000 rows, but must"),
        ("--rampup-batch-size 4 4 64", "trains in another way"),
        ("--fp8-param-gather", "--fp8-param-gather is without --fp8-format, but must be beside it; leave it out"),
        ("--fp8-format e4m3 --fp8-recipe mine", "--fp8-recipe is 'mine', but must be one of delayed, tensorwise"),
        ("--recompute-modules mlp", "'--recompute-modules mlp' isn't planned; make it 'core_attn'"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 2", "must be 1 to be planned"),
        ("--fp16", "--fp16 is beside --bf16"),
        ("--exp-avg-dtype bf16", "'--exp-avg-dtype bf16' isn't planned; make it 'fp32'"),
        ("--deepspeed", "'--deepspeed' trains in another way"),
        ("--my-own 3", r"--my-own isn't known, so it may change what is planned.*; leave it out if it changes neither"),
        ("--num-layer 3", "did you mean 'num-layers'"),
        ("--decoder-first-pipeline-num-layers 12 --decoder-last-pipeline-num-layers 12", "there is one stage; leave"),
        ("--num-virtual-stages-per-pipeline-rank 2", "there is one stage; leave it out"),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 5",
            "--num-layers-per-virtual-pipeline-stage is 5, but must divide the blocks of a stage, 24 in 2 stages",
        ),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 5",
            "24 blocks can't be cut into 10 equal stages",
        ),
        ("--attention-backend mine", "must be one of auto, flash, fused, unfused, local"),
        ("--save a b", "'--save a b' must have one value; mend it"),
        ("--sequence-parallel 1", "'--sequence-parallel 1' must have no value; mend it"),
    ],
)
def test_what_cannot_be_priced_is_refused_by_its_line(tmp_path, more, said):
    with pytest.raises(ValueError, match=rf"run\.sh, line 2: .*{said}"):
        read(tmp_path, f"--bf16 {more}")


def test_other_programs_and_other_numbers_of_processes_are_refused(tmp_path):
    for program in ("pretrain_bert.py", "pretrain_t5.py", "tools/run_text_generation_server.py", "pretrain_vlm.py"):
        with pytest.raises(ValueError, match=r"line 2: .*trains another model than a decoder of text"):
            read(tmp_path, "--bf16", "pretrain_gpt.py", program)
    with pytest.raises(ValueError, match="line 2: 1 nodes of 4 processes aren't the 8 devices"):
        read(tmp_path, "--bf16", "--nproc_per_node 8", "--nproc_per_node 4")
    for launcher in (
        "torchrun",
        "deepspeed --num_nodes 1 --num_gpus 4",
        "mpirun -np 4 python",
        "srun --ntasks=4 python",
        "srun -N 2 --ntasks-per-node 8 python",
        "deepspeed --num_gpus 4",
        "accelerate launch --num_processes 2",
    ):
        with pytest.raises(ValueError, match="aren't the 8 devices"):
            read(tmp_path, "--bf16", "torchrun --nproc_per_node 8", launcher)
    for launcher in (
        "python", "torchrun --nproc-per-node gpu", "mpirun -np 8 python",
        "python -m torch.distributed.run --nnodes 2 --nproc_per_node 4",
    ):  # fmt: skip
        assert read(tmp_path, "--bf16", "torchrun --nproc_per_node 8", launcher).outline.data_parallel == 8
    with pytest.raises(ValueError, match=r"line 2: --nnodes .NODES isn't known: it isn't set in the script; set it"):
        read(tmp_path, "--bf16", "torchrun", "torchrun --nnodes $NODES")


def test_arrays_without_a_command_say_their_processes_too(tmp_path):
    sizes = RUN.partition(".py")[2]
    path = tmp_path / "run.sh"
    for processes, devices in (("--nproc_per_node 8", 8), ("--nproc_per_node 4 --nnodes 2 --node_rank 0", 8)):
        path.write_text(f"DISTRIBUTED=({processes})\nMODEL=({sizes} --bf16)\n")
        assert TARGETS["megatron"].reader(path, devices).outline.data_parallel == devices
    with pytest.raises(ValueError, match="line 1: 2 nodes of 4 processes aren't the 4 devices"):
        TARGETS["megatron"].reader(path, 4)


def test_without_effect_is_what_changes_nothing(tmp_path):
    more = "--bf16 --lr 1e-4 --data-path 1 a 2 b --tokenizer-type NullTokenizer --save $DIR --log-throughput --seed 1"
    names = "--lr, --data-path, --tokenizer-type, --save, --log-throughput, --seed"
    assert read(tmp_path, more).ignored == (f"line 2: {names}",)
    assert read(tmp_path, "--bf16 --attention-backend unfused").priced_by == {"attention": "plain", "overlap": "none"}
    assert read(tmp_path, "--bf16 --overlap-grad-reduce").priced_by == {}


def test_overlap_with_tensor_parallelism_is_written():
    asked = {"batch": 16, "micro_batches": 4, "tensor": 2, "runs_on": "megatron", "cache": False}
    size = transformer_size("gpt2-125m")
    for kind, written in (("tensor", True), ("gradients", False), ("none", False)):
        plan = plan_model(size.text, "dgx-h100", overlap=kind, **asked).plan
        text = TARGETS["megatron"].writer.write(plan, size)["run_megatron.sh"]
        assert ("--tp-comm-overlap" in text) == written


@pytest.mark.parametrize(
    ("precision", "state", "bytes_of_parameter"),
    [  # by Megatron-LM's description of its distributed optimizer, with d = 8 replicas
        ("--bf16", "--grad-reduce-in-bf16 --use-distributed-optimizer", 4 + 12 / 8),
        ("--bf16", "", 18), ("--bf16", "--use-distributed-optimizer", 6 + 12 / 8),
        ("--fp16", "", 20), ("--fp16", "--use-distributed-optimizer", 4 + 16 / 8),
        ("", "", 16), ("", "--use-distributed-optimizer", 8 + 8 / 8),
    ],
)  # fmt: skip
def test_states_take_as_many_bytes_as_megatron_keeps(tmp_path, precision, state, bytes_of_parameter):
    size = "--disable-bias-linear --untie-embeddings-and-output-weights"
    read(tmp_path, f"{precision} {state} {size}", "--num-layers 24", "--num-layers 2")
    imported = import_plan(tmp_path / "run.sh", "megatron", "p4d.24xlarge", cache=False)
    (stage,) = imported.result.plan.stages
    parameters = read_model(tmp_path / "run.sh").num_parameters
    assert stage.resident_bytes == pytest.approx(bytes_of_parameter * parameters, rel=2e-3)


def test_single_precision_takes_longer(tmp_path):
    steps = []
    for precision in ("--bf16", ""):
        read(tmp_path, precision)
        imported = import_plan(tmp_path / "run.sh", "megatron", "p4d.24xlarge", cache=False)
        steps.append(imported.result.plan.step_s)
    assert steps[1] > 1.5 * steps[0]
