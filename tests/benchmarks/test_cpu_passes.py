"""Passes on a core, predicted and measured."""

import json

import cpu_passes


def test_a_job_has_a_forward_and_a_backward_pass(tmp_path, capsys):
    path = tmp_path / "passes.json"
    assert cpu_passes.main(["--json", str(path), "--jobs", "mlp-narrow"]) == 0
    rows = json.loads(path.read_text(encoding="utf-8"))["passes"]
    assert [row["pass"] for row in rows] == ["forward", "backward"]
    assert all(row["measured_s"] > 0 and row["predicted_s"] >= row["roofline_s"] > 0 for row in rows)
    assert "mean error of 2 passes" in capsys.readouterr().out


def test_the_error_is_that_by_hand():
    rows = [{"measured_s": 2.0, "predicted_s": 1.0}, {"measured_s": 2.0, "predicted_s": 2.5}]
    assert cpu_passes._mean_error(rows, "predicted_s") == 0.375
