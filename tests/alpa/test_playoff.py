"""The playoff: which plans are compiled and timed in which order, which one is kept, and what the user's state sees.

Plans are compiled by a stand-in whose clock is the test's own, but for one test on Ray.
"""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from alpa.global_env import global_config

import alpa_dejavu
from alpa_dejavu import DejavuStageOption
from alpa_dejavu.alpa._playoff import Argument, Playoff, most_entrants
from alpa_dejavu.testing import example_cluster
from plans import example_plan
from trained_alpa import check_trains_as_one_device

COMPILE_S = 3.0


class Devices:
    """Devices on which steps of plans take as long as the test says; a plan without seconds can't be compiled."""

    def __init__(self, step_s):
        self.now_s, self.step_s = 0.0, step_s
        self.compiled, self.stopped, self.forgotten, self.failing = [], 0, 0, ()
        self.mesh = SimpleNamespace(launched_physical_mesh_group=None)
        self.user = DejavuStageOption(profile="playoff", budget_s=60.0)
        self.plans = tuple(example_plan(step_s=1.0 - n / 10) for n in range(len(step_s)))

    def compile(self, option):
        if option is self.user:
            option.entrants = self.plans
        number = 0 if option is self.user else self.plans.index(option.plan)
        self.compiled.append(number)
        self.now_s += COMPILE_S
        assert self.mesh.launched_physical_mesh_group is None, "the devices are free"
        self.mesh.launched_physical_mesh_group = SimpleNamespace(exception_shutdown=self.stop)
        if self.step_s[number] is None:
            raise RuntimeError("out of memory\nat an address")
        return Executable(self, number)

    def stop(self):
        self.stopped += 1

    def forget(self, name):
        self.forgotten += 1

    def played(self):
        arguments = [Argument(np.zeros(3), True, False), Argument(np.zeros((4, 2)), False, True)]
        executable = Playoff(self.compile, self.user, self.mesh, arguments, lambda: self.now_s).fastest()
        return executable.number


class Executable:
    """A plan that runs on the devices."""

    exec_uuid = 7

    def __init__(self, devices, number):
        self.devices, self.number = devices, number
        mesh = SimpleNamespace(reset_remote_timer=devices.forget)
        self.mesh_group = [mesh]
        self.input_placement_specs = [None, None]

    def sync(self):
        assert not global_config.use_dummy_value_for_benchmarking

    def launch_on_driver(self, state, batch):
        assert (state.shape, batch.shape) == ((3,), (4, 2))
        self.devices.now_s += self.devices.step_s[self.number]
        return [SimpleNamespace(device_mesh=self, remote_ref="result")]

    def block_until_ready_remote_buffers(self, refs):
        assert refs == ["result"]
        if self.number in self.devices.failing:
            raise KeyError(7)


@pytest.fixture(autouse=True)
def _without_hooks():
    yield
    alpa_dejavu.uninstall()


def test_the_plan_with_the_shortest_prediction_is_timed_last_and_kept_where_it_is_the_fastest():
    devices = Devices([0.3, 0.2, 0.1])
    assert devices.played() == 2
    assert devices.compiled == [0, 1, 2]
    assert devices.stopped == 2
    assert devices.forgotten == 3
    assert devices.user.last_plan.stages == devices.plans[2].stages
    assert devices.user.last_plan.notes[-1].startswith("tried on the devices: this one took 100 ms a step, ")


def test_another_plan_that_is_faster_is_compiled_again_and_kept():
    devices = Devices([0.3, 0.1, 0.2])
    assert devices.played() == 1
    assert devices.compiled == [0, 1, 2, 1]
    assert devices.user.last_plan.step_s == devices.plans[1].step_s


def test_a_plan_that_cannot_be_compiled_is_left_out_and_that_is_told(caplog):
    devices = Devices([0.3, None, 0.4])
    with caplog.at_level("WARNING", "alpa_dejavu"):
        assert devices.played() == 0
    assert "can't be tried: RuntimeError: out of memory" in caplog.text
    assert "(1 of 3 plans weren't tried)" in devices.user.last_plan.notes[-1]


def test_a_plan_that_fails_in_its_workers_is_not_the_fastest():
    devices = Devices([0.3, 0.001, 0.4])
    devices.failing = (1,)
    assert devices.played() == 0


def test_where_no_plan_runs_the_error_of_the_chosen_one_is_raised():
    devices = Devices([None, None])
    with pytest.raises(RuntimeError, match="out of memory"):
        devices.played()
    assert devices.compiled == [0, 1, 1]


def test_plans_for_which_there_is_no_time_are_left_out():
    devices = Devices([0.3, 0.1, 0.2])
    devices.user.budget_s = 7.0
    assert devices.played() == 2
    assert devices.compiled == [0, 2]


@pytest.mark.ray
@pytest.mark.slow
def test_plans_are_tried_on_a_cluster_and_the_fastest_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    option = DejavuStageOption(profile="playoff", budget_s=600.0, cluster=example_cluster(1, 2))
    check_trains_as_one_device(option)
    tried = option.last_plan.notes[-1]
    assert tried.startswith("tried on the devices: this one took ")
    assert len(re.findall(r"[\d.]+ m?s", tried)) == len(option.entrants) > 1


def test_a_pipeline_that_runs_already_is_left_alone():
    devices = Devices([0.3, 0.1])
    devices.mesh.launched_physical_mesh_group = SimpleNamespace(exception_shutdown=devices.stop)

    def refuses(option):
        raise NotImplementedError("this virtual mesh already runs another pipeline")

    with pytest.raises(NotImplementedError, match="already runs"):
        Playoff(refuses, devices.user, devices.mesh, [], lambda: 0.0).fastest()
    assert devices.stopped == 0
    assert devices.mesh.launched_physical_mesh_group is not None


def test_of_plans_that_are_as_fast_the_shorter_prediction_decides():
    assert Devices([0.199, 0.25, 0.2]).played() == 2


def test_an_interrupt_stops_the_workers():
    devices = Devices([0.3, 0.1])

    def interrupted(name):
        raise KeyboardInterrupt

    devices.forget = interrupted
    with pytest.raises(KeyboardInterrupt):
        devices.played()
    assert devices.stopped == 1
    assert devices.mesh.launched_physical_mesh_group is None


def test_long_steps_are_timed_less_often():
    devices = Devices([5.0, 4.0])
    devices.played()
    assert devices.now_s == pytest.approx(2 * COMPILE_S + 3 * 5.0 + 3 * 4.0)


def test_one_plan_alone_is_not_timed():
    devices = Devices([0.3])
    assert devices.played() == 0
    assert devices.now_s == COMPILE_S


@pytest.mark.parametrize(
    ("profile", "budget_s", "most"), [("never", 60, 1), ("playoff", 0, 1), ("playoff", 10, 3), ("playoff", 60, 5)]
)
def test_the_budget_says_how_many_plans_take_part(profile, budget_s, most):
    assert most_entrants(DejavuStageOption(profile=profile, budget_s=budget_s)) == most
