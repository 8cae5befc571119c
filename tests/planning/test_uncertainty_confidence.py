"""How sure a plan is: the probability that it is nearly the best, calibrated, and the step to expect of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu._util import units
from alpa_dejavu.calibration.history import corrected
from alpa_dejavu.cli.main import main
from alpa_dejavu.planning.given._annotations import Chosen, with_confidence
from alpa_dejavu.planning.search._ranking import finished_plan
from alpa_dejavu.planning.search.uncertainty import (
    CLASSES,
    Errors,
    Factors,
    Resolver,
    closed_form,
    confidence,
    confidence_and_expected,
    confidence_of_draws,
    drawn_steps,
    layer_draws,
    meet,
    numbered_errors,
    redrawn,
    spread_shares,
    step_draws,
)
from alpa_dejavu.planning.task import Clock, Found
from alpa_dejavu.plans.plan_file import plan_data, read_plan, write_plan
from alpa_dejavu.problem import Confidence, DrawnSeconds, Run, StepCorrection
from alpa_dejavu.slicing import slicer
from alpa_dejavu.testing import example_cluster
from models import best_and_neighbours, chain, costs_of, planned, space, task_of
from plans import example_plan, stage

CLUSTER, RUN = example_cluster(1), Run(8)
SURE = Confidence(0.83, 1.25, (0.9, 1.8), 200, 9, "assumed")


def found(model, cluster=CLUSTER, communication=None):
    costs = costs_of(model, cluster, space(), RUN, communication=communication or "alpha-beta")
    return best_and_neighbours(costs, slicer("dynamic"))


def test_the_probability_by_hand():
    steps = np.array([[1.0, 2.0], [2.0, 1.0], [1.04, 1.0], [1.06, 1.0]])
    sure = confidence_of_draws(steps, steps[:, 0], "made up")
    assert sure.probability == 0.5
    assert (sure.draws, sure.candidates, sure.spread_from) == (4, 2, "made up")


def drawn_errors(rng, count, own, common=0.5):
    return np.exp(common * rng.standard_normal((count, 1)) + own * rng.standard_normal((count, len(own))))


def problems(seed):
    """Predictions of some plans, and how far off each is by itself."""
    rng = np.random.default_rng(seed)
    for _ in range(400):
        count = int(rng.integers(2, 8))
        predicted = np.sort(1 + 0.3 * rng.random(count))
        yield rng, predicted, 0.02 + 0.2 * rng.random(count)


def missed(draws):
    """By how many standard deviations the promised probabilities are off what then was true."""
    promised, kept = [], []
    for rng, predicted, own in problems(2):
        steps = predicted * draws(rng, 200, own)
        promised.append(confidence_of_draws(steps, steps[:, 0], "").probability)
        truth = (predicted * drawn_errors(rng, 1, own))[0]
        kept.append(truth[0] <= 1.05 * truth.min())
    promised = np.array(promised)
    return (np.sum(kept) - promised.sum()) / np.sqrt((promised * (1 - promised)).sum())


def test_probabilities_are_kept_on_truths_drawn_at_random():
    assert abs(missed(drawn_errors)) < 3


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng, inside = np.random.default_rng(4), []
    for _ in range(600):
        own = np.full(4, 0.1)
        truth = (1 + rng.random(4)) * drawn_errors(rng, 1, own)[0]
        predicted = truth / drawn_errors(rng, 1, own)[0]
        order = predicted.argsort()
        steps = predicted[order] * drawn_errors(rng, 200, own)
        low, high = confidence_of_draws(steps, steps[:, 0], "").interval_s
        inside.append(low <= truth[order[0]] <= high)
    assert 0.86 < np.mean(inside) < 0.94


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0.1, 10), min_size=3, max_size=3), min_size=2, max_size=20), st.floats(0.01, 100))
def test_seconds_or_minutes_and_a_plan_that_is_always_worse_make_no_difference(rows, factor):
    steps = np.array(rows)
    sure = confidence_of_draws(steps, steps[:, 0], "")
    scaled = confidence_of_draws(steps * factor, steps[:, 0] * factor, "")
    assert 0 <= sure.probability <= 1
    assert sure.expected_step_s > 0
    assert scaled.expected_step_s == pytest.approx(factor * sure.expected_step_s)
    worse = np.concatenate([steps, 2 * steps.max(axis=1, keepdims=True)], axis=1)
    assert confidence_of_draws(worse, worse[:, 0], "").probability == sure.probability


def test_the_closed_form_is_the_slicers_objective():
    for cluster in (CLUSTER, dataclasses.replace(CLUSTER, cores=2)):
        (candidate, *_) = found(chain(6, activation_bytes=1e6, parameter_bytes=1e6), cluster)
        table, stages = candidate.table, candidate.stages
        entries = [(s.first, s.last, s.submesh, s.config) for s in stages]
        micro, once = (
            np.array([[float(values[entry]) for entry in entries]])
            for values in (table.compute_s + table.collective_s, table.per_step_s)
        )
        pairs = itertools.pairwise(stages)
        sent = [sum(table.interstage.seconds(two.first, one.submesh, two.submesh)) for one, two in pairs]
        boundary = np.array([[0.0, *sent]])
        sizes = np.array([candidate.space.submeshes[s.submesh].num_devices for s in stages])
        shares = sizes / cluster.num_devices if cluster.shared else None
        assert closed_form(micro, boundary, once, RUN, shares)[0] == pytest.approx(candidate.slicing.cost_s)


def test_a_plan_file_has_it(tmp_path):
    plan = example_plan(confidence=SURE, notes=("one", "two"))
    assert read_plan(write_plan(plan, tmp_path / "plan.json")) == plan
    assert "confidence" not in plan_data(example_plan())
    assert "notes" not in plan_data(example_plan())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("probability", 1.5, r"confidence\.probability is 1\.5, but must be a number from 0 to 1"),
        ("expected_step_s", 0, r"confidence\.expected_step_s is 0, but must be seconds above 0"),
        ("interval_s", [2.0, 1.0], r"confidence\.interval_s is \[2\.0, 1\.0\], but must be \[lower, upper\]"),
        ("draws", 0, r"confidence\.draws is 0, but must be a whole number of draws, at least 1"),
        ("surety", 1, r"confidence\.surety is an unknown key"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, key, value, said):
    data = plan_data(example_plan(confidence=SURE))
    data["confidence"][key] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=said):
        read_plan(path)


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


def test_a_plan_says_them_and_its_file_keeps_them(tmp_path):
    layers = (DrawnSeconds(0.25, 0.125), DrawnSeconds(0.5, 0.25))
    one = dataclasses.replace(stage((0, 1)), drawn=DrawnSeconds(0.75, 0.375, layers))
    given = example_plan(stages=(one, stage((2, 3))))
    assert read_plan(write_plan(given, tmp_path / "plan.json")) == given
    assert plan_data(given)["stages"][0]["drawn"]["layers"][1] == {"mean_s": 0.5, "deviation_s": 0.25}
    assert "drawn" not in plan_data(given)["stages"][1]
    twice = corrected(given, StepCorrection(2.0, 0.1, 3, 1)).stages[0].drawn
    assert twice == DrawnSeconds(1.5, 0.75, (DrawnSeconds(0.5, 0.25), DrawnSeconds(1.0, 0.5)))


def test_one_candidate_is_the_best_and_its_step_is_the_middle_of_the_draws():
    steps = np.exp(np.random.default_rng(0).normal(0, 0.3, (100, 1)))
    sure = confidence_of_draws(steps, steps[:, 0], "")
    assert sure.probability == 1.0
    assert np.log(sure.expected_step_s) == pytest.approx(np.log(steps).mean())


def test_drawn_entry_by_entry_they_are_not():
    def apart(rng, count, own):
        return np.exp(np.sqrt(0.5**2 + own**2) * rng.standard_normal((count, len(own))))

    assert missed(apart) > 6


def test_a_search_says_how_sure_it_is():
    candidates = sorted(found(chain(6)), key=lambda candidate: candidate.step_s)
    sure = confidence(candidates)
    assert sure.candidates == len(candidates) > 1
    assert 0 < sure.probability <= 1
    assert sure.interval_s[0] < candidates[0].step_s < sure.interval_s[1]
    assert sure.expected_step_s >= candidates[0].step_s * (1 - 1e-9)
    assert sure == confidence(candidates), "the same question gets the same answer"


def test_every_plan_says_it():
    made = planned(chain(6), CLUSTER, space(), RUN).plan
    assert made.confidence is not None
    assert made.confidence.candidates > 1
    assert "roofline" in made.confidence.spread_from


@pytest.mark.parametrize(
    "fields", [{"probability": 1.1}, {"expected_step_s": 0.0}, {"interval_s": (2.0, 1.0)}, {"draws": 0}]
)
def test_confidence_is_checked_where_it_is_made(fields):
    with pytest.raises(ValueError, match="confidence: "):
        dataclasses.replace(SURE, **fields)


def test_a_plan_that_is_explained_says_it(tmp_path):
    path = write_plan(example_plan(confidence=SURE, notes=("a risk",)), tmp_path / "plan.json")
    lines = CliRunner().invoke(main, ["explain", str(path)]).stdout.splitlines()
    assert {f"{name:<24}{text}" for name, text in SURE.facts} <= set(lines)
    assert "a risk" in lines


def test_one_draw_has_the_step_and_all_stages():
    """A step of one stage is its micro-batches, and what comes once a step, draw by draw."""
    found, errors, factors, known = drawn()
    steps = step_draws(found, errors, factors)
    assert known.deviation_s == pytest.approx(drawn_steps(found[:1], len(factors)).std())
    for n, one in enumerate(found):
        slowest = np.max([each.sum(axis=1) for each in layer_draws(one, errors, factors)], axis=0)
        assert np.corrcoef(slowest, steps[:, n])[0, 1] > 0.9
        assert (steps[:, n] > 0.5 * (RUN.num_micro_batches - 1) * slowest).all()


def test_seconds_below_zero_are_refused():
    with pytest.raises(ValueError, match="drawn: deviation_s is -1"):
        DrawnSeconds(1.0, -1.0)


def test_the_reason_of_an_interval_is_what_makes_it():
    """A step of two powers of errors, whose logarithms' variances are 0.09 and 0.01, and a rest of no class of 0.01."""
    rng = np.random.default_rng(0)
    common, rest = np.ones((400, len(CLASSES))), np.exp(0.1 * rng.standard_normal(400))
    common[:, CLASSES.index("doublings")] = np.exp(0.1 * rng.standard_normal(400))
    common[:, CLASSES.index("products")] = np.exp(0.2 * rng.standard_normal(400))
    factors = Factors(common, np.ones((400, 1, 2)))
    steps_s = common[:, CLASSES.index("doublings")] ** 3 * common[:, CLASSES.index("products")] ** 0.5 * rest
    said = spread_shares(steps_s, factors)
    assert re.match(r"8\d % from dividing stages among devices \(assumed\), ", said)
    shares = [float(share) for share in re.findall(r"(\d+) % from", said)]
    assert shares == pytest.approx([100 * 9 / 11, 100 / 11, 100 / 11], abs=4)
    assert spread_shares(np.ones(400), factors) == ""
    against = Factors(common.copy(), factors.own)  # as two columns of draws that go against each other
    against.common[:, CLASSES.index("doublings")] /= common[:, CLASSES.index("products")] ** 0.3
    steps_s = against.common[:, CLASSES.index("doublings")] * common[:, CLASSES.index("products")] ** 0.5
    shares = [float(share) for share in re.findall(r"(\d+) % from", spread_shares(steps_s, against))]
    assert sum(shares) == pytest.approx(100, abs=1)


def test_a_plan_with_the_shorter_expected_step_is_named():
    candidates = sorted(found(chain(6)), key=lambda candidate: candidate.step_s)
    task = task_of(chain(6), CLUSTER, space(), RUN)

    def notes(order):
        chosen = Chosen(task, Found(order), order, order, Clock())
        return with_confidence(finished_plan(task, order[0]), chosen).notes

    _, expected_s = confidence_and_expected(candidates)
    assert expected_s == pytest.approx([confidence([candidate]).expected_step_s for candidate in candidates], rel=0.05)
    assert notes(candidates) == ()
    (note,) = notes([*candidates[::-1]])
    _, back_s = confidence_and_expected(candidates[::-1])
    assert f"a shorter expected step, {units.seconds(min(back_s))} instead of {units.seconds(back_s[0])}" in note
    assert f"{len(candidates[0].stages)} stage" in note
