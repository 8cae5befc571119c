"""`--optimizer`, `--precision`, `--lora`, `--frozen` and `--train-last`: what they make of a model, say and refuse."""

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.plans.plan_file import read_plan

SIZES = "transformer:hidden=512,blocks=4,heads=8,vocabulary=1024,sequence=256"
PLAN = ["plan", "--model", SIZES, "--cluster", "dgx-h100", "--batch", "16", "--micro-batches", "1", "--no-cache"]


def run(*arguments):
    return CliRunner().invoke(main, list(arguments), env={"COLUMNS": "200"})


def test_what_is_asked_for_is_in_the_plan_and_said_everywhere(tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    assert run(*PLAN, "--runtime", "megatron", "--json", str(first)).exit_code == 0
    asked = ["--optimizer", "lion", "--precision", "fp8,gather=fp8", "--lora", "rank=8,targets=all", "--frozen", "4bit"]
    planned = run(*PLAN, "--runtime", "megatron", *asked, "--json", str(second))
    size = Transformer(
        512, 4, 8, 1024, 256, optimizer="lion", precision="float8", gather="fp8", lora=8, lora_targets="all",
        frozen="4bit",
    )  # fmt: skip
    assert read_plan(second).model == size.text
    said = "by Lion; in bfloat16 with blocks' products in FP8"
    explained = run("explain", str(second))
    for output in (planned.output, explained.output):
        assert said in output
        assert "adapters of rank 8 on all products; all else is frozen, products in 4 bits" in " ".join(output.split())
    assert "trained " not in run("explain", str(first)).output
    differing = run("diff", str(first), str(second)).output
    assert [line.split()[:3] for line in differing.splitlines() if line.startswith("optimizer")] == [
        ["optimizer", "as", "usual"],
    ]  # fmt: skip
    assert "lion" in differing
    estimated = run("estimate", str(first), *asked, "--json", str(tmp_path / "c.json"))
    assert said in estimated.output
    assert read_plan(tmp_path / "c.json").model == size.text


def test_a_named_model_is_trained_so(tmp_path):
    path = tmp_path / "plan.json"
    asked = ["--model", "gpt-350m", "--cluster", "dgx-a100", "--batch", "8", "--micro-batches", "1", "--no-cache"]
    assert run("plan", *asked, "--runtime", "fsdp", "--optimizer", "adam8bit", "--json", str(path)).exit_code == 0
    size = transformer_size(read_plan(path).model)
    assert size.optimizer == "adam8bit"
    assert size.num_parameters == transformer_size("gpt-350m").num_parameters


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--optimizer", "muno"], "'muno' is not one of 'adamw', 'adam', 'sgd', 'lion'"),
        (["--lora", "rank=0"], "must have a rank of at least 1, as rank=N[,targets=attention|all]"),
        (["--lora", "targets=all"], "'targets=all' must be as rank=N[,targets=attention|all]"),
        (["--lora", "rank=8,rank=8"], "'rank=8,rank=8' must be as rank=N"),
        (["--lora", "8,targets=mlp"], "lora_targets is 'mlp', but must be one of 'attention', 'all'"),
        (["--frozen", "4bit"], "must be left out where the whole model is trained; give --lora rank=N or --train-last"),
        (["--precision", "fp9"], "precision is 'fp9', but must be one of"),
        (["--precision", "gather=fp8"], "'gather=fp8' must be as bf16|fp16|"),
        (["--precision", "bf16,gather=fp8"], "products aren't in FP8; give --precision fp8 with it"),
        (["--precision", "nvfp4"], "products are in fp4, but H100-SXM-80GB computes none in it (it has fp64, fp32"),
        (["--runtime", "alpa", "--lora", "8"], "lora is 8, but must be left out where JAX traces the model; give a"),
        (["--model", "wresnet-250m", "--optimizer", "muon"], "must be a transformer of known sizes"),
        (["--for", "torchtitan", "--lora", "8"], "its files can't say that adapters alone are trained; plan without"),
        (["--for", "maxtext", "--optimizer", "adam8bit"], "its files can't say that optimizer is 'adam8bit'"),
    ],
)  # fmt: skip
def test_what_cant_be_is_refused_in_a_line(asked, said):
    runtime = [] if "--runtime" in asked or "--for" in asked else ["--runtime", "megatron"]
    refused = run(*PLAN, *runtime, *asked)
    assert refused.exit_code in (1, 2)
    assert said in refused.output.splitlines()[-1]
