"""What past runs say of predictions: by hand on small numbers, and by what must hold for any."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.calibration.history import Correction, Origin, StageSeconds, corrected, corrected_timeline
from alpa_dejavu.calibration.history._correction import VARIANCES, part_shares
from alpa_dejavu.calibration.history.past_run import GIVEN, UNKNOWN
from alpa_dejavu.problem import StepCorrection
from alpa_dejavu.simulation.breakdown import breakdown
from alpa_dejavu.simulation.step import StageTimes, simulate
from alpa_dejavu.testing import example_cluster
from made_up import measured
from models import chain
from past_runs import ORIGIN, computing_plan, run_of
from plans import example_plan, stage

PLAN = computing_plan()


def known(runs, **variances):
    return Correction.fit(runs, {**VARIANCES, **variances})


def test_one_run_by_hand():
    found = known([run_of(PLAN, 1.3)])
    common = sum(VARIANCES[level] for level in ("part", "cluster", "model"))
    total = common + VARIANCES["plan"]
    again = found.of(ORIGIN, PLAN)
    assert math.log(again.factor) == pytest.approx(math.log(1.3) * total / (total + VARIANCES["noise"]))
    assert again.spread**2 == pytest.approx(total - total**2 / (total + VARIANCES["noise"]) + VARIANCES["noise"])
    assert (again.runs, again.own_runs) == (1, 1)
    other = found.of(ORIGIN, computing_plan(batch=64))
    assert math.log(other.factor) == pytest.approx(math.log(1.3) * common / (total + VARIANCES["noise"]))


def test_another_model_and_another_cluster_learn_less_and_another_device_nothing():
    found = known([run_of(PLAN, 1.3)] * 4)
    plan = computing_plan(batch=64)
    places = [{}, {"model": "another"}, {"cluster": "another"}]
    by = [found.of(dataclasses.replace(ORIGIN, **place), plan) for place in places]
    assert 1.3 > by[0].factor > by[1].factor > by[2].factor > 1.05
    assert by[0].spread < by[1].spread < by[2].spread
    assert [each.own_runs for each in by] == [4, 0, 0]
    for kind in ({"devices": "T4"}, {"predictor": "another"}):
        strange = found.of(dataclasses.replace(ORIGIN, **kind), PLAN)
        assert (strange.factor, strange.runs) == (1.0, 0)
        assert strange.spread > by[2].spread


def test_parts_are_told_apart_by_plans_that_have_more_or_less_of_them():
    mixed = example_plan()
    shares = part_shares(mixed)
    assert shares.sum() == pytest.approx(1)
    assert part_shares(PLAN).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert part_shares(corrected(mixed, StepCorrection(2.0, 0.1, 1, 1))) == pytest.approx(shares)
    runs = [run_of(computing_plan(batch=batch), 1.0) for batch in (32, 64, 128)]
    runs += [run_of(example_plan(batch=batch), 1.5, model="another") for batch in (32, 64, 128)]
    found = Correction.fit(runs)
    new = {"model": "new", "cluster": "new"}
    alone, several = (found.of(dataclasses.replace(ORIGIN, **new), plan) for plan in (PLAN, mixed))
    assert several.factor > alone.factor + 0.05


def test_measured_stages_tell_computing_from_the_rest():
    mixed = example_plan()
    slow = dataclasses.replace(
        run_of(mixed, 1.3), stages=tuple(StageSeconds(0.1, 0.2, 0.0, 0.3, 0.3) for _ in mixed.stages)
    )
    whole, apart = (
        Correction.fit([run]).of(dataclasses.replace(ORIGIN, cluster="new"), PLAN) for run in (run_of(mixed, 1.3), slow)
    )
    assert apart.factor < whole.factor
    assert apart.spread < whole.spread


def test_a_plan_is_corrected_whole_and_back():
    by = StepCorrection(1.25, 0.05, 3, 2)
    plan = corrected(example_plan(), by)
    assert plan.correction == by
    assert plan.step_s == pytest.approx(1.25 * 0.25)
    assert plan.uncorrected_s == pytest.approx(0.25)
    assert plan.stages[0].forward_s == pytest.approx(1.25 * 0.009)
    assert plan.stages[0].memory_bytes == example_plan().stages[0].memory_bytes
    scaled = {part: 1.25 * value for part, value in breakdown(example_plan()).items()}
    assert breakdown(plan) == pytest.approx(scaled)
    twice = corrected(plan, StepCorrection(2.0, 0.05, 3, 2))
    assert (twice.step_s, twice.uncorrected_s) == (pytest.approx(0.5), pytest.approx(0.25))
    back = corrected(plan, StepCorrection(1.25, 0.05, 0, 0))
    assert back.correction is None
    assert back.step_s == pytest.approx(0.25)


def test_fingerprints_tell_models_and_clusters_apart_and_nothing_else():
    def origin(model=None, hosts=2):
        return Origin.of(model or chain(4), example_cluster(hosts), "analytic", "alpha-beta")

    assert origin() == origin()
    assert origin(chain(4, flop=2e9, activation_bytes=7.0)) == origin()
    assert origin(chain(4, parameter_bytes=5.0)).model != origin().model
    assert origin(chain(4, training=False)).model != origin().model
    assert origin(hosts=1).cluster != origin().cluster
    assert origin(hosts=1).devices == origin().devices == "example"
    assert "Analytic" in origin().predictor
    assert Origin.of(chain(4), example_cluster(2)).predictor == GIVEN


def test_a_calibration_is_known_by_its_name_its_day_and_all_that_it_holds():
    calibration = measured()
    cluster = calibration.applied_to(example_cluster())
    kinds = [None, calibration, dataclasses.replace(calibration, date="2024-06-01")]
    device = dataclasses.replace(calibration.devices["example"], memory_bytes_per_s=6e10)
    kinds.append(dataclasses.replace(calibration, devices={"example": device}))
    origins = [Origin.of(chain(4), cluster, "analytic", "alpha-beta", each) for each in kinds]
    assert len({origin.kind for origin in origins}) == 4
    assert origins[0].calibration == ""
    assert origins[1].calibration.startswith("cluster of 2024-05-31 (")
    assert origins[1] == Origin.of(chain(4), cluster, "analytic", "alpha-beta", measured())


def test_what_read_plans_took_corrects_nothing():
    found = Correction.fit([run_of(PLAN, 1.3, predictor=GIVEN)])
    assert found.of(dataclasses.replace(ORIGIN, predictor=GIVEN), PLAN).runs == 0


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 3.0), st.integers(1, 6), st.booleans())
def test_more_runs_that_agree_shrink_less_and_know_more(ratio, count, same_plan):
    def runs(number):
        return [run_of(PLAN if same_plan else computing_plan(batch=32 * n + 32), ratio) for n in range(number)]

    few, many = (Correction.fit(runs(number)).of(ORIGIN, PLAN) for number in (count, count + 1))
    truth = abs(math.log(runs(1)[0].ratio))
    assert 0 <= abs(math.log(few.factor)) <= abs(math.log(many.factor)) + 1e-9
    assert abs(math.log(many.factor)) <= truth + 1e-9
    assert (few.factor - 1) * (ratio - 1) >= 0
    assert many.spread <= few.spread + 1e-9


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=8), st.permutations(range(8)))
def test_runs_count_alike_in_any_order(ratios, order):
    runs = [run_of(computing_plan(batch=32 + 32 * (n % 3)), ratio) for n, ratio in enumerate(ratios)]
    shuffled = [runs[n] for n in order if n < len(runs)]
    one, other = (Correction.fit(each).of(ORIGIN, PLAN) for each in (runs, shuffled))
    assert one.factor == pytest.approx(other.factor)
    assert one.spread == pytest.approx(other.spread)


def test_scattered_runs_are_trusted_less():
    agreeing = [run_of(PLAN, 1.2)] * 6
    scattered = [run_of(PLAN, ratio) for ratio in (0.8, 1.8) * 3]
    spreads = [Correction.fit(runs).of(ORIGIN, PLAN).spread for runs in (agreeing, scattered)]
    assert spreads[0] < 0.5 * spreads[1]


def test_a_timeline_is_corrected_as_its_stages_would_be():
    stages = [StageTimes(1.0, 2.0, per_step_s=0.5, forward_send_s=0.1), StageTimes(1.5, 2.5, backward_send_s=0.2)]
    longer = corrected_timeline(simulate(stages, 4), 1.5)
    again = simulate(longer.stages, 4)
    assert again.step_s == pytest.approx(longer.step_s)
    np.testing.assert_allclose(again.forward_s, longer.forward_s)
    assert longer.stages[0].forward_s == 1.5


def test_the_same_stages_are_the_same_plan_whatever_they_take():
    plans = [
        example_plan(),
        example_plan(step_s=3.0),
        example_plan(num_micro_batches=8),
        example_plan(stages=(stage((0, 2), remat="layer"), stage((3, 3), logical=(1, 2), zero=2))),
    ]
    found = Correction.fit([run_of(plans[0], 1.5)] * 5)
    factors = [found.of(ORIGIN, plan).factor for plan in plans]
    assert factors[0] == pytest.approx(factors[1], rel=0.1)
    assert factors[0] > factors[2]
    assert factors[0] > factors[3]


def test_runs_by_unlike_calibrations_say_nothing_of_each_other():
    runs = [run_of(ratio=1.5, calibration="one")] * 8 + [run_of(ratio=0.8)] * 8
    runs.append(run_of(ratio=9.0, calibration=UNKNOWN))
    correction = Correction.fit(runs)
    found = {name: correction.of(dataclasses.replace(ORIGIN, calibration=name), example_plan()) for name in ("one", "")}
    assert found["one"].factor == pytest.approx(1.5, rel=0.1)
    assert found[""].factor == pytest.approx(0.8, rel=0.05)
    assert (found["one"].runs, found[""].runs) == (8, 8)
    for name in ("another", UNKNOWN):
        none = correction.of(dataclasses.replace(ORIGIN, calibration=name), example_plan())
        assert (none.factor, none.runs) == (1.0, 0)
