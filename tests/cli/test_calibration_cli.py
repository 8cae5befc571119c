"""`alpa-dejavu calibration show` and `--calibration`."""

import dataclasses

import pytest
from click.testing import CliRunner

from alpa_dejavu import planning
from alpa_dejavu.calibration import write_calibration
from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster
from made_up import fitted, measured


def shown(*args):
    return CliRunner().invoke(main, ["calibration", "show", *map(str, args)])


def test_fitted_models_are_shown_with_their_errors(tmp_path):
    path = tmp_path / "mine.json"
    write_calibration(fitted(), path)
    result = shown(path)
    assert result.exit_code == 0, result.output
    for said in (
        "made-up, of 2024-05-31", "1 TFLOP/s", "products", "size", "12.5 %", "across hosts", "all_gather, all_reduce",
        "what it doesn't know", "no all-to-all was measured",
    ):  # fmt: skip
        assert said in result.output


def test_measured_figures_are_shown_with_their_spread(tmp_path):
    path = tmp_path / "mine.json"
    write_calibration(measured(), path)
    result = shown(path)
    assert result.exit_code == 0, result.output
    assert "500 GFLOP/s ± 5 %" in result.output
    assert "50 GB/s ± 10 %" in result.output
    assert "example - example, between hosts" in result.output
    assert "300 us" in result.output
    lines = " ".join(result.output.split())
    assert "memory, measured: peak 3 times, 0.98 to 1.05 of the count, in 3 groups under another framework" in lines


def test_pictures_of_every_operator_collective_and_link(tmp_path):
    path = tmp_path / "mine.json"
    write_calibration(measured(), path)
    result = shown(path, "--plots", tmp_path / "links")
    assert result.exit_code == 0, result.output
    assert {file.name for file in (tmp_path / "links").iterdir()} == {"links.html", "plotly.min.js"}
    device = named_cluster("p3.16xlarge").hosts[0].device
    devices = {device.name: dataclasses.replace(device, memory_bytes=16e9)}
    write_calibration(dataclasses.replace(fitted(), devices=devices, device_spread={}, products={}), path)
    result = shown(path, "--plots", tmp_path / "deep" / "v100")
    assert result.exit_code == 0, result.output
    files = {file.name for file in (tmp_path / "deep" / "v100").iterdir()}
    assert {"all-gather.html", "all-reduce.html"} < files
    page = (tmp_path / "deep" / "v100" / "all-reduce.html").read_text()
    assert "16 in two hosts" in page
    assert "http" not in page.split('src="')[1].split('"')[0]


@pytest.mark.parametrize(("given", "said"), [("v10", "there is no calibration 'v10'"), ("broken.json", "isn't JSON")])
def test_what_cannot_be_shown_is_named(tmp_path, monkeypatch, given, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    result = shown(given)
    assert result.exit_code == 1
    assert said in result.output


def test_plan_and_estimate_take_one(tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    write_calibration(fitted(), path)
    asked = ["plan", "--model", "gpt-125m", "--cluster", "p3.16xlarge", "--batch", "32", "--calibration"]
    result = CliRunner().invoke(main, [*asked, str(path)])
    assert result.exit_code == 1
    assert "has 'V100-SXM2-16GB', but the calibration made-up knows 'example' only" in result.output
    given = []
    monkeypatch.setattr(planning, "plan_model", lambda *args, **options: given.append(options) or 1 / 0)
    CliRunner().invoke(main, [*asked, "v100"])
    assert [options["calibration"] for options in given] == ["v100"]
