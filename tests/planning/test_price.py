"""Prices of steps, plans on fewer hosts, and those of which no other is both as fast and as cheap."""

import dataclasses
import functools
import itertools

import pytest
from click.testing import CliRunner

from alpa_dejavu import planning
from alpa_dejavu.cli.main import main
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.result import front, price_per_step
from alpa_dejavu.plans.plan_file import read_plan
from jax_models import trained
from plans import example_plan, stage, without_draws
from unlike import cluster, host, two_and_two


def wide(batch_size):
    return trained(batch_size, size=256)


def priced(fast=8.0, slow=1.0, rate=0.25e10):
    """Two hosts that are so many times dearer than two slower ones."""
    hosts = [*(host(name, 1e10, 1, price=fast) for name in "ab"), *(host(name, rate, 1, price=slow) for name in "cd")]
    return cluster(hosts)


@functools.cache
def planned(objective, fast=8.0, slow=1.0):
    return plan_model(wide, priced(fast, slow), batch=64, micro_batches=4, layers=4, objective=objective)


def test_a_step_costs_what_its_hosts_cost_meanwhile():
    plan = example_plan(step_s=1800.0, stages=(stage((0, 1), hosts=("a",)), stage((2, 3), hosts=("c",))))
    assert price_per_step(plan, priced()) == pytest.approx(4.5)
    assert price_per_step(plan, two_and_two()) is None


def test_the_front_has_no_plan_that_is_slower_and_dearer_than_another():
    def of(step_s, *hosts):
        return example_plan(step_s=step_s, stages=tuple(stage((n, n), hosts=(name,)) for n, name in enumerate(hosts)))

    plans = [of(3.0, "a"), of(1.0, "a", "b"), of(2.0, "a", "b"), of(9.0, "c"), of(30.0, "c"), of(4.0, "c", "d")]
    found = front(plans, priced())
    assert [(one.plan.step_s, one.hosts) for one in found] == [(1.0, ("a", "b")), (4.0, ("c", "d"))]
    found = front(plans[2:], priced())
    assert [one.price * 3600 for one in found] == pytest.approx([32.0, 8.0])


def test_each_objective_is_the_best_in_what_it_asks_for():
    fastest, cheapest, both = (planned(objective) for objective in ("time", "price", "pareto"))
    assert fastest.plan.step_s <= cheapest.plan.step_s
    assert cheapest.price_per_step < 0.9 * fastest.price_per_step
    assert {name for one in cheapest.plan.stages for name in one.hosts} <= {"c", "d"}
    assert without_draws(both.plan) == without_draws(fastest.plan)
    assert both.front[0].plan.step_s == both.plan.step_s
    assert both.front[-1].price == pytest.approx(cheapest.price_per_step)
    assert fastest.front == cheapest.front == ()
    assert all("% dearer, and a step takes" in other.why for other in cheapest.runners_up)
    assert cheapest.flop_utilisation <= 1.0
    assert cheapest.confidence.candidates < both.confidence.candidates, "plans on dearer hosts aren't its rivals"
    for one, other in itertools.pairwise(both.front):
        assert one.plan.step_s < other.plan.step_s
        assert one.price > other.price


def test_equal_hosts_are_left_out_too_where_their_price_is_not_worth_it():
    where = cluster([host(name, 1e10, 1, price=1.0) for name in "abcd"])
    cheap = plan_model(wide, where, batch=64, micro_batches=4, layers=4, objective="price")
    assert cheap.plan.num_devices < 4, "a pipeline of fewer stages has smaller bubbles"
    assert cheap.price_per_step < planned_uniform(where).price_per_step


def planned_uniform(where):
    return plan_model(wide, where, batch=64, micro_batches=4, layers=4)


def test_unknown_prices_and_objectives_are_refused_before_anything_is_traced():
    where = dataclasses.replace(priced(), hosts=(*priced().hosts[:3], host("d", 1e9, 1)))
    with pytest.raises(ValueError, match="cluster unlike has no price_per_hour for d; add it"):
        plan_model("no model", where, objective="price")
    with pytest.raises(ValueError, match="must be one of 'time'"):
        plan_model("no model", where, objective="cheap")


def test_the_command_line_lists_the_front_and_writes_the_fastest(monkeypatch, tmp_path):
    both, asked = planned("pareto"), {}
    monkeypatch.setattr(planning, "plan_model", lambda *_, **named: asked.update(named) or both)
    path = tmp_path / "plan.json"
    given = ["plan", "--model", "m", "--cluster", "c", "--batch", "64", "--objective", "pareto", "--json", str(path)]
    answer = CliRunner().invoke(main, given)
    assert answer.exit_code == 0, answer.output
    assert asked["objective"] == "pareto"
    assert read_plan(path).step_s == both.plan.step_s
    lines = answer.output.splitlines()[-len(both.front) - 2 :]
    for one in both.front:
        assert any(line.rstrip().endswith(" ".join(one.hosts)) for line in lines)
    assert "price of a step" in answer.output


def test_cheap_fast_hosts_are_the_best_in_both():
    assert {name for one in planned("price", 1.0, 8.0).plan.stages for name in one.hosts} <= {"a", "b"}
