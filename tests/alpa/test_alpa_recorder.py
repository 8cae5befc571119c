"""Steps of executables that keep a history: read from Alpa's timers, once each, and never in the way of a shutdown."""

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import ray
from alpa.global_env import global_config

import alpa_dejavu
from alpa_dejavu import DejavuStageOption
from alpa_dejavu.alpa import _recorder, record
from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.calibration.history import PastRun, Store, corrected
from alpa_dejavu.problem import StepCorrection
from past_runs import ORIGIN
from plans import example_plan

PLAN = corrected(example_plan(), StepCorrection(1.25, 0.05, 3, 2))


class Executable:
    """Has timers, as Alpa's has."""

    def __init__(self, steps_s):
        self.steps_s = steps_s

    def get_execution_time_costs(self):
        return self.steps_s


@pytest.fixture(autouse=True)
def _waiting(monkeypatch):
    monkeypatch.setattr(global_config, "pipeline_sync_for_timer", True)
    monkeypatch.setattr(_recorder, "_watched", [])
    yield
    alpa_dejavu.uninstall()


@pytest.fixture
def option(tmp_path):
    made = DejavuStageOption(history=tmp_path / "history.sqlite")
    made.last_plan, made.last_origin = PLAN, ORIGIN
    return made


@pytest.fixture
def connected(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)


def test_steps_are_recorded_once_without_those_to_warm_up(option, connected):
    executable = Executable([9.0, 9.0, 9.0])
    _recorder.watch(executable, option)
    store = Store(option.history)
    assert record(executable) == 0
    assert store.runs() == ()
    executable.steps_s = [9.0, 9.0, 9.0, 0.3, 0.5]
    assert record(executable) == 2
    executable.steps_s = [9.0, 9.0, 9.0, 0.3, 0.5, 0.7]
    assert record(executable) == 1
    assert record(executable) == 0
    runs = store.runs()
    assert [run.steps_s for run in runs] == [(0.3, 0.5), (0.7,)]
    assert (runs[0].plan, runs[0].origin) == (PLAN, ORIGIN)
    assert runs[0].predicted_s == pytest.approx(0.25)


def test_alpas_shutdown_records_first_and_happens_whatever_is_wrong(option, connected, caplog):
    happened = []
    shutdown = _recorder.recording(lambda: happened.append(len(Store(option.history).runs())))
    executable = Executable([9.0] * 3 + [0.3])
    _recorder.watch(executable, option)
    shutdown()
    assert happened == [1]
    shutdown()
    assert happened == [1, 1]
    broken = Executable([9.0] * 3 + [-1.0])
    _recorder.watch(broken, option)
    shutdown()
    assert happened == [1, 1, 1]
    assert "nothing was appended to the history" in caplog.text
    assert "steps_s is -1.0" in caplog.text


def test_steps_that_nothing_waits_for_are_not_recorded(option, connected, monkeypatch):
    executable = Executable([9.0] * 3 + [0.3])
    _recorder.watch(executable, option)
    monkeypatch.setattr(global_config, "pipeline_sync_for_timer", False)
    with pytest.raises(RuntimeError, match=r"set alpa\.global_config\.pipeline_sync_for_timer = True"):
        record(executable)
    assert Store(option.history).runs() == ()


def test_what_keeps_no_history_is_named(option):
    with pytest.raises(ValueError, match=r"compile it with DejavuStageOption\(history=FILE\)"):
        record(Executable([]))


def test_without_ray_there_is_nothing_to_read(option, monkeypatch):
    executable = Executable([9.0] * 3 + [0.3])
    _recorder.watch(executable, option)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match=r"call alpa\.shutdown\(\) before ray\.shutdown\(\)"):
        record(executable)


@pytest.mark.ray
@pytest.mark.slow
def test_a_training_run_of_alpas_is_kept_and_corrects_the_next_plan(tmp_path):
    path = tmp_path / "history.sqlite"
    optimizer = optax.sgd(0.1)

    def train_step(weights, batch):
        def loss(weights):
            x = batch["x"]
            for weight in weights:
                x = jnp.tanh(x @ weight)
            return jnp.mean((x - batch["y"]) ** 2)

        gradients = alpa.grad(loss)(weights)
        updates, _ = optimizer.update(gradients, optimizer.init(weights), weights)
        return optax.apply_updates(weights, updates)

    weights = [jnp.ones((16, 16)) / 16 for _ in range(4)]
    batch = {"x": np.ones((32, 16), np.float32), "y": np.ones((32, 16), np.float32)}
    options = []
    with local_cluster(devices=2):
        for _ in range(2):
            alpa.init("ray")
            option = DejavuStageOption(history=path)
            options.append(option)
            method = alpa.PipeshardParallel(
                num_micro_batches=2, layer_option=alpa.AutoLayerOption(layer_num=2), stage_option=option
            )
            step = alpa.parallelize(train_step, method=method, donate_argnums=())
            for _ in range(9):
                jax.block_until_ready([np.asarray(weight) for weight in step(weights, batch)])
            alpa.shutdown()
    # Each start notes the stages of three of its steps, and Alpa's shutdown appends all steps but those that warm up.
    noted, first, noted_again, second = Store(path).runs()
    assert [len(run.steps_s) for run in (noted, first, noted_again, second)] == [3, 6, 3, 6]
    assert [len(run.stages) for run in (noted, first)] == [len(options[0].last_plan.stages), 0]
    assert isinstance(first, PastRun)
    assert options[0].last_plan.correction is None
    by = options[1].last_plan.correction
    assert (by.runs, by.own_runs) == (1, 1)
    assert (by.factor - 1) * (noted.stages[0].computing_s / noted.stages[0].predicted_computing_s - 1) > 0
    assert second.predicted_s == pytest.approx(options[1].last_plan.uncorrected_s)
    assert noted_again.predicted_s == pytest.approx(second.predicted_s)
