"""The table of the relaxation beside the integer program: what is written, and that an unsound bound is told."""

import dataclasses
import json

import pytest

import _operator_graphs
import operator_relaxation
from _measured_models import perceptron

GIVEN = ["--models", "mlp", "--meshes", "2x2", "--repeat", "1"]


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setitem(_operator_graphs.MODELS, "mlp", (lambda batch: perceptron(batch, [64, 128, 64]), 32))
    _operator_graphs.program_of.cache_clear()
    yield
    _operator_graphs.program_of.cache_clear()


@pytest.mark.usefixtures("_small")
def test_every_graph_has_a_row(tmp_path, capsys):
    assert operator_relaxation.main([*GIVEN, "--json", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["model"], row["mesh"], row["graph"]) for row in rows] == [
        ("mlp", "2x2", graph) for graph in ("whole", "core", "memory")
    ]
    whole, core, memory = rows
    assert whole["nodes"] > core["nodes"]
    assert -1e-9 <= whole["relaxed"] <= whole["gap"] + 1e-9
    assert whole["joint"] == pytest.approx(0.0, abs=1e-9)
    assert memory["limits"] > 0
    assert "joint" in capsys.readouterr().out


@pytest.mark.usefixtures("_small")
def test_a_bound_above_the_optimum_is_told(monkeypatch):
    solve = operator_relaxation.solve_relaxed

    def unsound(graph, limits):
        relaxed = solve(graph, limits)
        return dataclasses.replace(relaxed, lower_bound=relaxed.cost + 1e-3 * abs(relaxed.cost))

    monkeypatch.setattr(operator_relaxation, "solve_relaxed", unsound)
    monkeypatch.setattr(operator_relaxation, "LIMITED", ())
    assert operator_relaxation.main(GIVEN) == 1


def test_a_mesh_that_is_none(capsys):
    with pytest.raises(SystemExit):
        operator_relaxation.main(["--meshes", "2by2"])
    assert "a mesh is '2by2', but must be given like 2x4" in capsys.readouterr().err
