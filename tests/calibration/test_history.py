"""The history on the command line and in planning: shown, appended to, and what plans make of it."""

import contextlib
import dataclasses
import json
import sys
import types

import pytest
from click.testing import CliRunner

from alpa_dejavu.calibration import Calibration, write_calibration
from alpa_dejavu.calibration.history import Origin, PastRun, Store, corrected
from alpa_dejavu.calibration.history.past_run import plan_key
from alpa_dejavu.calibration.measurement import MeasuredPlan
from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.changed.deviation import past_run
from alpa_dejavu.plans.plan_file import read_plan, write_plan
from alpa_dejavu.plans.table import plan_table
from alpa_dejavu.problem import StepCorrection
from jax_models import trained
from past_runs import computing_plan, run_of
from plans import example_plan

CLUSTER = named_cluster("p3.16xlarge")


def planned(history=None):
    return plan_model(trained, CLUSTER, batch=16, micro_batches=4, layers=2, history=history)


@pytest.fixture(scope="module")
def plain():
    return planned()


def command(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def measured(plans, ratio):
    """A run of a plan that took `ratio` times as long as predicted."""
    origin = Origin.of(plans.model, plans.cluster, "kernels", "nccl")
    return PastRun(plans.plan, origin, plans.plan.uncorrected_s, (ratio * plans.plan.uncorrected_s,) * 5)


def test_plans_are_corrected_by_past_runs_and_learn_nothing_from_themselves(tmp_path, plain):
    store = Store(tmp_path / "history.sqlite")
    first = planned(store.path)
    assert first.plan.step_s == plain.plan.step_s
    assert first.plan.correction is None
    for _ in range(4):
        store.append(measured(first, 1.4))
    store.append(measured(planned(store.path), 1.4))
    made = planned(store.path)
    by = made.plan.correction
    assert (by.runs, by.own_runs) == (5, 5)
    assert 1.3 < by.factor <= 1.4
    assert made.plan.uncorrected_s == pytest.approx(made.plan.step_s / by.factor)
    assert made.timeline.step_s == pytest.approx(made.plan.step_s)
    steps = [made.plan.step_s, *(other.plan.step_s for other in made.runners_up)]
    assert steps == sorted(steps)
    assert [run.ratio for run in store.runs()] == pytest.approx([1.4] * 5)


def test_the_history_is_shown_as_tables_and_as_json(tmp_path):
    store = Store(tmp_path / "history.sqlite")
    store.append(run_of(example_plan(), 1.5))
    store.append(run_of(computing_plan("", layers=3), 1.1, model="nameless"))
    result = command("history", "--history", store.path)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"{store.path}: 2 runs"
    assert lines[1].split() == "when model cluster predicted measured steps ratio plan".split()
    assert "gpt-125m" in lines[2]
    assert "250 ms" in lines[2]
    assert "375 ms" in lines[2]
    assert "1.500" in lines[2]
    assert "4 micro-batches: 0-2 on 2x1, 3 on 1x2 ZeRO 1" in lines[2]
    assert "model nameless" in lines[3]
    assert lines[4].split()[:4] == "a new plan for".split()
    assert len(lines) == 7
    data = json.loads(command("history", "--history", store.path, "--json").stdout)
    assert (data["version"], data["file"]) == (1, str(store.path))
    assert [run["ratio"] for run in data["runs"]] == pytest.approx([1.5, 1.1])
    assert data["runs"][0]["when"] == "2023-11-14T22:13:20+00:00"
    assert [each["own_runs"] for each in data["corrections"]] == [1, 1]
    assert all(each["factor"] > 1 for each in data["corrections"])
    assert f"{data['corrections'][0]['factor']:.3f}" in lines[5]


def test_a_history_without_runs_and_one_that_is_none_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("ALPA_DEJAVU_HISTORY", str(tmp_path / "mine.sqlite"))
    result = command("history")
    assert result.exit_code == 0
    assert "mine.sqlite has no runs yet; `alpa-dejavu profile` appends them" in result.stdout
    assert not (tmp_path / "mine.sqlite").exists()
    (tmp_path / "mine.sqlite").write_text("no history")
    result = command("history")
    assert result.exit_code == 1
    assert "mine.sqlite is no history" in result.stderr
    assert (tmp_path / "mine.sqlite").read_text() == "no history"


def test_the_command_line_says_by_how_many_runs_it_corrected(tmp_path, monkeypatch, plain):
    from alpa_dejavu import planning

    store = Store(tmp_path / "history.sqlite")
    words = ["plan", "--model", "x", "--cluster", "p3.16xlarge", "--batch", "16", "--history", store.path]
    real = planning.plan_model

    def small(*_, history, **_others):
        return real(trained, CLUSTER, batch=16, micro_batches=4, layers=2, history=history)

    monkeypatch.setattr(planning, "plan_model", small)
    assert f"not corrected           {store.path} has no runs on such devices yet" in command(*words).stdout
    store.append(measured(plain, 1.4))
    result = command(*words)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("corrected by 1 run ")]
    assert "; 1 of this model on this cluster" in line


def test_a_broken_history_stops_a_profile_before_it_starts(tmp_path):
    path = write_plan(example_plan(), tmp_path / "plan.json")
    (tmp_path / "history.sqlite").write_text("no history")
    result = command("profile", path, "--history", tmp_path / "history.sqlite")
    assert result.exit_code == 1
    assert "history.sqlite is no history" in result.stderr


def test_runs_are_told_from_those_of_another_calibration(tmp_path, plain):
    store = Store(tmp_path / "history.sqlite")
    calibration = figures(1.0)

    def by(known):
        return plan_model(trained, CLUSTER, batch=16, micro_batches=4, layers=2, history=store.path, calibration=known)

    first = by(calibration)
    for _ in range(4):
        seconds = (1.4 * first.plan.uncorrected_s,) * 5
        origin = Origin.of(first.model, first.cluster, "analytic", "alpha-beta", calibration)
        store.append(PastRun(first.plan, origin, first.plan.uncorrected_s, seconds))
    assert by(figures(1.0)).plan.correction.runs == 4
    assert by(figures(1.01)).plan.correction is None
    assert by(None).plan.correction is None


def figures(faster):
    """A calibration of the cluster's devices: they are so much faster than by their data sheet."""
    device = CLUSTER.hosts[0].device
    changed = dataclasses.replace(device, memory_bytes_per_s=faster * device.memory_bytes_per_s)
    return Calibration("mine", "made up", "2024-05-31", devices={device.name: changed})


def test_runs_of_an_older_release_are_shown_and_said_to_correct_nothing(tmp_path):
    store = Store(tmp_path / "history.sqlite")
    store.append(run_of(calibration="unknown"))
    result = command("history", "--history", store.path)
    assert result.exit_code == 0
    assert "1 run of an older release" in result.stdout
    assert json.loads(command("history", "--history", store.path, "--json").stdout)["corrections"] == []


def test_the_best_plan_by_past_runs_is_chosen(tmp_path, plain):
    store = Store(tmp_path / "history.sqlite")
    second = plain.runners_up[0].plan
    for _ in range(10):
        store.append(measured(plain, 1.3 * second.step_s / plain.plan.step_s))
        store.append(measured(dataclasses.replace(plain, plan=second), 1.0))
    made = planned(store.path).plan
    assert plan_key(made) == plan_key(second) != plan_key(plain.plan)
    assert made.step_s == pytest.approx(second.step_s, rel=0.05)


def test_a_corrected_plan_says_so_in_its_file_and_its_table(tmp_path):
    plan = corrected(example_plan(), StepCorrection(1.25, 0.05, 3, 2))
    assert read_plan(write_plan(plan, tmp_path / "plan.json")) == plan
    assert "corrected by 3 runs: 1.250 times" in plan_table(plan)
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["correction"] == {"factor": 1.25, "spread": 0.05, "runs": 3, "own_runs": 2}
    data["correction"]["factor"] = 0
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"correction\.factor is 0, but must be a number above 0"):
        read_plan(tmp_path / "plan.json")


def test_what_was_measured_becomes_a_run(plain):
    made = plain
    stages = made.timeline.stages
    found = MeasuredPlan((0.2, 0.3, 0.4), (0.5,), stages, tuple((0.01, 0.02) for _ in stages), 0.0, made.timeline)
    run = past_run(made, found)
    assert (run.measured_s, run.predicted_s, run.plan) == (0.3, made.plan.step_s, made.plan)
    assert run.stages[0].computing_s == pytest.approx(0.03)
    assert run.stages[0].predicted_computing_s == pytest.approx(stages[0].forward_s + stages[0].backward_s)
    assert run.origin == Origin.of(made.model, made.cluster, "analytic", "alpha-beta")


def test_a_profile_hands_over_what_predicted_it(tmp_path, monkeypatch, plain):
    from alpa_dejavu import alpa

    stages = plain.timeline.stages
    found = MeasuredPlan((0.2,), (0.5,), stages, tuple((0.01, 0.02) for _ in stages), 0.0, plain.timeline)
    monkeypatch.setattr(alpa, "connection", lambda given: contextlib.nullcontext(CLUSTER))
    monkeypatch.setattr(alpa, "profile", lambda *_: found)
    monkeypatch.setitem(sys.modules, "of_this_test", types.SimpleNamespace(trained=trained))
    path, store = write_plan(plain.plan, tmp_path / "plan.json"), Store(tmp_path / "history.sqlite")
    words = ["profile", path, "--model", "of_this_test:trained", "--history", store.path]
    write_calibration(figures(1.0), tmp_path / "mine.json")
    for more in ([], ["--calibration", tmp_path / "mine.json"], ["--calibration", "none"]):
        result = command(*words, *more)
        assert result.exit_code == 0, result.output
    origins = [run.origin for run in store.runs()]
    assert [origin.predictor for origin in origins] == [
        "KernelLatency + Nccl", "AnalyticLatency + AlphaBeta", "AnalyticLatency + AlphaBeta",
    ]  # fmt: skip
    assert [origin.calibration for origin in origins] == ["", figures(1.0).identity, ""]
    shown = json.loads(command("history", "--history", store.path, "--json").stdout)["runs"]
    assert [run["calibration"] for run in shown] == [origin.calibration for origin in origins]
    result = command(*words, "--calibration", "v10")
    assert result.exit_code == 1
    assert "there is no calibration 'v10'" in result.stderr
