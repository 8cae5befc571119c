"""Whether many starts pay: what counts as steps and compute, what is said of it, and that a second run goes on."""

import dataclasses
import json

import numpy as np
import pytest

import parallel_initialization
from alpa_dejavu.training.initialization import Curve, Initialized
from parallel_initialization import JUDGED, figures, overview, summaries
from races import _ways
from races._models import CHARACTERS, TASKS, batch, digits, source_text
from races._ways import BUDGETS, RULES, SMOOTHED_STEPS, STARTS, Way, of_contests, race_of, row, steps_to, ways


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
    result = Initialized(state={}, chosen=0, steps=100, total_steps=136, padded_steps=2, diverged=0, lost=0, restarts=0,
                         seconds=1.0, seed=0, rungs=(10, 20), curves=curves)  # fmt: skip
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


def test_who_diverges_does_not_reach_the_target(monkeypatch):
    def diverging(*_):
        raise RuntimeError("all 1 candidates are dropped")

    monkeypatch.setattr(_ways, "trained", diverging)
    task = type("Untested", (), {"steps": 100})()
    found = row(task, Way("it", larger=4), 0, 1.0)
    assert (found["reached"], found["compute"], found["all_steps"]) == (None, None, 400)


def curve(number, losses, dropped=None):
    return Curve(number=number, dropped_step=dropped, why="", losses=losses, relative_gradients=losses)


def rows_of(reached, steps, small=1.25):
    """Ten seeds, in which races from Sobol's scales reach the target after a share of the steps, others after 0.6."""
    rows = {}
    for way in ways(8):
        share = reached if way.is_race and way.init == "sobol" else 0.6
        whole = steps * (small if way.budget == "small" else 2)
        rows[way.name] = [
            {"seed": seed, "reached": share * steps + seed, "compute": 2 * share * steps, "all_steps": whole}
            for seed in range(10)
        ]
    return rows


@pytest.mark.parametrize(
    ("reached", "small", "held"), [(0.4, 1.25, True), (0.6, 1.25, False), (0.4, 1.3, False), (0.9, 1.25, False)]
)
def test_what_is_missed_is_told(reached, small, held):
    models = {name: {"rows": rows_of(reached, TASKS[name].steps, small)} for name in TASKS}
    told = figures(models)
    assert all(figure.held for figure in told) == held
    assert sum(not figure.held for figure in told) == (not held)
    table = overview(models, 10)
    assert [line[0] for line in table.rows] == [way.name for way in ways(8)]
    models["mlp"]["rows"] = rows_of(0.7, TASKS["mlp"].steps)
    assert all(figure.held for figure in figures(models)) == (held and small == 1.25)


def test_a_run_that_does_not_reach_the_target_counts_as_two_trainings():
    rows = rows_of(0.4, 100)
    for measured in rows[JUDGED]:
        measured |= {"reached": None, "compute": None}
    assert summaries(rows, 100)[JUDGED]["ratio"].low > 2


def test_a_large_batch_begins_with_the_small_one_and_tests_are_on_other_data():
    small, large = (batch(digits(), rows, 3, 5) for rows in (4, 16))
    assert (large[0][:4] == small[0]).all()
    text = source_text(16)
    assert text.inputs.shape[1:] == (16,)
    assert (text.inputs[:, 1:] == text.labels[:, :-1]).all()
    assert 0 < text.inputs.max() < CHARACTERS
    assert len(text.test_inputs) > 1000


def test_each_rule_start_and_budget_is_a_way_and_the_contests_are_some_of_them():
    names = [way.name for way in ways(8)]
    assert len(set(names)) == len(names)
    assert {race_of(*each) for each in [(r, s, b) for r in RULES for s in STARTS for b in BUDGETS]} <= set(names)
    assert JUDGED in {way.name for way in of_contests(8)} < set(names)
