"""What past runs say of predictions: by hand on small numbers, and by what must hold for any."""

import dataclasses
import math

import pytest

from alpa_dejavu.calibration.history import Correction, Origin, StageSeconds, corrected
from alpa_dejavu.calibration.history._correction import VARIANCES, part_shares
from alpa_dejavu.calibration.history.past_run import GIVEN
from alpa_dejavu.problem import StepCorrection
from alpa_dejavu.simulation.breakdown import breakdown
from alpa_dejavu.testing import example_cluster
from made_up import measured
from models import chain
from past_runs import ORIGIN, computing_plan, run_of
from plans import example_plan

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
