"""A plan has one expected step and one uncertainty, whoever is asked, and hours and prices are reckoned from it."""

import dataclasses
import functools

import pytest

from alpa_dejavu._util import units
from alpa_dejavu.exports.alpa_code import alpa_code
from alpa_dejavu.planning import estimate, given_stages, plan_model
from alpa_dejavu.planning.given.comparison import SAVINGS, compare
from alpa_dejavu.planning.given.whole_run import whole_run
from alpa_dejavu.planning.result import price_per_step
from alpa_dejavu.planning.search.uncertainty import confidence
from alpa_dejavu.plans.table import plan_table
from alpa_dejavu.problem import Run
from alpa_dejavu.report import html_report
from alpa_dejavu.slicing import slicer
from alpa_dejavu.testing import example_cluster
from jax_models import trained
from models import best_and_neighbours, chain, costs_of, space
from unlike import cluster, host

ASKED = {"batch": 64, "cache": False}


def where():
    return cluster([host(name, 1e10, 2, price=9.0) for name in "ab"])


@functools.cache
def planned(objective="time"):
    return plan_model(functools.partial(trained, size=256), where(), layers=4, objective=objective, **ASKED)


def spread(plan):
    known = plan.confidence
    return known.expected_step_s, known.interval_s, known.deviation_s, [stage.drawn for stage in plan.stages]


def test_the_estimate_of_a_plan_expects_what_the_plan_does():
    made = planned()
    assert made.confidence.candidates > 3
    again = estimate(made.model, made.cluster, made.run, given_stages(made.plan), batch=64)
    assert again.plan.step_s == pytest.approx(made.plan.step_s)
    assert spread(again.plan) == spread(made.plan)


def test_the_same_plan_takes_the_same_hours_in_every_row_of_a_comparison():
    other = cluster([host("c", 1e9, 1, price=1.0)])
    clusters = [dataclasses.replace(one, name=name) for one, name in ((where(), "x"), (other, "y"))]
    found = compare(functools.partial(trained, size=256), clusters, savings=SAVINGS, steps=1000, layers=4, **ASKED)
    rows = [found.cell("x", saving.name).figures for saving in SAVINGS]
    rows = [one for one in rows if one is not None and not one.uses and one.step_s == rows[0].step_s]
    assert len(rows) > 1
    assert len({(one.training.seconds, one.training.deviation_s, one.interval_s, one.price) for one in rows}) == 1


@pytest.mark.parametrize("objective", ["time", "price", "pareto"])
def test_hours_and_prices_are_those_of_the_expected_step(objective):
    made = planned(objective)
    plan, run = made.plan, whole_run(made, 1000)
    assert plan.expected_s == plan.confidence.expected_step_s != plan.step_s
    hosts = len({name for stage in plan.stages for name in stage.hosts})
    assert made.price_per_step == pytest.approx(hosts * 9.0 / 3600 * plan.expected_s)
    assert (run.seconds, run.price) == (1000 * plan.expected_s, 1000 * made.price_per_step)
    for one in made.front:
        assert one.price == price_per_step(one.plan, made.cluster)
        assert one.plan.confidence is not None, "its price is that of its expected step"


def test_every_door_shows_the_expected_step():
    made = planned()
    expected = units.seconds(made.plan.expected_s)
    assert f"expected {expected}" in alpa_code(made.plan).splitlines()[0]
    assert f"expected {expected}" in plan_table(made.plan)
    assert expected in html_report(made)


def test_what_a_plan_is_compared_with_changes_only_its_probability():
    found = best_and_neighbours(costs_of(chain(6), example_cluster(1), space(), Run(8)), slicer("dynamic"))
    alone, among = confidence(found[:1]), confidence(found)
    assert among.candidates > alone.candidates == 1
    assert (among.expected_step_s, among.interval_s) == (alone.expected_step_s, alone.interval_s)
    assert among.deviation_s == alone.deviation_s
