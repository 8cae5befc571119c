"""Commands about training: what replicas, faults and devices are worth."""

import dataclasses
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.cli import working
from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given.gathered_gradients import gathering_step_s, tolerant_front
from alpa_dejavu.planning.result import PricedPlan
from alpa_dejavu.plans import write_plan
from alpa_dejavu.playground.spend import Gain, _spend
from alpa_dejavu.playground.spend._gains import MeasuredGains
from alpa_dejavu.training.robust import RULES, Evidence, replicas_to_tolerate, rule
from pages import page_data
from plans import example_plan
from tanh_layers import trained

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
    assert result.exit_code == (3 if "huge" in words[1] else 1)
    assert said.lower() in result.stderr.lower()
    assert result.stdout == ""


TRAINED = """\
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
"""


@pytest.fixture
def judged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(working, "EVERY_S", 1e6)  # however slow the machine is, no line says how long it works
    (tmp_path / "my_network.py").write_text(TRAINED)
    return lambda *words: CliRunner().invoke(main, ["resilience", *map(str, words)])


def test_curves_critical_parts_and_stages_are_printed_and_written(judged, tmp_path):
    write_plan(example_plan(), tmp_path / "plan.json")
    result = judged(
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
    assert page_data(page)["charts"]
    assert "Flipped bits of int8" in page
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
def test_wrong_input_is_one_message(judged, words, said):
    result = judged(*words)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", RULES)
def test_a_rule_takes_as_many_replicas_as_it_is_said_to_need_and_no_fewer(name):
    if name == "mean":
        assert replicas_to_tolerate(name, 0) == 1
        with pytest.raises(ValueError, match="rule is 'mean', but must tolerate 1 wrong replicas, and a mean none"):
            replicas_to_tolerate(name, 1)
        return
    for wrong in (1, 2):
        least = replicas_to_tolerate(name, wrong)
        assert least >= wrong + 1
        asked = rule(name, wrong=wrong) if hasattr(rule(name), "wrong") else rule(name)
        values = {"w": jnp.arange(least * 3.0).reshape(least, 3)}
        beside = Evidence(jnp.arange(float(least)), {"w": jnp.ones(3)})
        jax.eval_shape(lambda one, asked=asked, beside=beside: asked.aggregate(one, None, beside).gradient, values)
        if hasattr(asked, "wrong"):
            with pytest.raises(ValueError, match="but must be at least"):
                asked.aggregate({"w": values["w"][:-1]}, None, beside._replace(descent=beside.descent[:-1]))


def test_published_numbers_of_replicas():
    # Krum: n > 2 f + 2. Trimmed mean, median: a majority. Zeno: one right replica.
    known = {"krum": 5, "trimmed-mean": 3, "median": 3, "geometric-median": 3, "zeno": 2, "zeno++": 2}
    assert {name: replicas_to_tolerate(name, 1) for name in known} == known


def test_no_listed_plan_is_as_fast_as_cheap_and_as_tolerant_as_another():
    (made,) = [plan_model(trained, named_cluster("p3.16xlarge"), batch=32, micro_batches=1, layers=4, replicas=8).plan]
    rng = np.random.default_rng(0)
    fronts = {
        wrong: [PricedPlan(dataclasses.replace(made, step_s=float(step_s)), float(price))
                for step_s, price in rng.integers(1, 12, (8, 2))]
        for wrong in (0, 1, 2)
    }  # fmt: skip
    found = tolerant_front(fronts)
    every = []
    for wrong, plans in fronts.items():
        for one in plans:
            step_s = gathering_step_s(one.plan) if wrong else one.plan.step_s
            every.append((step_s, one.price * step_s / one.plan.step_s, -wrong))
    best = {a for a in every if not any(b != a and all(x <= y for x, y in zip(b, a, strict=True)) for b in every)}
    assert {(one.step_s, one.price, -one.wrong) for one in found} == best
    assert len(found) == len(best) < len(every)


def test_the_command_says_what_each_wrong_replica_costs():
    asked = ["plan", "--model", "tanh_layers:trained", "--cluster", "p3.16xlarge", "--batch", "32", "--layers", "4"]
    done = CliRunner().invoke(main, [*asked, "--micro-batches", "2", "--tolerate", "1", "--rule", "trimmed-mean"])
    assert done.exit_code == 0, done.output
    rows = re.findall(r"^(\d) +(\d) replicas? +(\S+ \S+) +(\S+ \S+) +(\S+) %", done.output, re.MULTILINE)
    assert [(count, need) for count, need, *_ in rows] == [("0", "1"), ("1", "3")]
    assert rows[0][2:] == (rows[0][2], rows[0][2], "0.0")
    assert float(rows[1][4]) >= 0
    listed = CliRunner().invoke(main, [*asked, "--micro-batches", "2", "--tolerate", "1", "--objective", "pareto"])
    assert listed.exit_code == 0, listed.output
    rows = re.findall(r"^(\d) +1 +(\S+ \S+) +(\S+ USD) +p3.16xlarge-0", listed.output, re.MULTILINE)
    assert {count for count, _, _ in rows} == {"0", "1"}
    wrong = CliRunner().invoke(main, [*asked, "--tolerate", "1", "--rule", "krumm"])
    assert wrong.exit_code == 1
    assert "did you mean 'krum'" in " ".join(wrong.output.split())
