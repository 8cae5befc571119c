"""Mean and deviation of stages and layers: from the draws of the step, and the same by hand."""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.calibration.history import corrected
from alpa_dejavu.planning.search.uncertainty import (
    Errors,
    Resolver,
    confidence,
    drawn_steps,
    layer_draws,
    meet,
    numbered_errors,
    redrawn,
    step_draws,
)
from alpa_dejavu.plans.plan_file import plan_data, read_plan, write_plan
from alpa_dejavu.problem import DrawnSeconds, Run, StepCorrection
from alpa_dejavu.slicing import slicer
from alpa_dejavu.testing import example_cluster
from models import best_and_neighbours, chain, costs_of, space
from plans import example_plan, stage

RUN = Run(8)


def candidates(communication="alpha-beta"):
    costs = costs_of(chain(6), example_cluster(1), space(), RUN, communication=communication)
    return best_and_neighbours(costs, slicer("dynamic"))


def drawn(count=200):
    found = candidates()
    errors = numbered_errors(found)
    return found, errors, errors.drawn(count), confidence(found, count)


def test_layers_add_up_to_the_stage_that_a_redrawn_cost_table_has():
    """The second way: the whole cost table priced anew with one draw's factors."""
    best, resolver = candidates()[0], Resolver()
    meet(best.table, best.space, resolver)
    errors = Errors.unmeasured(resolver)
    factors = errors.drawn(6)
    draws = layer_draws(best, errors, factors)
    for k in range(6):
        table = redrawn(best.table, best.space, resolver, factors, k)
        for choice, each in zip(best.stages, draws, strict=True):
            assert each.shape == (6, choice.last - choice.first + 1)
            by_table = table.compute_s[choice.entry] + table.collective_s[choice.entry]
            assert each[k].sum() == pytest.approx(float(by_table), rel=1e-6)


def test_one_draw_has_the_step_and_all_stages():
    """A step of one stage is its micro-batches, and what comes once a step, draw by draw."""
    found, errors, factors, known = drawn()
    steps = step_draws(found, errors, factors)
    assert known.deviation_s == pytest.approx(drawn_steps(found[:1], len(factors)).std())
    for n, one in enumerate(found):
        slowest = np.max([each.sum(axis=1) for each in layer_draws(one, errors, factors)], axis=0)
        assert np.corrcoef(slowest, steps[:, n])[0, 1] > 0.9
        assert (steps[:, n] > 0.5 * (RUN.num_micro_batches - 1) * slowest).all()


def test_a_plan_says_them_and_its_file_keeps_them(tmp_path):
    layers = (DrawnSeconds(0.25, 0.125), DrawnSeconds(0.5, 0.25))
    one = dataclasses.replace(stage((0, 1)), drawn=DrawnSeconds(0.75, 0.375, layers))
    given = example_plan(stages=(one, stage((2, 3))))
    assert read_plan(write_plan(given, tmp_path / "plan.json")) == given
    assert plan_data(given)["stages"][0]["drawn"]["layers"][1] == {"mean_s": 0.5, "deviation_s": 0.25}
    assert "drawn" not in plan_data(given)["stages"][1]
    twice = corrected(given, StepCorrection(2.0, 0.1, 3, 1)).stages[0].drawn
    assert twice == DrawnSeconds(1.5, 0.75, (DrawnSeconds(0.5, 0.25), DrawnSeconds(1.0, 0.5)))


def test_seconds_below_zero_are_refused():
    with pytest.raises(ValueError, match="drawn: deviation_s is -1"):
        DrawnSeconds(1.0, -1.0)
