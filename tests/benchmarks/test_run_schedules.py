"""Schedules that run for real: gradients equal one device's, and a plan file's tasks are what is run."""

import json

import pytest

import run_schedules


@pytest.mark.ray
@pytest.mark.slow
def test_gradients_equal_those_of_one_device(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_schedules, "LAYERS", 8)
    monkeypatch.setattr(run_schedules, "WARM_UP", 1)
    path = tmp_path / "run.json"
    # How far off the steps are is the machine's.
    run_schedules.main(["--cases", "pinned", "--steps", "1", "--json", str(path)])
    (case,) = json.loads(path.read_text())["cases"].values()
    assert [row["schedule"] for row in case["rows"]] == list(run_schedules.NAMES)
    for row in case["rows"]:
        assert row["gradients_off"] <= 1e-5
        assert 0 < row["measured_s"] < 60
        assert 0 < row["simulated_s"] < 60
    assert "gradients off one device's" in capsys.readouterr().out


def row(schedule, measured_s, simulated_s):
    return {"case": "own", "schedule": schedule, "measured_s": measured_s, "simulated_s": simulated_s,
            "off": simulated_s / measured_s - 1, "gradients_off": 1e-6}  # fmt: skip


def test_a_wrong_order_and_a_far_step_are_missed():
    right = [row("interleaved", 1.0, 1.02), row("zb_h1", 0.9, 0.9), row("zb_v", 0.8, 0.79)]
    assert all(figure.held for figure in run_schedules._figures(right))
    swapped = [row("interleaved", 0.8, 0.99), *right[1:]]
    _, off, order = run_schedules._figures(swapped)
    assert not off.held
    assert not order.held
    # What is hardly apart has no order.
    assert run_schedules._figures([row("zb_h1", 0.9, 0.88), row("zb_v", 0.89, 0.9)])[2].held
