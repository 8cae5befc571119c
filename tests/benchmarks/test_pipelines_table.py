"""The table of pipelines: its unlike hosts, and our choices as rows of Sailor's plans."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

import pipelines
from _strategy_cases import LayerSizes, cases
from alpa_dejavu.costs.latency import LayerTimes, ProfiledLayers
from alpa_dejavu.planning.strategies.stages import Pipeline, PlacedStage, config_of
from trials._sailor_chosen import _bounded, _said, _shape, _shape_of, as_row
from trials._sailor_tasks import trials

STAGES = (
    PlacedStage(0, 11, (0,) * 4 + (1,) * 4, config_of(2, 4)),
    PlacedStage(12, 25, (2, 2, 2, 2, 3, 3, 3, 3), config_of(4, 2)),
)


def test_a_choice_is_a_row_of_sailors_plans():
    row = as_row(Pipeline(STAGES, 16, 8), "OPT-350", 4, 128)
    ((model, samples, micro_batches, staged, per_node),) = trials(row)
    assert (model, samples, micro_batches, per_node) == ("OPT-350", 4, 8, 4.0)
    assert staged == (((("GH-96", 4),) * 2, 12), ((("GH-96", 2),) * 4, 14))


def test_a_shape_tells_degrees_and_samples():
    alike = tuple(dataclasses.replace(stage, hosts=(0,) * 8, config=config_of(2, 4)) for stage in STAGES)
    unlike, same = (_shape(Pipeline(stages, 16, 8)) for stages in (STAGES, alike))
    assert unlike == _shape_of(as_row(Pipeline(STAGES, 16, 4), "OPT-350", 4, 64))
    assert unlike != same
    assert _said(unlike) == "(2x4) (4x2), 4"
    assert _said(same) == "2 x (2x4), 8"


def test_what_isnt_offered_takes_forever():
    times = LayerTimes({tp: (np.array([1.0, 2.0]), np.array([3.0, 4.0]) / tp) for tp in (1, 4)})
    given = ProfiledLayers({"GH-96": {"block forward": times, "block update": times}})
    bounded = _bounded(given, (4,)).times["GH-96"]
    assert bounded["block forward"].pass_s(4, 1.5) == times.pass_s(4, 1.5)
    assert bounded["block forward"].pass_s(1, 1.5) > 1e5
    assert bounded["block forward"].pass_s(4, 4.0) > 1e5
    assert bounded["block update"].pass_s(1, 1.5) == times.pass_s(1, 1.5)


@pytest.fixture
def small(monkeypatch):
    """The case with a few layers that alone decide, on two hosts."""
    (case,) = (case for case in cases() if case.name == "unlike hosts")
    layers: list[LayerSizes] = [dataclasses.replace(layer, tied_to=None) for layer in case.layers[2:6]]
    cluster = case.cluster.part([0, 3])
    monkeypatch.setattr(pipelines, "_case", lambda: dataclasses.replace(case, layers=layers, cluster=cluster))
    monkeypatch.setattr(pipelines, "BATCHES", (32,))


def test_the_table_is_written(small, tmp_path, capsys):
    for device, degree in itertools.product(("t4", "v100"), (1, 2, 4)):
        lines = [f"{n},{0.01 / degree}" for n in range(30)]
        path = tmp_path / f"layer_forward_gpt2_{device}_tp{degree}.csv"
        path.write_text("\n".join(["layer,forward_s_per_sample", *lines, ""]), encoding="utf-8")
    out = tmp_path / "out.json"
    assert pipelines.main(["--profiles", str(tmp_path), "--json", str(out)]) == 0
    slow, fast = json.loads(out.read_text(encoding="utf-8"))["unlike"]
    assert (slow["rate_gbit"], fast["rate_gbit"]) == (10, 100)
    for row in (slow, fast):
        assert row["gain"] == row["one_s"] / row["several_s"] >= 1 - 1e-9
        assert sum(one["micro_batch"] * one["num_micro_batches"] for one in row["pipelines"]) == 32
    assert "between hosts" in capsys.readouterr().out


def test_something_must_be_asked(capsys):
    assert pipelines.main([]) == 2
    assert "--profiles and --sailor are missing" in capsys.readouterr().err
