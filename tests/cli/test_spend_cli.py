"""`alpa-dejavu spend`: what it prints, writes and refuses."""

import json
import sys

import pytest
from click.testing import CliRunner

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.cli.main import main
from alpa_dejavu.playground.spend import Gain, _spend
from alpa_dejavu.playground.spend._gains import MeasuredGains

MODULE = """\
import jax
import jax.numpy as jnp


def made(batch_size, says_loss=True, width=64):
    def step(state, batch):
        def loss_fn(params):
            return ((jnp.tanh(batch["x"] @ params[0]) @ params[1] - batch["y"]) ** 2).mean()

        loss, gradients = jax.value_and_grad(loss_fn)(state["params"])
        new = {"params": jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, state["params"], gradients)}
        return (new, loss) if says_loss else new

    params = [jnp.ones((8, width)), jnp.ones((width, 1))]
    return step, ({"params": params}, {"x": jnp.ones((batch_size, 8)), "y": jnp.ones((batch_size, 1))})


def silent(batch_size):
    return made(batch_size, says_loss=False)


def huge(batch_size):
    step, given = made(batch_size)
    large = [jax.ShapeDtypeStruct((8, 10**10), "float32"), jax.ShapeDtypeStruct((10**10, 1), "float32")]
    return step, ({"params": large}, given[1])


def read(batch_size):
    step, given = made(batch_size)
    return lambda state, batch: (state, (batch["x"] @ state["params"][0] @ state["params"][1]).mean()), given
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    def told(learner, asked, trial, on_way):
        gains = {way: Gain(Interval(0.5, 0.4, 0.6), 0.25 * (way.kind == "starts")) for way in asked}
        gains[asked[0]] = Gain(Interval(1.0, 1.0, 1.0))
        return MeasuredGains(gains, 1.5, 0.01, 2.0)

    monkeypatch.setattr(_spend, "gains", told)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_trained.py").write_text(MODULE)
    yield lambda *words: CliRunner().invoke(main, ["spend", "--no-cache", "--layers", "2", *map(str, words)])
    sys.modules.pop("my_trained", None)


def test_ways_are_told_with_what_is_predicted_and_what_is_measured(command, tmp_path):
    result = command("--model", "my_trained:made", "--cluster", "p3.8xlarge", "--batch", 32, "--seconds", 60,
                     "--json", "spend.json")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    told = result.stdout
    assert "as it is" in told
    assert "seconds of a step, by the planner, for my_trained:made on 1 x p3.8xlarge, batch 32" in told
    assert "the model itself, my_trained:made (576 parameters)" in told
    assert "wrote spend.json" in told
    found = json.loads((tmp_path / "spend.json").read_text())
    assert [row["way"]["kind"] for row in found["rows"]].count("batch") == 2
    assert (found["seconds"], found["stands_in"], found["rows"][0]["gain"]["steps"]["low"]) == (60, "", 0.4)
    row = next(row for row in found["rows"] if row["way"] == {"kind": "batch", "times": 2})
    assert row["to_loss_s"]["mean"] == pytest.approx(
        0.5 * 60 * row["cost"]["step_s"] / next(r["cost"]["step_s"] for r in found["rows"] if r["name"] == "as it is")
    )


@pytest.mark.parametrize(("words", "said"), [
    (("--model", "my_trained:made", "--cluster", "p3.8xlarge", "--seconds", 0), "seconds is 0"),
    (("--model", "my_trained:made", "--cluster", "p3.9xlarge", "--seconds", 5), "p3.9xlarge"),
    (("--model", "my_trained:silent", "--cluster", "p3.8xlarge", "--seconds", 5), "must return (state, loss)"),
    (("--model", "my_trained:read", "--cluster", "p3.8xlarge", "--seconds", 5), "takes no gradient of a loss"),
    (("--model", "my_trained:huge", "--cluster", "p3.8xlarge", "--seconds", 5), "more or larger devices"),
    (("--model", "gpt-1", "--cluster", "p3.8xlarge", "--seconds", 5), "there is no model named 'gpt-1'"),
])  # fmt: skip
def test_what_cannot_be_is_refused(command, words, said):
    result = command(*words)
    assert result.exit_code == 1
    assert said.lower() in result.stderr.lower()
    assert result.stdout == ""
