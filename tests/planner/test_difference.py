"""What two plans differ in: each difference is made after the other, and their costs add up."""

import dataclasses

import pytest
from plans import example_plan, stage

from alpa_dejavu.difference import differences

FIRST = example_plan()
SECOND = example_plan(
    stages=(stage((0, 0), zero=3), stage((1, 1)), stage((2, 3), remat="layer")),
    num_micro_batches=8,
    schedule="gpipe",
)


def price(plan):
    """A made-up time that depends on everything that may differ."""
    figures = [plan.num_micro_batches, len(plan.schedule)]
    for n, one in enumerate(plan.stages, 1):
        figures += [n * one.num_layers, 3 * n * one.zero, 5 * n * len(one.remat)]
    return float(sum(figures))


def test_equal_plans_do_not_differ():
    assert differences(FIRST, FIRST, price) == ()
    assert differences(FIRST, dataclasses.replace(FIRST, step_s=9.0, planning_s={}), price) == ()


def test_every_difference_is_named_and_the_costs_add_up():
    found = differences(FIRST, SECOND, price)
    assert [one.what for one in found] == ["micro-batches", "schedule", "stages", "remat", "ZeRO"]
    assert (found[0].first, found[0].second, found[0].cost_s) == ("4", "8", 4.0)
    assert (found[1].first, found[1].second, found[1].cost_s) == ("1f1b", "gpipe", 1.0)
    assert found[2].first == "3 layers on 1x2 as 2x1, 1 layer on 1x2 as 1x2"
    assert found[2].second == "2 times 1 layer on 1x2 as 2x1, 2 layers on 1x2 as 2x1"
    assert found[3].second == "none none layer"
    assert sum(one.cost_s for one in found) == pytest.approx(price(SECOND) - price(FIRST))


def test_what_a_stage_had_goes_with_its_layers():
    # The first plan's ZeRO level of layer 3 isn't the one of the second plan's last stage, which begins with layer 2.
    (zero,) = [one for one in differences(FIRST, SECOND, price) if one.what == "ZeRO"]
    assert (zero.first, zero.second) == ("0 0 0", "3 0 0")


def test_one_difference_alone_costs_the_whole():
    (only,) = differences(FIRST, dataclasses.replace(FIRST, schedule="gpipe"), price)
    assert only.cost_s == 1.0


def test_without_prices_no_cost_is_told():
    assert {one.cost_s for one in differences(FIRST, SECOND)} == {None}


@pytest.mark.parametrize("other", [{"model": "bert"}, {"cluster": "2 x p3.8xlarge"}, {"batch": 64}])
def test_other_problems_are_named_and_not_priced(other):
    def never(plan):
        raise AssertionError("it was priced")

    found = differences(FIRST, dataclasses.replace(SECOND, **other), never)
    assert found[0].what in other
    assert len(found) == 6
