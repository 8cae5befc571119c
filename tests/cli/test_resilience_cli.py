"""`alpa-dejavu resilience`: what it prints, writes and refuses."""

import json

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli import working
from alpa_dejavu.cli.main import main
from alpa_dejavu.plans import write_plan
from plans import example_plan

MODULE = '''\
import jax.numpy as jnp
import numpy as np

DRAW = np.random.default_rng(0)
PARAMS = {"blocks": [DRAW.standard_normal((4, 4)) * 0.3 for _ in range(2)], "<in>": np.eye(4),
          "out": DRAW.standard_normal((4, 3))}
INPUTS = DRAW.standard_normal((20, 4)).astype(np.float32)


def model(params, inputs):
    inputs = inputs @ params["<in>"]
    for block in params["blocks"]:
        inputs = inputs + jnp.tanh(inputs @ block)
    return inputs @ params["out"]


def made():
    return model, PARAMS, (INPUTS, np.asarray(model(PARAMS, INPUTS)).argmax(axis=1))


def two():
    return model, PARAMS
'''


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(working, "EVERY_S", 1e6)  # however slow the machine is, no line says how long it works
    (tmp_path / "my_network.py").write_text(MODULE)
    return lambda *words: CliRunner().invoke(main, ["resilience", *map(str, words)])


def test_curves_critical_parts_and_stages_are_printed_and_written(command, tmp_path):
    write_plan(example_plan(), tmp_path / "plan.json")
    result = command(
        "my_network:made", "--but", "out", "--share", 0, "--share", 0.5, "--masks", 3, "--critical", 2,
        "--bits", "int8", "--plan", "plan.json", "--html", "page.html", "--json", "found.json",
    )  # fmt: skip
    assert (result.exit_code, result.stderr) == (0, "")
    assert "my_network:made: 1.0000 without faults" in result.stdout
    assert "the 2 that harm most" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("stage ")]
    assert [" ".join(row[:-1]) for row in rows if row[1].isdigit()] == [
        "stage 0 p3.16xlarge-0 blocks/0", "stage 1 p3.16xlarge-0 blocks/1"
    ]  # fmt: skip
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["parts"], found["units"], found["base"]) == ("neurons", 12, 1.0)
    assert len(found["points"]) == 2
    assert all(point["mean"] == 1.0 for point in found["points"] if point["share"] == 0)
    page = (tmp_path / "page.html").read_text()
    assert '"curves"' in page
    assert 'id="bits-int8"' in page
    assert "&lt;in&gt;" in page
    assert "<in>" not in page.split("<script>")[0]
    assert page.count("<h2>") == 4


@pytest.mark.parametrize(("words", "said"), [
    (("my_network",), "MODULE:FUNCTION is 'my_network', but must name a function of a module"),
    (("my_network:two",), "my_network:two returned a tuple, but must return (apply_fn, params, (inputs, targets))"),
    (("my_network:mode",), "has no function 'mode'; did you mean 'model' or 'made'"),
    (("my_network:made", "--parts", "heads"), "kind is 'heads', but must be of parts that are there"),
    (("my_network:made", "--share", "1.5"), "shares has 1.5, but must be of 0 to 1"),
    (("my_network:made", "--fault", "lost"), "there is no fault named 'lost'"),
    (("my_network:made", "--parts", "values", "--but", "x"), "--parts is values, but must be of parameters"),
])  # fmt: skip
def test_wrong_input_is_one_message(command, words, said):
    result = command(*words)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr
