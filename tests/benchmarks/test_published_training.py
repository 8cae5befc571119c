"""Published steps beside predictions: no median gets worse, and predictions of made-up jobs stay as they are."""

import json
from pathlib import Path

import pytest

import published_training
from alpa_dejavu.costs.communication._nccl import FILE as NCCL
from alpa_dejavu.costs.kernels import FILE as KERNELS
from published._jobs import published_job
from published._steps import estimated

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
KEPT = ROOT / "docs" / "results" / "predictions.json"
GOLDEN = Path(__file__).parent / "data" / "made_up_steps.json"
POINT = 0.01


def test_no_median_is_worse_by_more_than_a_point(tmp_path):
    if not DATA.is_dir():
        pytest.skip("needs the measurements beside the checkout")
    found = tmp_path / "found.json"
    asked = {
        "--steps": DATA / "published-training" / "steps.csv", "--memory": DATA / "megatron-b200" / "steps.csv",
        "--operators": DATA / "gpu-operators", "--json": found,
    }  # fmt: skip
    published_training.main([str(word) for pair in asked.items() for word in pair])
    now, then = json.loads(found.read_text()), json.loads(KEPT.read_text())
    for kind in ("steps", "memory", "memory_steps", "products", "attention", "experts", "collectives"):
        assert now[kind]["median_error"] <= then[kind]["median_error"] + POINT, kind
    assert now["steps"]["fits"] == now["memory"]["fits"] == 1
    assert now["steps"]["sources_nearer_than_sheets"] >= 0.75


@pytest.mark.parametrize("name", json.loads(GOLDEN.read_text()))
def test_a_made_up_step_is_predicted_as_before(name):
    row, kept = (json.loads(GOLDEN.read_text())[name][key] for key in ("row", "predicted"))
    found = estimated(published_job({"step_s": 1.0, "source": "made up", **row}))
    assert found.step_s == pytest.approx(kept["step_s"], rel=POINT)
    assert found.peak_bytes / 2**30 == pytest.approx(kept["peak_gib"], rel=POINT)
    assert found.lower_s < found.step_s < found.upper_s < 2 * found.lower_s


def test_what_is_fitted_is_nearer_than_data_sheets_with_a_gpu_left_out():
    kernels = json.loads(KERNELS.read_text())
    parts = [*kernels["products"].values(), *kernels["grouped"].values(), kernels["attention"], kernels["streams"]]
    for part in parts:
        assert part["left_out"]["gpu"]["median_error"] < part["left_out"]["gpu"]["sheets"]
    for name, part in json.loads(NCCL.read_text())["held_out"].items():
        assert part["median_error"] < part["sheets"], name


def test_a_row_that_lacks_something_is_named(tmp_path, capsys):
    broken = tmp_path / "steps.csv"
    broken.write_text("id,hardware,gpus\n1,H100-80GB,8\n")
    assert published_training.main(["--steps", str(broken)]) == 2
    assert f"{broken}, line 2: has no column" in capsys.readouterr().err
    broken.write_text("id,hardware,gpus\n1,TPU-v5,8\n")
    assert published_training.main(["--steps", str(broken)]) == 2
    assert "hardware is 'TPU-v5', but must be a GPU" in capsys.readouterr().err
    assert published_training.main(["--steps", str(tmp_path / "none.csv")]) == 2
    assert "none.csv can't be read" in capsys.readouterr().err
