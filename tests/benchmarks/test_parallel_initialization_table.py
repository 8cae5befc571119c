"""Whether many starts pay: what counts as steps and compute, what is said of it, and that a second run goes on."""

import dataclasses
import json

import numpy as np
import pytest

import parallel_initialization
from alpa_dejavu.training.initialization import Curve, Initialized
from races import _ways
from races._models import TASKS
from races._ways import (
    SMOOTHED_STEPS,
    Way,
    row,
    steps_to,
    ways,
)


def test_a_second_run_goes_on_where_the_first_one_stopped(tmp_path, monkeypatch):
    out, measured = tmp_path / "out.json", []
    kept = [way for way in ways(4) if way.keep == "halving" and way.init == "sobol"]

    def stopping(task, way, seed, target):
        measured.append((way.name, seed))
        if len(measured) == 5:
            raise KeyboardInterrupt
        return row(task, way, seed, target)

    monkeypatch.setattr(parallel_initialization, "row", stopping)
    monkeypatch.setattr(parallel_initialization, "ways", lambda workers: tuple(kept))
    monkeypatch.setattr(parallel_initialization, "overview", lambda models, seeds: "told")
    monkeypatch.setattr(parallel_initialization, "figures", lambda models: ())
    monkeypatch.setattr(parallel_initialization, "target_of", lambda task: 1.0)
    few = dataclasses.replace(TASKS["mlp"], steps=80)
    monkeypatch.setattr(parallel_initialization, "TASKS", {"mlp": few})
    asked = ["--seeds", "2", "--json", str(out)]
    with pytest.raises(KeyboardInterrupt):
        parallel_initialization.main(asked)
    assert parallel_initialization.main(asked) == 0
    assert measured[4] == measured[5]
    assert len(set(measured)) == len(measured) - 1
    rows = json.loads(out.read_text(encoding="utf-8"))["models"]["mlp"]["rows"]
    assert {len(every) for every in rows.values()} == {2}
    for name, (one, other) in rows.items():
        assert one["all_steps"] == other["all_steps"] <= (1.25 if name.endswith("small") else np.inf) * few.steps
        assert 0.5 < one["accuracy"] < 1
    assert rows["search, sobol"][0]["all_steps"] == 4 * few.steps
    with pytest.raises(SystemExit, match="name another file"):
        parallel_initialization.main(["--seeds", "3", "--json", str(out)])


def test_compute_is_that_of_all_until_the_target_is_reached(monkeypatch):
    falling = np.concatenate([np.ones(60), np.zeros(40)])
    curves = (curve(0, falling), curve(1, np.ones(20), dropped=20), curve(2, np.ones(10), dropped=10))
    result = Initialized({}, 0, 100, curves, (10, 20), 136, 2, 0, 0, 0, 1.0, 0)
    monkeypatch.setattr(_ways, "trained", lambda *_: result)
    task = type("Untested", (), {"accuracy": lambda self, state: 0.5})()
    found = row(task, Way("it", 3), 0, 0.5)
    assert (found["reached"], found["compute"], found["all_steps"]) == (80, 80 + 20 + 10, 136)
    assert row(task, Way("it", larger=4), 0, -1.0)["reached"] is None
    steps = [np.full(100, 2.0 - n) for n in range(3)]
    result = dataclasses.replace(result, curves=tuple(curve(n, each) for n, each in enumerate(steps)))
    found = row(task, Way("all", 3, pruned=False), 0, 1.0)
    # The second and the third are there as soon as it can be told.
    assert (found["reached"], found["compute"]) == (SMOOTHED_STEPS, 3 * SMOOTHED_STEPS)
    assert steps_to(falling[: SMOOTHED_STEPS - 1], 2.0) is None


def curve(number, losses, dropped=None):
    return Curve(number, losses, losses, dropped, "")
