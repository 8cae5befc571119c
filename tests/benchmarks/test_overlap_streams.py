"""Streams that run for real: what is predicted of them, and what is judged."""

import json

import pytest

import overlap_streams
from alpa_dejavu.costs.overlap import Overlap


def test_reductions_that_wait_for_products_are_exposed_by_a_layer_more():
    streams, layers = Overlap("streams"), overlap_streams.LAYERS
    assert overlap_streams._predicted_s(6.0, 3.0, True, streams) == pytest.approx(6.0)
    assert overlap_streams._predicted_s(6.0, 3.0, False, streams) == pytest.approx(6.0 + 3.0 / layers)
    assert overlap_streams._predicted_s(3.0, 6.0, False, streams) == pytest.approx(3.0 / layers + 6.0)
    assert overlap_streams._predicted_s(6.0, 3.0, True, Overlap("streams", 1.5, 1.0)) == pytest.approx(7.0)


def test_a_far_prediction_is_missed():
    exposed = {0.01: 1.05, -0.02: 1.1, 0.2: 1.6}
    rows = [
        {"program": "buckets", "off": off, "exposed_s": 1.0, "predicted_exposed_s": predicted_s}
        for off, predicted_s in exposed.items()
    ]
    assert [(one.held, one.measured) for one in overlap_streams._figures(rows)] == [
        (True, "+2.0%"), (False, "+20.0%"), (True, "+10.0%"), (False, "+25.0%"),
    ]  # fmt: skip


def test_programs_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(overlap_streams, "JUDGED", ((64, 1 << 12),))
    monkeypatch.setattr(overlap_streams, "FITTED", ((96, 1 << 13),))
    monkeypatch.setattr(overlap_streams, "LAYER_S", 1e-3)
    monkeypatch.setattr(overlap_streams, "TRIES", 1)
    path = tmp_path / "run.json"
    # How far off they are is the machine's.
    overlap_streams.main(["--repeats", "1", "--json", str(path)])
    rows = json.loads(path.read_text())["judged"]["programs"]["rows"]
    assert len(rows) == 2 * len(overlap_streams.RATIOS)
    for row in rows:
        assert 0 < row["predicted_s"] <= row["computed_s"] + row["sent_s"] + 1e-9
        assert 0 < row["together_s"] < 60
    assert "seconds off, worst" in capsys.readouterr().out
