"""`plan --inference`: both phases as a table and a file, its options, and wrong usage."""

import json

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.planning.inference import Lengths, read_serving_plan

SMALL = ("--model", "gpt2-125m", "--cluster", "dgx-a100")


def run(*arguments):
    return CliRunner().invoke(main, ["plan", *map(str, arguments)])


def test_both_phases_are_shown_and_written(tmp_path):
    path, page = tmp_path / "serving.json", tmp_path / "serving.html"
    asked = "--batch", 4, "--tensor-parallel", 2, "--stages", 1, "--json", path, "--html", page
    done = run(*SMALL, "--inference", "latency", *asked)
    assert done.exit_code == 0, done.output
    for said in ("first token", "each next token", "90 % interval", "by memory", "1 stage of 2 devices, 4 replicas"):
        assert said in done.output
    plan = read_serving_plan(path)
    assert (plan.tensor_parallel, plan.stages, plan.batch, plan.prompt_tokens) == (2, 1, 4, 512)
    assert f"wrote {path}" in done.output
    assert "each next token" in page.read_text()


def test_a_config_is_served_as_it_is_traced(tmp_path):
    config, path = tmp_path / "tiny.json", tmp_path / "serving.json"
    config.write_text(json.dumps({
        "model_type": "mistral", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 512, "vocab_size": 1000, "sliding_window": 200,
    }))  # fmt: skip
    asked = "--model", config, "--cluster", "dgx-a100", "--inference", "latency", "--batch", 2, "--stages", 1
    done = run(*asked, "--prompt-tokens", 100, "--output-tokens", 28, "--tensor-parallel", 1, "--json", path)
    assert done.exit_code == 0, done.output
    plan = read_serving_plan(path)
    attention, fed = 256 * (2 * 256 + 2 * 64), 3 * 256 * 512
    assert plan.memory.weights_bytes == 2 * (4 * (attention + fed + 2 * 256) + 2 * 1000 * 256 + 256)
    assert plan.memory.cache_bytes == 2 * 4 * 64 * 2 * 128 * 2
    assert "must divide the 2 heads" in run(*asked, "--tensor-parallel", 4, "--output-tokens", 1,
                                            "--prompt-tokens", 8).output  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing option '--batch'"),
        (("--batch", 8, "--prompt-tokens", 8), "--prompt-tokens says nothing about training; give --inference, too"),
        (("--inference", "latency", "--trace", "trace.json"), "--trace says nothing about inference; leave it out"),
        (("--inference", "latency", "--schedule", "gpipe"), "--schedule says nothing about inference"),
        (("--inference", "latency", "--lora", "rank=8"), "--lora says nothing about inference; leave it out"),
        (("--inference", "latency", "--precision", "fp8"), "--precision says nothing about inference; leave it out"),
        (("--inference", "latency", "--lengths", "a.csv", "--output-tokens", 1), "--lengths has the lengths"),
        (("--inference", "price"), "'price' is not one of 'latency', 'throughput'"),
        (("--inference", "latency", "--batch", 0), "0 is not in the range x>=1"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, said):
    done = run(*SMALL, *arguments)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tensor-parallel", 5), "must divide the 12 heads of gpt2-125m"),
        (("--lengths", "none.csv"), "none.csv can't be read"),
        (("--model", "llama-7b", "--prompt-tokens", 4000), "must be at most 4096, the tokens that llama-7b may have"),
        (("--latency-limit", 1e-9, "--tensor-parallel", 1, "--stages", 1), "latency_limit_s is 1e-09, but must be at"),
    ],
)
def test_what_cannot_be_is_one_message(arguments, said):
    done = run(*SMALL, "--inference", "latency", *arguments)
    assert done.exit_code in (1, 3)
    assert said in done.output
    assert "Traceback" not in done.output


OWN = """
import jax
import jax.numpy as jnp

SHAPE = jax.ShapeDtypeStruct((256, 256), jnp.float16)

def forward(batch_size, tokens):
    def step(weights, prompts):
        for weight in weights:
            prompts = jnp.tanh(prompts @ weight)
        return prompts[:, -1]
    return step, ([SHAPE] * 8, jax.ShapeDtypeStruct((batch_size, tokens, 256), jnp.float16))

def train(batch_size, tokens):
    step, (weights, prompts) = forward(batch_size, tokens)
    return jax.grad(lambda *given: step(*given).mean()), (weights, prompts)

def one(batch_size):
    return forward(batch_size, 8)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "served_model.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)

    def runs(name, *arguments):
        return run("--model", f"served_model:{name}", "--cluster", "dgx-a100", "--inference", *arguments)

    return runs


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("train", ("--cache-bytes-per-token", 8), "'served_model:train', but must be a step without gradients"),
        ("forward", (), "cache_bytes_per_token is None, but must be given for 'served_model:forward'"),
        ("one", ("--cache-bytes-per-token", 8), "must be a function of a batch size and a number of tokens"),
        ("two", ("--cache-bytes-per-token", 8), "'served_model' has no function 'two'"),
    ],
)
def test_functions_that_cannot_be_served_are_named(own, name, arguments, said):
    done = own(name, "latency", *arguments)
    assert done.exit_code == 1
    assert said in done.output
    assert "Traceback" not in done.output


def test_options_are_handed_on(tmp_path, monkeypatch):
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("prompt,output\n64,8\n")
    asked = {}

    def serve(*given, **named):
        asked.update(named, given=given)
        raise ValueError("enough is known")

    monkeypatch.setattr("alpa_dejavu.planning.inference._serve.serve_plan", serve)
    done = run(
        *SMALL, "--inference", "throughput", "--lengths", lengths, "--hosts", 2, "--latency-limit", 0.02,
        "--ttft-limit", 1.5, "--overlap", "streams", "--runtime", "megatron", "--cache-bytes-per-token", 4096,
        "--memory-margin", 0.1,
    )  # fmt: skip
    assert done.exit_code == 1
    assert asked["given"] == ("gpt2-125m", "dgx-a100", Lengths.fixed(64, 8), 2)
    expected = {
        "objective": "throughput", "batch": None, "latency_limit_s": 0.02, "first_token_limit_s": 1.5,
        "overlap": "streams", "runtime": "megatron", "cache_bytes_per_token": 4096, "memory_margin": 0.1,
        "tensor_parallel": None, "stages": None,
    }  # fmt: skip
    assert {name: asked[name] for name in expected} == expected


def test_a_function_of_ones_own_is_served(own, tmp_path):
    done = own("forward", "latency", "--cache-bytes-per-token", 8192, "--json", "own.json")
    assert done.exit_code == 0, done.output
    plan = read_serving_plan(tmp_path / "own.json")
    assert (plan.model, plan.cache_bytes_per_token) == ("served_model:forward", 8192)
