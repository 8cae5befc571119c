"""The bundled calibrations' builder: what each file gets of the fitted parts, and the same bytes each time."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import build_calibrations
from alpa_dejavu.calibration import bundled, read_calibration
from alpa_dejavu.calibration._calibration_text import calibration_text
from alpa_dejavu.costs.communication.learned import Collectives, FittedCollectives
from alpa_dejavu.costs.latency.learned import DataSheet, KernelModel, Kernels
from bundles._devices import BUNDLES
from bundles._parts import Part
from bundles._peaks import Peaks
from fitting import Fitted
from trials._trial_set import Predicted

FIGURES = {
    "fp32_flop_per_s": 1e13, "memory_bandwidth_bytes_per_s": 5e11, "num_sm": 50, "l2_cache_bytes": 4e6,
}  # fmt: skip
TABLE = {name: FIGURES for bundle in BUNDLES for name in bundle.devices.values()}


def _part(name: str, device: list[str], model: object) -> Part:
    """Predictions that are 10 % too long for the first half of the rows, right for the others."""
    measured = np.ones(len(device))
    mean = np.where(np.arange(len(device)) < len(device) / 2, 1.1, 1.0)
    return Part(name, f"made-up {name}", "group", np.array(device), measured, Predicted(mean, mean - 0.05, mean), model)


def _kernels() -> KernelModel:
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(3, 7, (4, 200))).round()
    columns = dict(zip(("batch", "m", "n", "k"), sizes, strict=True))
    rows = Kernels.of({"op": ["bmm"] * 200, "gpu": ["a"] * 200, **columns}, {"a": DataSheet(1e13, 5e11, 50, 4e6)})
    return KernelModel().fit(rows, rows.compute_s + 1e-5)


def _collectives() -> FittedCollectives:
    same, sizes = np.ones(40), np.repeat([2.0, 4.0], 20)
    rows = Collectives(np.full(40, "all_reduce"), np.tile(2.0 ** np.arange(10, 30), 2), sizes, same, same, 1e10 * same)
    return FittedCollectives().fit(rows, rows.volume_s + 5e-5, sizes)


def _fitted() -> dict[str, Part]:
    within = _part("collectives within hosts", ["v100"] * 4, _collectives())
    across = _part("collectives across hosts", ["v100"] * 4, within.model)
    pipelines = _part("iterations", ["gh200"] * 6, None)
    return {
        "kernels": _part("kernels", ["t4"] * 4 + ["p4"] * 4, _kernels()),
        "p3 within": within,
        "p3 across": across,
        "layers": _part("layers", ["GH-96"] * 4, None),
        "pipelines gh200": pipelines,
    }


def _bundle(name: str) -> build_calibrations.Bundle:
    return next(bundle for bundle in BUNDLES if bundle.name == name)


def test_a_file_has_what_was_measured_on_its_devices() -> None:
    made = build_calibrations.calibration(_bundle("t4"), _fitted(), TABLE)
    (kernels,) = made.fits
    assert (kernels.rows, kernels.held_out["mape"]) == (4, pytest.approx(0.1))
    assert (kernels.held_out["median_ape"], kernels.held_out["coverage_90"]) == (pytest.approx(0.1), 0.0)
    assert list(made.sheets) == ["T4"]
    assert made.within is None
    assert any("collectives: none was measured" in sentence for sentence in made.missing)
    assert "made-up kernels" in made.origin


def test_a_device_by_data_sheet_says_so_with_the_errors_on_others() -> None:
    made = build_calibrations.calibration(_bundle("h100"), _fitted(), TABLE)
    (fit,) = made.fits
    assert (fit.rows, fit.held_out["mape"]) == (0, pytest.approx(0.05))
    assert "no measurement of its own; kernels by data sheet" in made.origin
    assert any("by its data sheet" in sentence for sentence in made.missing)


def test_the_same_measurements_give_the_same_bytes() -> None:
    texts = [calibration_text(build_calibrations.calibration(_bundle("p4"), _fitted(), TABLE)) for _ in range(2)]
    assert texts[0] == texts[1]


def test_measurements_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--train", str(tmp_path), "--out", str(tmp_path)]
    assert build_calibrations.main(given) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_bundled_files_are_those_of_the_list() -> None:
    for each in BUNDLES:
        found = bundled(each.name)
        assert found.name == each.name
        assert set(found.sheets) == set(each.devices)
        assert found.date == build_calibrations.DATE
        assert (found.within is None, found.across is None) == (each.within is None, each.across is None)


def test_what_is_built_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_calibrations, "parts", lambda folder: _fitted())
    monkeypatch.setattr(build_calibrations, "BUNDLES", (_bundle("t4"), _bundle("l4")))
    (tmp_path / "neusight-kernels").mkdir()
    (tmp_path / "neusight-kernels" / "gpus.json").write_text(json.dumps(TABLE))
    (tmp_path / "out").mkdir()
    assert build_calibrations.main(["--train", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["l4.json", "t4.json"]
    assert read_calibration(tmp_path / "out" / "t4.json").fits[0].rows == 4


def test_peaks_are_residuals_of_their_framework_and_its_factors_a_fit() -> None:
    peaks = np.array([1e9, 2e9, np.nan, 4e9])
    predicted = Predicted(*(factor * np.array([1.1e9, 2e9, 3e9, 4e9]) for factor in (1.0, 0.9, 1.05)))
    groups = np.array(["a", "a", "b", "c"], dtype=object)
    fitted = SimpleNamespace(values={"context_bytes": 2e9})
    parts = _fitted()
    part = parts["pipelines gh200"]
    measured = Peaks.of(peaks, predicted, groups, "Theirs", cast(Fitted, fitted))
    made = build_calibrations.calibration(
        _bundle("gh200"), {**parts, "pipelines gh200": dataclasses.replace(part, peaks=measured)}, TABLE
    )
    assert made.memory is not None
    assert made.memory.log_ratios["peak"] == pytest.approx((np.log(1 / 1.1), 0.0, 0.0))
    assert (made.memory.num_groups, made.memory.framework, made.memory.origin) == (2, "Theirs", part.origin)
    fit = made.fits[-1]
    assert (fit.part, fit.rows, fit.figures) == ("peaks of memory of Theirs", 3, {"context_bytes": 2e9})
    assert fit.held_out["mape"] == pytest.approx(0.1 / 3)
    assert made.missing[-1].startswith("memory: peaks were measured under Theirs alone")
    assert build_calibrations.calibration(_bundle("gh200"), parts, TABLE).memory is None
