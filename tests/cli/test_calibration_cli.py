"""Commands with calibrations and with files of other programs."""

import dataclasses
import json
import re

import pytest
from click.testing import CliRunner

from alpa_dejavu import planning
from alpa_dejavu.calibration import write_calibration
from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning.changed.kept import kept_path, read_kept
from alpa_dejavu.plans.plan_file import read_plan
from made_up import fitted, measured
from pages import own_text, page_data


def shown(*args):
    return CliRunner().invoke(main, ["calibration", "show", *map(str, args)])


def test_fitted_models_are_shown_with_their_errors(tmp_path):
    path = tmp_path / "mine.json"
    write_calibration(fitted(), path)
    result = shown(path)
    assert result.exit_code == 0, result.output
    for said in (
        "made-up, of 2024-05-31", "1 TFLOP/s", "products", "size", "12.5 %", "across hosts", "all_gather, all_reduce",
        "what it doesn't know", "no all-to-all was measured",
    ):  # fmt: skip
        assert said in result.output


def test_measured_figures_are_shown_with_their_spread(tmp_path):
    path = tmp_path / "mine.json"
    write_calibration(measured(), path)
    result = shown(path)
    assert result.exit_code == 0, result.output
    assert "500 GFLOP/s ± 5 %" in result.output
    assert "50 GB/s ± 10 %" in result.output
    assert "example - example, between hosts" in result.output
    assert "300 us" in result.output
    lines = " ".join(result.output.split())
    assert "memory, measured: peak 3 times, 0.98 to 1.05 of the count, in 3 groups under another framework" in lines


def titles(path):
    return re.findall(r"<h2>(.*?)</h2>", path.read_text())


def test_pictures_of_every_operator_collective_and_link(tmp_path):
    path = tmp_path / "mine.json"
    write_calibration(measured(), path)
    result = shown(path, "--html", tmp_path / "links.html")
    assert result.exit_code == 0, result.output
    assert titles(tmp_path / "links.html") == ["Sends within hosts", "Sends between hosts"]
    device = named_cluster("p3.16xlarge").hosts[0].device
    devices = {device.name: dataclasses.replace(device, memory_bytes=16e9)}
    write_calibration(dataclasses.replace(fitted(), devices=devices, device_spread={}, products={}), path)
    result = shown(path, "--html", tmp_path / "v100.html")
    assert result.exit_code == 0, result.output
    assert {"all-gather on 2 x p3.16xlarge", "all-reduce on 2 x p3.16xlarge"} < set(titles(tmp_path / "v100.html"))
    page = (tmp_path / "v100.html").read_text()
    names = [trace["name"] for trace in page_data(page)["charts"]["chart-0"]["data"]]
    assert "16 in two hosts" in names
    assert "://" not in own_text(page)


@pytest.mark.parametrize(("given", "said"), [("v10", "there is no calibration 'v10'"), ("broken.json", "isn't JSON")])
def test_what_cannot_be_shown_is_named(tmp_path, monkeypatch, given, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    result = shown(given)
    assert result.exit_code == 1
    assert said in result.output


def test_plan_and_estimate_take_one(tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    write_calibration(fitted(), path)
    asked = ["plan", "--model", "gpt-125m", "--cluster", "p3.16xlarge", "--batch", "32", "--calibration"]
    result = CliRunner().invoke(main, [*asked, str(path)])
    assert result.exit_code == 1
    assert "has 'V100-SXM2-16GB', but the calibration made-up knows 'example' only" in result.output
    given = []
    monkeypatch.setattr(planning, "plan_model", lambda *args, **options: given.append(options) or 1 / 0)
    CliRunner().invoke(main, [*asked, "v100"])
    assert [options["calibration"] for options in given] == ["v100"]


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
    (runs_on,) = [line for line in made.output.splitlines() if line.startswith("runs on")]
    assert "megatron" in runs_on.partition("; not ")[0]
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


def test_what_is_faster_keeps_the_overlap_of_the_script(config, tmp_path):
    plan, mine, better = (tmp_path / name for name in ("plan.json", "mine.json", "better.json"))
    where = ("--cluster", "p4d.24xlarge", "--no-cache")
    asked = ("--model", config, "--batch", "16", "--micro-batches", "4", "--tensor", "4", "--overlap", "tensor")
    assert command("plan", *asked, "--for", "megatron", "--json", plan, *where).exit_code == 0
    assert command("export", plan, "--to", "megatron", "--output", tmp_path / "out").exit_code == 0
    script = tmp_path / "out" / "run_megatron.sh"
    assert "--tp-comm-overlap" in script.read_text()
    read = command("import", script, "--from", "megatron", *where, "--json", mine, "--faster", better)
    assert read.exit_code == 0, read.output
    assert read_plan(mine).priced_by.runtime == read_plan(better).priced_by.runtime == "megatron+tensor"
    assert "faster: priced and kept as megatron runs it" in read.output
    # Beside both is what planning again needs, as `explain` says where it's missing.
    for path in (mine, better):
        assert str(kept_path(path)) in read.output.replace("\n", "")
        assert read_kept(path).rules.zero == (0, 2, 3)
    explained = command("explain", mine)
    assert explained.exit_code == 0, explained.output
    assert "is missing" not in explained.output
    assert "the best plan as things are" in explained.output


def test_a_plan_that_does_not_fit_has_an_exit_code_of_its_own(tmp_path):
    script, mine = tmp_path / "train.sh", tmp_path / "mine.json"
    script.write_text(
        "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --seq-length 8192 --vocab-size 32000 --bf16 --micro-batch-size 8 "
        "--global-batch-size 64 --max-position-embeddings 8192\n"
    )
    where = ("--cluster", "p4d.24xlarge", "--no-cache")
    read = command("import", script, "--from", "megatron", *where, "--json", mine)
    assert read.exit_code == 3, read.output
    assert "would fit" in read.output
    again = command("estimate", mine, "--no-cache", "--json", tmp_path / "again.json")
    assert (again.exit_code, (tmp_path / "again.json").exists()) == (3, True)
    asked = ("--model", "llama-3-70b", "--runtime", "megatron", "--batch", "8", *where)
    refused = command("plan", *asked)
    assert refused.exit_code == 3
    assert "Error: the model doesn't fit into memory" in " ".join(refused.stderr.split())
    assert command("plan", *asked, "--layers", "0").exit_code == 2
    for words in ([], ["estimate"], ["import"]):
        assert "exit code is" in " ".join(command(*words, "--help").output.split())


def test_a_calibration_without_curves_says_so(tmp_path):
    path = tmp_path / "mine.json"
    write_calibration(dataclasses.replace(measured(), links=()), path)
    result = shown(path, "--html", tmp_path / "page.html")
    assert "wrote no page" in result.output
    assert not (tmp_path / "page.html").exists()
