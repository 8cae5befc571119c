"""Whether many starts pay: what counts as steps and compute, what is said of it, and that a second run goes on."""

import contextlib
import dataclasses
import json
import math

import numpy as np
import pytest

import parallel_initialization
from alpa_dejavu.training.initialization import Curve, Initialized
from races import _seconds, _ways
from races._data import CHARACTERS, batch, digits, source_text
from races._figures import foresight, of_any, summaries
from races._models import TASKS
from races._plan import JUDGED, QUICK
from races._report import overview, tables, verdict
from races._seconds import ALONE, RACE, TASK, settings_of, told
from races._ways import (
    BUDGETS,
    RULES,
    SMOOTHED_STEPS,
    STARTS,
    Way,
    contests,
    of_contests,
    race_of,
    row,
    search_of,
    steps_to,
    ways,
)

FEW = dataclasses.replace(QUICK, workers=4, steps=80, pairs=0)


@pytest.fixture
def _few(monkeypatch):
    monkeypatch.setattr(parallel_initialization, "QUICK", FEW)
    kept = [way for way in ways(4) if way.keep == "halving" and way.init == "sobol"]
    monkeypatch.setattr(parallel_initialization, "ways", lambda workers: tuple(kept))
    monkeypatch.setattr(parallel_initialization, "tables", lambda result, plan: ())
    monkeypatch.setattr(parallel_initialization, "overview", lambda result, plan: "said")
    monkeypatch.setattr(parallel_initialization, "verdict", lambda result, plan: verdict_of(True))


def verdict_of(held):
    return type("Said", (), {"lines": ("said",), "details": (), "held": held})()


@pytest.mark.usefixtures("_few")
def test_a_second_run_goes_on_where_the_first_one_stopped(tmp_path, monkeypatch):
    out, measured = tmp_path / "out.json", []

    def stopping(task, way, seed, target):
        measured.append((way.name, seed))
        if len(measured) == 5:
            raise KeyboardInterrupt
        return row(task, way, seed, target)

    monkeypatch.setattr(parallel_initialization, "row", stopping)
    with pytest.raises(KeyboardInterrupt):
        parallel_initialization.main(["--quick", "--json", str(out)])
    assert parallel_initialization.main(["--quick", "--json", str(out)]) == 0
    assert measured[4] == measured[5]
    assert len(set(measured)) == len(measured) - 1
    rows = json.loads(out.read_text(encoding="utf-8"))["models"]["mlp"]["rows"]
    assert {len(each) for each in rows.values()} == {2}
    for name, (one, other) in rows.items():
        budget = 1.25 if name.endswith("small") else math.inf
        assert one["all_steps"] == other["all_steps"] <= budget * FEW.steps
        assert 0.5 < one["accuracy"] < 1
    assert rows[search_of("sobol")][0]["all_steps"] == 4 * FEW.steps
    assert len(rows[search_of("sobol")][0]["each"]) == 4
    monkeypatch.setattr(parallel_initialization, "QUICK", dataclasses.replace(FEW, workers=3))
    with pytest.raises(SystemExit, match="name another file"):
        parallel_initialization.main(["--quick", "--json", str(out)])


def test_compute_is_that_of_all_until_the_target_is_reached(monkeypatch):
    falling = np.concatenate([np.ones(60), np.zeros(40)])
    curves = (curve(0, falling), curve(1, np.ones(20), dropped=20), curve(2, np.ones(10), dropped=10))
    result = Initialized({}, 0, 100, curves, (10, 20), 136, 2, 0, 0, 0, 1.0, 0)
    monkeypatch.setattr(_ways, "trained", lambda *_: result)
    task = type("Untested", (), {"accuracy": lambda self, state: 0.5})()
    found = row(task, Way("it", 3), 0, 0.5)
    assert (found["reached"], found["compute"]) == (80, 80 + 20 + 10)
    assert (found["all_steps"], found["idle_steps"]) == (136, 2)
    assert row(task, Way("it", larger=4), 0, -1.0)["reached"] is None
    steps = [np.full(100, 2.0 - n) for n in range(3)]
    result = dataclasses.replace(result, curves=tuple(curve(n, each) for n, each in enumerate(steps)))
    task.steps = 100
    found = row(task, Way("all", 3, pruned=False), 0, 1.0)
    # The second and the third are there as soon as it can be told.
    assert (found["reached"], found["compute"]) == (SMOOTHED_STEPS, 3 * SMOOTHED_STEPS)
    assert found["each"] == [None, SMOOTHED_STEPS, SMOOTHED_STEPS]
    assert found["early"] == [2.0, 1.0, 0.0]
    assert steps_to(falling[: SMOOTHED_STEPS - 1], 2.0) is None


def test_contests_alone_are_told_without_the_rest():
    rows = {way.name: rows_of(40)[way.name] for way in of_contests(2)}
    models = {"mlp": {"target": 1.0, "rows": rows}}
    plan = dataclasses.replace(QUICK, steps=100, workers=2)
    said = verdict({"models": models}, plan)
    assert any("of 2 contests are surely faster" in line for line in said.lines)
    assert not said.details
    table = overview({"models": models}, plan)
    assert {way.name for way in contests(2)} < {line[0] for line in table.rows}
    assert "halving, model, full" not in {line[0] for line in table.rows}
    assert len(overview({"models": {"mlp": {"target": 1.0, "rows": rows_of(40)}}}, plan).rows) == len(ways(2))


def test_who_diverges_does_not_reach_the_target(monkeypatch):
    def diverging(*_):
        raise RuntimeError("all 1 candidates are dropped")

    monkeypatch.setattr(_ways, "trained", diverging)
    task = type("Untested", (), {"steps": 100})()
    found = row(task, Way("it", larger=4), 0, 1.0)
    assert (found["reached"], found["compute"], found["all_steps"]) == (None, None, 400)


def curve(number, losses, dropped=None):
    return Curve(number, losses, losses, dropped, "")


def rows_of(reached, small=1.25):
    """Ten seeds, in which races from Sobol's scales reach the target after so many of 100 steps."""
    rows = {}
    for way in ways(2):
        steps = reached if way.is_race and way.init == "sobol" else 60
        whole = 100 * (small if way.budget == "small" else 2)
        rows[way.name] = [
            {"seed": seed, "reached": steps + seed, "compute": 2 * steps, "all_steps": whole, "idle_steps": 5,
             "accuracy": 0.9, "seconds": 1.0, "each": [70, 60 + seed], "early": [2.0, 1.0]} for seed in range(10)
        ]  # fmt: skip
    return rows


@pytest.mark.parametrize(
    ("reached", "small", "held"), [(40, 1.25, True), (60, 1.25, False), (40, 1.3, False), (90, 1.25, False)]
)
def test_what_is_missed_is_said(reached, small, held):
    models = {name: {"target": 1.0, "rows": rows_of(reached, small)} for name in TASKS}
    plan = dataclasses.replace(QUICK, steps=100)
    said = verdict({"models": models}, plan)
    assert said.held == held
    assert sum("MISSED" in line for line in said.lines) == (not held)
    assert f"mlp, sobol: faster in {4 if reached == 40 else 0} of 4 races" in " ".join(said.details)
    models["mlp"]["rows"] = rows_of(70)
    assert verdict({"models": models}, plan).held == held


def test_a_run_that_does_not_reach_the_target_counts_as_two_trainings():
    rows = rows_of(40)
    for one in rows[JUDGED]:
        one |= {"reached": None, "compute": None}
    by_name = {one.name: one for one in summaries(rows, 100)}
    assert by_name[JUDGED].steps.mean == 200
    assert by_name[JUDGED].unreached == 10
    assert by_name[JUDGED].ratio.low > 2
    for one in rows["one start"]:
        one["accuracy"] = None
    assert np.isnan({one.name: one for one in summaries(rows, 100)}["one start"].accuracy.mean)


def test_what_starts_are_worth_without_a_race():
    rows = rows_of(40)
    # Next to one start after 60 to 69 steps: 70 steps, and as many as that one.
    ratios = [np.sqrt(70 / (60 + seed)) for seed in range(10)]
    assert of_any(rows, "sobol", 100).mean == pytest.approx(np.exp(np.mean(np.log(ratios))))
    assert foresight(rows, "sobol", 100) == pytest.approx(1.0)
    rows[search_of("sobol")][0]["each"] = [60, None]
    assert foresight(rows, "sobol", 100) == pytest.approx(0.8)


def test_a_large_batch_begins_with_the_small_one_and_tests_are_on_other_data():
    small, large = (batch(digits(), rows, 3, 5) for rows in (4, 16))
    assert (large[0][:4] == small[0]).all()
    text = source_text(16)
    assert text.inputs.shape[1:] == (16,)
    assert (text.inputs[:, 1:] == text.labels[:, :-1]).all()
    assert 0 < text.inputs.max() < CHARACTERS
    assert len(text.test_inputs) > 1000


def test_each_rule_start_and_budget_is_a_way():
    names = [way.name for way in ways(8)]
    assert len(set(names)) == len(names)
    assert {race_of(*each) for each in [(r, s, b) for r in RULES for s in STARTS for b in BUDGETS]} <= set(names)
    assert JUDGED in names


def test_reports_tell_seconds_to_the_target_and_of_a_step():
    # Two workers in a race of 40 steps, the second one slower; a step takes 0.1 s, beside the other one 0.2 s.
    race = [(5.0, 10), (5.5, 10), (7.0, 20), (8.0, 20), (9.0, 30), (10.5, 30), (11.0, 40), (13.0, 40)]
    later = [(14.0, 50), (15.0, 60), (16.0, 70)]
    found = told([*race, *later], 40, 55, 16.5)
    assert found == pytest.approx(
        {"steps": 55, "to_target_s": 15.0, "begun_s": 3.0, "step_s": 0.2, "later_step_s": 0.1, "whole_s": 16.5}
    )
    found = told([(2.0, 10), (3.0, 20)], 20, None, 3.5)
    assert (found["to_target_s"], found["later_step_s"]) == (None, None)


def pairs_of(race, alone):
    """Five of them, with steps and seconds to the target, seconds of a step, and of the beginning."""
    keys = "steps", "to_target_s", "step_s", "begun_s"
    runs = [dict(zip(keys, each, strict=False)) for each in (race, alone)]
    rest = {"begun_s": 5.0, "later_step_s": None, "whole_s": 40.0}
    return {
        "settings": settings_of(TASK), "target": 0.5,
        "pairs": [{"seed": seed, "race": {**rest, **runs[0]}, "alone": {**rest, **runs[1]}} for seed in range(5)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("race", "alone", "held"),
    [
        ((80, 19.0, 0.2), (100, 23.0, 0.2), (True, True)),
        # Workers that slow each other.
        ((80, 25.0, 0.25), (100, 23.0, 0.2), (False, False)),
        ((80, 22.0, 0.22), (100, 23.0, 0.2), (False, True)),
        # As the steps say, but for the beginning.
        ((80, 24.0, 0.2, 9.0), (100, 23.0, 0.2), (True, False)),
        # As the steps say, which says that it doesn't pay.
        ((100, 23.5, 0.2), (100, 23.0, 0.2), (True, False)),
        ((None, None, 0.2), (100, 23.0, 0.2), (True, False)),
    ],
)
def test_seconds_are_held_against_steps_and_against_one_start(race, alone, held):
    result = {"models": {}, "seconds": pairs_of(race, alone)}
    said = verdict(result, QUICK)
    assert [line.startswith("Held") for line in said.lines] == list(held)
    assert said.held == all(held)
    (table,) = tables(result, QUICK)
    assert "0.2000" in {cell for line in table.rows for cell in line}
    result["seconds"]["pairs"] = result["seconds"]["pairs"][:1]
    assert not verdict(result, QUICK).held


def test_pairs_in_turns_go_on_where_they_stopped(tmp_path, monkeypatch):
    out, calls = tmp_path / "out.json", []
    plan = dataclasses.replace(QUICK, seeds=(0, 1, 2), pairs=3)

    def timed(task, way, seed, target):
        calls.append((seed, way.name))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return {"steps": 50, "to_target_s": 9.0, "begun_s": 1.0, "step_s": 0.2, "later_step_s": None, "whole_s": 12.0}

    monkeypatch.setattr(parallel_initialization, "QUICK", plan)
    monkeypatch.setattr(type(plan), "target", lambda self, task: 0.25)
    monkeypatch.setattr(_seconds, "timed", timed)
    monkeypatch.setattr(_seconds, "local_cluster", lambda devices: contextlib.nullcontext())
    monkeypatch.setattr(_seconds, "_of_workers", dict)
    monkeypatch.setattr(parallel_initialization.os, "sched_getaffinity", lambda pid: {0, 1})
    arguments = ["--quick", "--only", "seconds", "--json", str(out)]
    # What the first version of the file has of steps stays.
    kept = {"mlp": {"data": "x", "rows": {}}}
    out.write_text(json.dumps({"version": 1, "settings": plan.settings(), "models": kept, "seconds": [1]}))
    with pytest.raises(KeyboardInterrupt):
        parallel_initialization.main(arguments)
    assert parallel_initialization.main(arguments) == 1
    one, two = ALONE.name, RACE.name
    assert calls == [(0, one), (0, two), (1, two), (1, one), (1, two), (1, one), (2, one), (2, two)]
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["version"], found["models"], found["seconds"]["target"]) == (2, kept, 0.25)
    assert [pair["seed"] for pair in found["seconds"]["pairs"]] == [0, 1, 2]
    monkeypatch.setattr(parallel_initialization, "QUICK", dataclasses.replace(plan, seconds_steps=90))
    with pytest.raises(SystemExit, match="name another file"):
        parallel_initialization.main(arguments)
    monkeypatch.setattr(parallel_initialization.os, "sched_getaffinity", lambda pid: {0})
    with pytest.raises(SystemExit, match="needs 2 cores"):
        parallel_initialization.main(arguments)


def test_a_race_has_as_many_starts_as_workers():
    assert (RACE.starts, RACE.name, ALONE.starts) == (_seconds.WORKERS, JUDGED, 1)
    # Ray's workers are given the network by name.
    assert type(TASK.network) is type(TASKS["mlp"].network)
    assert _seconds._of_workers()["PYTHONPATH"].split(":")[0].endswith("benchmarks")
