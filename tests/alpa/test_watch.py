"""Steps of a training are looked at: what another plan would mend is said once, and a history learns it."""

import dataclasses
import logging

import pytest

from alpa_dejavu import DejavuStageOption
from alpa_dejavu.alpa._watch import StepWatch
from alpa_dejavu.calibration.history import Store
from alpa_dejavu.calibration.measurement import Note, StageNotes, StepNotes
from alpa_dejavu.planning import given_stages, plan
from alpa_dejavu.problem import Run
from alpa_dejavu.testing import example_cluster
from models import chain, space, task_of

TASK = task_of(chain(8, flop=1e10, parameter_bytes=1e6), example_cluster(1, memory_bytes=2.0**36), space(), Run(32))
PLAN = plan(TASK).plan


class Executable:
    """Runs steps of one stage in a time that the test sets, and counts them."""

    def __init__(self, step_s):
        self.step_s, self.now_s, self.steps, self.syncs, self.noted = step_s, 0.0, 0, 0, []

    def launch_on_driver(self, *args):
        self.steps += 1
        self.now_s += self.step_s
        return args

    def sync(self):
        self.syncs += 1


class Workers:
    """Take notes as Alpa's do: each micro-batch takes an equal share of the step."""

    def __init__(self, executable):
        self.executable = executable

    def noting(self, noting):
        self.executable.noted.append(noting)

    def release(self):
        self.noting(False)

    def timed(self, step):
        begun, result = self.executable.now_s, step()
        each = self.executable.step_s / 64
        runs = [Note("run", n % 2, n * each + begun, (n + 1) * each + begun) for n in range(64)]
        end = self.executable.now_s
        return result, StepNotes(begun, end, (StageNotes(begun, end, tuple(runs)),))


def watched(step_s, history=None, made=PLAN):
    option = DejavuStageOption(history=history)
    option.last_plan, option.task = made, TASK
    executable = Executable(step_s)
    StepWatch(executable, option, Workers, lambda: executable.now_s)
    return executable


def train(executable, steps):
    return [executable.launch_on_driver(n) for n in range(steps)]


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_step_inside_its_interval_says_nothing_and_is_left_alone(caplog):
    executable = watched(PLAN.step_s)
    assert train(executable, 4000) == [(n,) for n in range(4000)]
    assert executable.steps == 4000
    assert executable.syncs == 4 * 2 * 10, "four looks at two windows of five steps, waited for before and after"
    assert executable.noted == []
    assert said(caplog) == []
    assert "launch_on_driver" not in vars(executable), "nothing is left to look at"


def test_a_step_off_its_prediction_is_said_once_with_its_stage(caplog):
    factor = 3.5
    executable = watched(factor * PLAN.step_s)
    assert train(executable, 500) == [(n,) for n in range(500)]
    assert executable.steps == 500
    (line,) = said(caplog)
    assert line.startswith("a step takes ")
    assert f"stage 0 (0-7 on {PLAN.stages[0].hosts[0]}) computes {factor:.2f} times as long as predicted" in line
    assert "would be chosen" in line
    assert "history=FILE" in line
    assert executable.noted == [True, False]
    assert "launch_on_driver" not in vars(executable)


def test_a_machine_that_becomes_slower_is_seen_later(caplog):
    executable = watched(PLAN.step_s)
    train(executable, 20)
    executable.step_s *= 3.5
    train(executable, 5)
    assert said(caplog) == []
    train(executable, 30)
    assert len(said(caplog)) == 1


def test_a_history_learns_it_and_the_next_start_knows(tmp_path, caplog):
    path = tmp_path / "history.sqlite"
    train(watched(3.5 * PLAN.step_s, path), 500)
    (line,) = said(caplog)
    assert str(path) in line
    (run,) = Store(path).runs()
    assert given_stages(run.plan) == given_stages(PLAN)
    assert run.predicted_s == pytest.approx(PLAN.step_s)
    assert run.measured_s == pytest.approx(3.5 * PLAN.step_s)
    again = plan(dataclasses.replace(TASK, learned=Store(path).runs())).plan
    assert given_stages(again) != given_stages(PLAN)


def test_what_cannot_be_explained_ends_nothing(tmp_path, caplog):
    (tmp_path / "history.sqlite").write_text("")
    executable = watched(3.5 * PLAN.step_s, tmp_path / "history.sqlite")
    (tmp_path / "history.sqlite").write_text("no history")
    assert len(train(executable, 500)) == 500
    (line,) = said(caplog)
    assert line.startswith("the steps that were looked at can't be explained: ")
    assert "is no history" in line


def test_workers_that_take_no_notes_end_nothing(caplog):
    executable = Executable(3.5 * PLAN.step_s)
    option = DejavuStageOption()
    option.last_plan, option.task = PLAN, TASK

    def gone(_executable):
        raise RuntimeError("the worker is gone")

    StepWatch(executable, option, gone, lambda: executable.now_s)
    assert len(train(executable, 50)) == 50
    assert said(caplog) == ["steps can't be looked at: the worker is gone"]


def test_a_step_off_its_prediction_by_which_the_same_plan_is_best_says_nothing(caplog):
    executable = watched(0.2 * PLAN.step_s)
    assert len(train(executable, 4000)) == 4000
    assert said(caplog) == []
    assert executable.noted == [True, False] * 4


def test_steps_that_still_become_shorter_say_nothing(caplog):
    """As on a machine that compiles, warms up or shares its cores: the steps looked at first are off, and settle."""
    executable = watched(20 * PLAN.step_s)
    for _ in range(100):
        train(executable, 1)
        executable.step_s = max(0.85 * executable.step_s, PLAN.step_s)
    assert said(caplog) == []
    assert executable.noted == []


def test_steps_that_never_settle_say_nothing(caplog):
    executable = watched(PLAN.step_s)
    for n in range(400):
        executable.step_s = (4 + 3 * (n // 5 % 2)) * PLAN.step_s
        train(executable, 1)
    assert said(caplog) == []


def test_steps_that_are_as_predicted_once_they_are_noted_say_nothing(caplog):
    executable = watched(3.5 * PLAN.step_s)
    train(executable, 3 + 10)
    executable.step_s = PLAN.step_s
    train(executable, 10)
    assert executable.noted == [True, False]
    assert said(caplog) == []


def test_a_history_learns_what_is_as_predicted_without_a_word(tmp_path, caplog):
    path = tmp_path / "history.sqlite"
    executable = watched(1.1 * PLAN.step_s, path)
    train(executable, 4000)
    assert said(caplog) == []
    assert len(Store(path).runs()) == 1
    assert executable.noted == [True, False]


def test_an_error_of_the_step_is_passed_on():
    executable = watched(PLAN.step_s)
    executable.step_s = None
    with pytest.raises(TypeError):
        train(executable, 1)
