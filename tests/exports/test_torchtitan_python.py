"""torchtitan's configurations in Python: what is data is followed, what isn't is refused by its line; none is run."""

import re

import pytest

from alpa_dejavu.exports import TARGETS, import_plan
from alpa_dejavu.testing import example_cluster

JOBS = '''\
"""Jobs of ours."""
import copy
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig, default_adamw
from torchtitan.components.quantization import Float8LinearConverter, MXFP8LinearConverter, NVFP4LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, MemoryBudgetAC, SelectiveAC
from torchtitan.models import deepseek_v3
from torchtitan.models.llama3 import model_registry
from torchtitan.models.qwen3 import model_registry as qwen3
from torchtitan.trainer import Trainer

if TYPE_CHECKING:
    from torchtitan.protocols.model_spec import ModelSpec

NODES, GPUS = 4, 8
TOKENS = 2 * 4096
LOCAL: int = 2
USUAL = {"seq_len": TOKENS, "steps": 10_000}


def parallelism(**more):
    return ParallelismConfig(data_parallel_shard_degree=-1, **more)


def base(local=LOCAL, tensor=1) -> Trainer.Config:
    """What all others begin with."""
    assert TOKENS > 0
    spec = model_registry("8B", attn_backend="varlen")

    def process(sample):
        return sample["text"]

    return Trainer.Config(
        model_spec=spec,
        loss=CrossEntropyLoss.Config(global_vocab_size=spec.vocabulary),
        hf_assets_path=os.path.join("assets", "llama"),
        optimizer=default_adamw(lr=3e-4, betas=(0.9, 0.95)),
        training=TrainingConfig(local_batch_size=local, **USUAL),
        parallelism=ParallelismConfig(tensor_parallel_degree=tensor),
        dataloader=loader(process),
    )


def tensor():
    return base(tensor=GPUS, local=4 * LOCAL)


def pipelined() -> Trainer.Config:
    config = base()
    config.parallelism.pipeline_parallel_degree = NODES // 2
    config.parallelism.pipeline_parallel_schedule = "Interleaved1F1B"
    config.training.local_batch_size = NODES * 2
    return config


def eight_bits() -> "Trainer.Config":
    config = base()
    config.compile = CompileConfig(enable=True)
    compiled = config.compile.enable and "model" in config.compile.components
    config.model_spec = model_registry("8B", converters=[Float8LinearConverter.Config(model_compile_enabled=compiled)])
    return config


def again():
    return replace(base(), activation_checkpoint=FullAC.Config(), compile=CompileConfig(enable=True))


def kept():
    config = copy.deepcopy(base())
    config.activation_checkpoint = None
    return config


def groups() -> Trainer.Config:
    config = base()
    config.optimizer = OptimizersContainer.Config(param_groups=[
        ParamGroupConfig(pattern="emb", optimizer_name="Adam"),
        ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-4}),
    ])
    return config


def experts() -> Trainer.Config:
    config = base()
    config.model_spec = qwen3("30B-A3B", moe_comm_backend="deepep")
    config.parallelism = ParallelismConfig(expert_parallel_degree=8, data_parallel_replicate_degree=NODES)
    return config


def long() -> Trainer.Config:
    config = base(local=1)
    if TOKENS > 4096 and not LOCAL > 4:
        config.parallelism.context_parallel_degree = 4
    else:
        config.parallelism.context_parallel_degree = 1
    return config


def accumulated() -> Trainer.Config:
    config = base()
    config.training.global_batch_size = 4 * (NODES * GPUS * LOCAL)
    return config


def away() -> Trainer.Config:
    config = base()
    config.training.enable_cpu_offload = True if NODES < 8 else False
    config.parallelism.fsdp_reshard_after_forward = "never"
    return config


def whole_norms() -> Trainer.Config:
    config = tensor()
    config.parallelism.enable_sequence_parallel = False
    return config


def further() -> Trainer.Config:
    config = base()
    config.model_spec = deepseek_v3.model_registry("671B", num_mtp_layers=1)
    return config


def shared() -> Trainer.Config:
    return replace(base(), parallelism=replace(base().parallelism, data_parallel_replicate_degree=NODES))


def looped() -> Trainer.Config:
    config = base()
    spec = model_registry("8B")
    for converter in (MXFP8LinearConverter.Config(fqns=["layers"]),):
        converter.build().convert(spec.model)
    config.model_spec = spec
    return config
'''


def read(tmp_path, name, text=JOBS, devices=32):
    path = tmp_path / "jobs.py"
    path.write_text(text)
    return TARGETS["torchtitan"].reader(path, devices, config=name)


EXPECTED = {  # batch, micro-batches, data, tensor parallel, remat, ZeRO, precision, and what else differs
    "base": (64, 1, 32, 1, "selective", 3, "bfloat16", {}),
    "tensor": (32, 1, 4, 8, "selective", 3, "bfloat16", {}),
    "pipelined": (128, 8, 16, 1, "selective", 2, "bfloat16", {"blocks": (8, 9, 8, 7), "schedule": "interleaved"}),
    "eight_bits": (64, 1, 32, 1, "selective", 3, "float8", {}),
    "again": (64, 1, 32, 1, "layer", 3, "bfloat16", {}),
    "kept": (64, 1, 32, 1, "none", 3, "bfloat16", {}),
    "groups": (64, 1, 32, 1, "selective", 3, "bfloat16", {}),
    "experts": (64, 1, 32, 1, "selective", 3, "bfloat16", {"expert_parallel": 8, "sharded": 8}),
    "long": (8, 1, 32, 1, "selective", 3, "bfloat16", {"context_parallel": 4, "replicas": 8}),
    "accumulated": (256, 4, 32, 1, "selective", 3, "bfloat16", {}),
    "away": (64, 1, 32, 1, "selective", 2, "bfloat16", {}),
    "whole_norms": (32, 1, 4, 8, "selective", 3, "bfloat16", {}),
    "further": (64, 1, 32, 1, "selective", 3, "bfloat16", {"num_blocks": 61}),
    "shared": (64, 1, 32, 1, "selective", 3, "bfloat16", {"sharded": 8}),
    "looped": (64, 1, 32, 1, "selective", 3, "mxfp8", {}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_functions_are_followed(tmp_path, name):
    foreign = read(tmp_path, name)
    outline, model, (*expected, more) = foreign.outline, foreign.model, EXPECTED[name]
    assert [
        outline.batch, outline.num_micro_batches, outline.data_parallel, outline.tensor_parallel, outline.remat[0],
        outline.zero, model.precision,
    ] == expected  # fmt: skip
    assert {key: getattr(outline, key) for key in more} == more
    assert model.sequence == 8192
    assert outline.offload.any == (name == "away")
    assert foreign.sequence_parallel == (name != "whole_norms")
    assert (foreign.priced_by == {}) == (name in ("eight_bits", "again"))
    assert model.predicted == (name == "further")
    assert ("deepep is priced as standard" in " ".join(foreign.otherwise)) == (name == "experts")


def test_what_has_no_effect_is_told_with_its_line(tmp_path):
    lines = JOBS.splitlines()
    told = " ".join(read(tmp_path, "base").ignored)
    for name, text in (("loss", "loss="), ("dataloader", "dataloader="), ("training.steps", "**USUAL")):
        (line,) = [n for n, row in enumerate(lines, 1) if text in row and "def " not in row]
        assert re.search(rf"line {line}: [^:]*{name}\b", told), (name, line, told)


def test_one_of_several_has_to_be_named(tmp_path):
    with pytest.raises(ValueError, match=r"has 15 functions .* give --config with one of base, tensor, .*, looped$"):
        read(tmp_path, "")
    with pytest.raises(ValueError, match=r"config is 'tensr', but must be a function of .* did you mean 'tensor'"):
        read(tmp_path, "tensr")
    with pytest.raises(ValueError, match="config is 'parallelism', but must be"):
        read(tmp_path, "parallelism")
    plan = import_plan(
        tmp_path / "jobs.py", "torchtitan", example_cluster(4, 8), config="tensor", cache=False
    ).result.plan
    assert (plan.batch, plan.stages[0].logical_mesh) == (32, (4, 8))
    with pytest.raises(ValueError, match="config is 'tensor', but must be left out for megatron"):
        import_plan(tmp_path / "jobs.py", "megatron", example_cluster(4, 8), config="tensor")
    (tmp_path / "job.toml").write_text("[model]\n")
    with pytest.raises(ValueError, match=r"config is 'tensor', but must be left out for .*job.toml"):
        import_plan(tmp_path / "job.toml", "torchtitan", example_cluster(4, 8), config="tensor")


LINE = JOBS.splitlines().index("    config.parallelism.pipeline_parallel_degree = NODES // 2") + 1
LAST = "    config.training.local_batch_size = NODES * 2\n"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("config.parallelism.tensor_parallel_degree = int(os.environ['TP'])", r"'int\(...\)' is decided as it runs"),
        ("config.training.local_batch_size = 10 ** 9", r"'10 \*\* 9' is decided as it runs; write it out"),
        ("config.training.local_batch_size = LOCAL / 0", "'LOCAL / 0' is decided as it runs"),
        ("config.training.local_batch_size = 9 * [1] * 10**12", "is decided as it runs"),
        ("config.parallelism = choose(NODES)", "parallelism isn't made by one of TrainingConfig"),
        ("config.parallelism = parallelism(tensor_parallel_degree=2)", "parallelism takes other arguments"),
        ("config.parallelism = ParallelismConfig(*several)", "it has arguments without names; name them"),
        ("config.parallelism.tensor_paralel_degree = 2", "isn't known, so it may change what is planned; did you mean"),
        ("config.parallelism.spmd_backend = 'full_dtensor'", "'full_dtensor', which isn't planned"),
        ("config.training.dtype = 'bfloat16'", "training.dtype is 'bfloat16', which isn't planned"),
        ("config.activation_checkpoint = MemoryBudgetAC.Config()", "mode is 'memory_budget', but must be one of none"),
        ("config.model_spec = model_registry('9B')", "the sizes of 'llama3' '9B' aren't known; give --model"),
        ("config.model_spec = model_registry(os.environ['SIZE'])", "is decided as it runs"),
        ("config.model_spec = model_registry('8B', converters=found)", "the converters of the model are decided"),
        ("config.model_spec = model_registry('8B', converters=[NVFP4LinearConverter.Config()])", "must be one of flo"),
        ("config.optimizer = OptimizersContainer.Config(param_groups=[ParamGroupConfig(optimizer_name='Muon'), "
         "ParamGroupConfig(optimizer_name='AdamW')])", "optimizers are AdamW and Muon, but must be one to be planned"),
        ("config.optimizer = OptimizersContainer.Config(param_groups=[ParamGroupConfig(optimizer_name='Muon')])",
         "optimizer.name is 'Muon', but must be Adam or AdamW"),
        ("config.optimizer = OptimizersContainer.Config(param_groups=mine())", "optimizer of param_groups is decided"),
        ("config.override = OverrideConfig(imports=['ours.fused'])", "override.imports is .* which isn't planned"),
        ("config.validators = 1", "validators isn't known"),
        ("tuned = tune([config.parallelism])", "it may change what is planned; leave it out"),
        ("tuned = tune({'a': [config]})", "it may change what is planned; leave it out"),
        ("x = [setattr(s, 'seq_len', 3) for s in (config.training,)]", "it may change what is planned; leave it out"),
        ("x = (lambda s: setattr(s, 'seq_len', 3))(config.training)", "it may change what is planned; leave it out"),
        ("config.parallelism['x'], n = 4, 2", "it may change what is planned; leave it out"),
        ("tuned = tune(config)", "it may change what is planned; leave it out"),
        ("tuned = tune(of=config.parallelism)", "it may change what is planned; leave it out"),
        ("config.training.local_batch_size += 1", "it may change what is planned; leave it out"),
        ("config.training.update(local_batch_size=3)", "it may change what is planned; leave it out"),
        ("setattr(config.training, 'seq_len', 3)", "it may change what is planned; leave it out"),
        ("for n in range(3): config.training.local_batch_size = n", "it may change what is planned; leave it out"),
        ("if os.environ.get('LONG'): config.training.seq_len = 3", r"whether 'os.environ.get\(...\)' holds is decided"),
        ("return pipelined()", "functions call each other more than 30 deep; write it out"),
        ("return config.training", "doesn't return a Trainer.Config that is written out"),
    ],
)  # fmt: skip
def test_what_is_no_data_is_refused_by_its_line(tmp_path, statement, said):
    assert JOBS.count(LAST) == 1
    line = JOBS[: JOBS.index(LAST)].count("\n") + 2
    with pytest.raises(ValueError, match=said) as error:
        read(tmp_path, "pipelined", JOBS.replace(LAST, f"{LAST}    {statement}\n"))
    assert f"jobs.py, line {line}: " in str(error.value) or "more than 30 deep" in said or "doesn't return" in said
    assert "\n" not in str(error.value)


def test_several_fields_are_set_at_once(tmp_path):
    statement = "    (config.parallelism.tensor_parallel_degree, (n, m)), config.training.seq_len = (4, (1, 2)), 1024\n"
    foreign = read(tmp_path, "pipelined", JOBS.replace(LAST, LAST + statement))
    assert (foreign.outline.tensor_parallel, foreign.model.sequence) == (4, 1024)


def test_a_module_that_is_too_much_is_refused_soon(tmp_path):
    doubled = "".join(f"def f{n}(): return [f{n - 1}(), f{n - 1}()]\n" for n in range(1, 28))
    text = JOBS.replace(LAST, f"{LAST}    config.training.seq_len = f27()\n") + f"def f0(): return 1\n{doubled}"
    with pytest.raises(ValueError, match=r"line \d+: it has more parts than are followed; write it out"):
        read(tmp_path, "pipelined", text)
    assert not list(tmp_path.glob("*.pyc"))
    wide = "lambda: [" + "1," * 20_000 + "]"
    calls = "".join(f"def f{n}():\n    f{n - 1}()\n    f{n - 1}()\n" for n in range(1, 12))
    with pytest.raises(ValueError, match=r"line \d+: it has more parts than are followed; write it out"):
        read(tmp_path, "pipelined", JOBS.replace(LAST, f"{LAST}    f11()\n") + f"def f0():\n    x = {wide}\n{calls}")


def test_nothing_is_run(tmp_path):
    mark = tmp_path / "mark"
    with pytest.raises(ValueError, match="it may change what is planned"):
        read(tmp_path, "base", f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n{JOBS}")
    read(tmp_path, "base", f"{JOBS}\nMARK = __import__('pathlib').Path({str(mark)!r}).touch()\n")
    assert not mark.exists()
