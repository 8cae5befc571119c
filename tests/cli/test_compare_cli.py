"""`alpa-dejavu compare`: its cells are what `alpa-dejavu plan` writes, and what it prints and refuses."""

import json
import pathlib
import re
import shlex
import sys

import pytest
from click.testing import CliRunner

import alpa_dejavu.clusters
from alpa_dejavu._util import units
from alpa_dejavu.cli.compare import compare
from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning.given.comparison import SAVINGS
from alpa_dejavu.planning.result import price_per_step
from alpa_dejavu.plans.plan_file import read_plan

MODULE = """\
import jax
import jax.numpy as jnp


def made(batch_size, width=64):
    def step(weights, x):
        def loss(weights):
            made = x
            for weight in weights:
                made = jnp.tanh(made @ weight)
            return (made**2).mean()

        return jax.tree_util.tree_map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    weights = [jax.ShapeDtypeStruct((width, width), jnp.float32) for _ in range(4)]
    return step, (weights, jax.ShapeDtypeStruct((batch_size, width), jnp.float32))
"""
SHARED = ["--model", "compared_model:made", "--batch", "64", "--micro-batches", "1", "--layers", "4", "--no-cache"]


def machine(name, memory_bytes, priced=True):
    """The file of a machine with little memory, and nothing known of its hosts' own."""
    data = json.loads((pathlib.Path(alpa_dejavu.clusters.__file__).parent / "p3.8xlarge.json").read_text())
    data["device"]["memory_bytes"] = {"value": memory_bytes, "unit": "bytes", "source": "a test"}
    for key in ("host_memory", "accelerator_type", *([] if priced else ["price_per_hour"])):
        data.pop(key, None)
    return json.dumps(data | {"name": name, "devices_per_host": 2})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "compared_model.py").write_text(MODULE)
    (tmp_path / "tight.json").write_text(machine("tight", 2e5))
    (tmp_path / "roomy.json").write_text(machine("roomy", 1e7, priced=False))
    return tmp_path


def run(*words):
    done = CliRunner().invoke(main, [*map(str, words)])
    sys.modules.pop("compared_model", None)
    return done


TWO = ["--cluster", "tight.json", "--cluster", "2 x p3.8xlarge"]


@pytest.fixture
def compared(folder):
    every = ["--saving", "all", "--steps", 1000, "--json", "found.json"]
    done = run("compare", *SHARED, *TWO, "--cluster", "roomy.json", *every)
    assert done.exit_code == 0, done.stderr
    return done.stdout, json.loads((folder / "found.json").read_text())


def test_cells_are_what_plan_writes_with_the_flags_that_they_name(compared):
    _, found = compared
    told = set()
    for cell in found["cells"]:
        if cell["cluster"] == "1 x roomy":  # as large as p3.8xlarge, and planned as that
            continue
        done = run("plan", *SHARED, *shlex.split(cell["flags"]), "--json", "plan.json")
        if cell["figures"] is None:
            assert done.exit_code == (1 if cell["fits"] else 3)
            assert cell["why_not"] in done.stderr
            told.add("does not fit" if not cell["fits"] else "hindered")
            continue
        assert done.exit_code == 0, done.stderr
        plan = read_plan("plan.json")
        words = shlex.split(cell["flags"])
        assert cell["figures"]["step_s"] == plan.step_s
        assert cell["figures"]["price"] == price_per_step(plan, named_cluster(words[1]))
        assert cell["figures"]["interval_s"] == list(plan.confidence.interval_s)
        assert cell["figures"]["memory_bytes"] == max(stage.memory_bytes for stage in plan.stages)
        told.add("fits")
    assert told == {"fits", "does not fit", "hindered"}


def test_rows_and_facts_say_what_the_file_has(compared):
    told, found = compared
    assert "wrote found.json" in told
    assert re.search("^none +1 x tight +doesn't fit", told, flags=re.MULTILINE)
    remedies = found["cells"][0]["remedies"]
    assert "--remat auto" in remedies
    assert re.search(f"^doesn't fit +none.* on 1 x tight: enough: {' or '.join(remedies)}$", told, re.MULTILINE)
    assert re.search("^not planned +offload on 1 x tight: offload is 'auto', but must be without", told, re.MULTILINE)
    assert re.search("^none +1 x roomy .* unknown .* unknown ", told, re.MULTILINE)
    assert re.search("^cheapest +.*; no price is known of 1 x roomy$", told, re.MULTILINE)
    changes = re.findall("^(the order changes|it may change) +(.*)$", told, re.MULTILINE)
    assert [name == "the order changes" for name, _ in changes] == [one["sure"] for one in found["changes"]]
    assert all(f"{one['one']} is before {one['other']} with {', '.join(one['before'])}, and behind" in text
               for one, (_, text) in zip(found["changes"], changes, strict=True))  # fmt: skip
    assert re.search("^2 x p3.8xlarge +tensor .*; seconds by models of GPUs. kernels .of the work .*%", told, re.M)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster", "p3.8xlarge", "--cluster", "1x p3.8xlarge"], "cluster is '1 x p3.8xlarge' twice"),
        (["--cluster", "nobody.json", "--cluster", "p3.8xlarge"], "nobody.json"),
        ([*TWO, "--tokens", "5"], "tokens is 5, but must be left out for compared_model:made, whose name doesn't say"),
        ([*TWO, "--sequence", "5"], "--sequence is 5, but must come with --tokens for compared_model:made"),
        ([*TWO, "--steps", "5", "--samples", "5"], "--steps and --samples are given, but only one of them may be"),
        ([*TWO, "--calibration", "nobody"], "nobody"),
        ([*TWO, "--json", "there/is/none.json"], "there/is"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_planned(folder, words, said):
    done = run("compare", *SHARED, *words)
    assert done.exit_code == 1
    assert said in done.stderr
    assert done.stdout == ""


def test_of_one_price_nothing_is_the_cheapest(folder):
    done = run("compare", *SHARED, "--cluster", "roomy.json", "--cluster", "2 x p3.8xlarge")
    assert re.search("^cheapest +can't be told; no price is known of 1 x roomy$", done.stdout, re.MULTILINE)
    assert "by price" not in done.stdout


def test_an_unknown_gpu_is_told_to_rest_on_another_ground(folder):
    data = json.loads(machine("ours", 1e7))
    data["device"]["name"] = "my-gpu"
    (folder / "ours.json").write_text(json.dumps(data))
    done = run("compare", *SHARED, "--cluster", "ours.json", "--cluster", "roomy.json", "--json", "found.json")
    found = json.loads((folder / "found.json").read_text())
    own = {cell["cluster"]: cell["figures"] for cell in found["cells"]}
    first, other = found["orders"][0]["clusters"]
    times = own["1 x ours"]["expected_step_s"] / own["1 x roomy"]["common_s"]
    assert re.search(r"^soonest +can't be told: 1 x \w+ or 1 x \w+$", done.stdout, re.MULTILINE)
    assert re.search(
        rf"^can't be told +by seconds {first} is before {other} with a probability of \d+ %; 90 % would be sure\. Its "
        rf"seconds are by .*, those of {other} by .*; priced on one ground 1 x (ours|roomy) is "
        rf"{max(times, 1 / times):.4g} times as fast$", done.stdout, re.MULTILINE,
    )  # fmt: skip


def test_what_plan_notes_and_equal_plans_are_told(folder):
    sizes = "transformer:hidden=64,blocks=2,heads=4,vocabulary=128,sequence=16"
    asked = ["--model", sizes, "--batch", 16, "--objective", "price", "--no-cache"]
    clusters = ["--cluster", "p3.16xlarge", "--cluster", "2 x p3.16xlarge"]
    by_alpa = "priced as Alpa runs it, the default"
    assert by_alpa in run("compare", *asked, *clusters).stdout
    done = run("compare", *asked, *clusters, "--runtime", "megatron")
    assert by_alpa not in done.stdout
    assert re.search(r"^note +1 x p3.16xlarge, 2 x p3.16xlarge: V100.* has no rate for .* bfloat16", done.stdout, re.M)
    assert re.search(r"^note +2 x p3.16xlarge: p3.16xlarge-1 is left unused", done.stdout, re.M)
    assert re.search("^soonest +1 x p3.16xlarge: .* a step; 2 x p3.16xlarge: the same plan$", done.stdout, re.M)
    price = "^cheapest +1 x p3.16xlarge: .* USD a step at prices of 2024; 2 x p3.16xlarge: the same plan$"
    assert re.search(price, done.stdout, re.M)
    assert re.search("^the same plan +1 x p3.16xlarge and 2 x p3.16xlarge: on the same devices", done.stdout, re.M)
    assert "can't be told" not in done.stdout


def test_one_cluster_alone_is_printed_for_a_framework_without_an_order(folder):
    asked = ["--model", "gpt-125m", "--batch", 64, "--no-cache", "--for", "torchtitan"]
    done = run("compare", *asked, "--cluster", "p3.16xlarge", "--tokens", 64_000_000, "--json", "found.json")
    assert run("plan", *asked, "--cluster", "p3.16xlarge", "--json", "plan.json").exit_code == 0
    found = json.loads((folder / "found.json").read_text())
    (cell,) = found["cells"]
    plan, own = read_plan("plan.json"), cell["figures"]
    assert plan.priced_by.runs_on == "torchtitan"
    assert own["expected_step_s"] == plan.expected_s
    assert not re.search("^(soonest|cheapest|by seconds|can't be told)", done.stdout, re.MULTILINE)
    low, high = (units.number(end_s * found["steps"]) for end_s in own["interval_s"])
    assert f"; 90 % interval {low} to {high} s" in done.stdout
    row = re.search("^1 x p3.16xlarge .*$", done.stdout, re.MULTILINE).group()
    assert re.search(r"USD +2024 ", row)


def test_the_file_can_be_standard_output(folder):
    done = run("compare", *SHARED, *TWO, "--saving", "remat", "--json", "-")
    assert [cell["saving"] for cell in json.loads(done.stdout)["cells"]] == ["remat", "remat"]
    assert "by seconds" in done.stderr


def test_the_options_name_the_savings_that_there_are():
    (option,) = [one for one in compare.params if one.name == "savings"]
    assert list(option.type.choices) == [*(one.name for one in SAVINGS), "all"]
    for one in SAVINGS[:-1]:
        assert f"`{one.flags}`" in " ".join(compare.help.split())
