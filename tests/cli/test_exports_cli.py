"""Plans for other runtimes on the command line: planned for one, written, read again, and what would be faster."""

import json

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.plans import read_plan

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 32,
}  # fmt: skip


def command(*words):
    return CliRunner().invoke(main, list(map(str, words)))


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_a_plan_travels_there_and_back(config, tmp_path):
    plan, mine, better = (tmp_path / name for name in ("plan.json", "mine.json", "better.json"))
    where = ("--cluster", "p3.8xlarge", "--no-cache")
    made = command(
        "plan", "--model", config, "--batch", "16", "--micro-batches", "4", "--schedule", "1f1b", "--for", "megatron",
        "--json", plan, *where,
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    assert "megatron can run it" in " ".join(made.output.split())
    written = command("export", plan, "--to", "megatron", "--output", tmp_path / "out")
    assert written.exit_code == 0, written.output
    assert "Megatron-Core 0.19" in written.output
    script = tmp_path / "out" / "run_megatron.sh"
    again = command("export", plan, "--to", "megatron", "--output", tmp_path / "out")
    assert again.exit_code == 1
    assert "is already there" in again.stderr
    assert command("export", plan, "--to", "megatron", "--output", tmp_path / "out", "--force").exit_code == 0
    read = command("import", script, "--from", "megatron", *where, "--json", mine, "--faster", better)
    assert read.exit_code == 0, read.output
    one, other = read_plan(plan), read_plan(mine)
    assert [(s.layers, s.logical_mesh, s.remat, s.zero) for s in one.stages] == [
        (s.layers, s.logical_mesh, s.remat, s.zero) for s in other.stages
    ]
    assert other.step_s == pytest.approx(one.step_s, rel=1e-6)
    assert read_plan(better).step_s <= other.step_s * (1 + 1e-6)
    assert "iteration" in read.output
    refused = command("export", plan, "--to", "deepspeed", "--output", tmp_path / "other", "--model", "gpt-39b")
    assert refused.exit_code == 1
    assert "but must have 50: embeddings, 48 blocks and a head; plan again with --for deepspeed" in refused.stderr
    assert not (tmp_path / "other").exists()
