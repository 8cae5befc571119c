"""Alpa and the patches are installed by two calls of pip, with the versions that the package's metadata has."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli import install_alpa
from alpa_dejavu.cli.main import main

NEEDS = ["jax==0.4.30", "ray>=2.10 ; extra == 'alpa'", 'alpa-stock-jax==0.2.0 ; extra == "alpa"', "a ; extra == 'b'"]


@pytest.fixture
def calls(monkeypatch):
    """The commands that would have been run; each ends with what is in `codes`, then with 0."""
    made, codes = [], []

    def run(command, **_):
        made.append(command)
        return subprocess.CompletedProcess(command, codes.pop(0) if codes else 0)

    monkeypatch.setattr(install_alpa.importlib.metadata, "requires", lambda name: NEEDS)
    monkeypatch.setattr(install_alpa.subprocess, "run", run)
    return made, codes


def test_patches_come_with_what_alpa_runs_with_and_alpa_comes_alone(calls):
    result = CliRunner().invoke(main, ["install-alpa"])
    assert result.exit_code == 0
    first, second = calls[0]
    assert first[:4] == [sys.executable, "-m", "pip", "install"]
    assert first[4].endswith("patches")
    assert first[5:] == ["ray>=2.10"]
    assert second[4:] == ["--no-deps", "alpa==0.2.3"]


def test_a_wheel_holds_the_wheel_of_the_patches(tmp_path, monkeypatch):
    monkeypatch.setattr(install_alpa, "_ROOT", tmp_path)
    with pytest.raises(ValueError, match="which hold the patches; install it by pip"):
        install_alpa.pip_commands()
    wheel = tmp_path / "wheels" / "alpa_stock_jax-0.2.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    assert str(wheel) in install_alpa.pip_commands()[0]


def test_a_dry_run_runs_nothing(calls):
    result = CliRunner().invoke(main, ["install-alpa", "--dry-run"])
    assert result.stdout.count("-m pip install") == 2
    assert calls[0] == []


def test_nothing_goes_on_after_pip_has_failed(calls):
    calls[1].append(3)
    result = CliRunner().invoke(main, ["install-alpa"])
    assert result.exit_code == 1
    assert "pip ended with 3" in result.stderr
    assert len(calls[0]) == 1


def test_an_environment_without_pip_is_told_what_to_do(calls, monkeypatch):
    monkeypatch.setattr(install_alpa.importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["install-alpa"])
    assert result.exit_code == 1
    assert "ensurepip" in result.stderr
    assert calls[0] == []
