"""`plan --tolerate`: as many replicas as a rule needs, and what they cost."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given.gathered_gradients import gathering_step_s, tolerant_front
from alpa_dejavu.planning.result import PricedPlan
from alpa_dejavu.training.robust import RULES, Evidence, replicas_to_tolerate, rule
from tanh_layers import trained


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
