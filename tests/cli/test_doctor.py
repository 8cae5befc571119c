"""What is installed and runs is said, and what to do about the rest."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys

import jax
import pytest
from click.testing import CliRunner

from alpa_dejavu._util import compiled
from alpa_dejavu._util.child_process import child_process
from alpa_dejavu._util.compiled import compile_all
from alpa_dejavu.cli import doctor, install_alpa
from alpa_dejavu.cli._warm_up import warm_up
from alpa_dejavu.cli.main import main


def fails(*words):
    """A stand-in for `subprocess.run` in which what names one of the words fails."""

    def run(command, **_):
        broken = any(word in command[-1] for word in words)
        return subprocess.CompletedProcess(command, int(broken), "it works\n", "Trace\nImportError: no such thing\n")

    return run


def test_what_fails_is_said_with_its_remedy(monkeypatch):
    monkeypatch.setattr(doctor.subprocess, "run", fails("alpa_stock_jax"))
    found = {check.what: check for check in doctor.checks()}
    assert not found["our patches"].runs
    assert found["our patches"].finding == "ImportError: no such thing"
    assert "alpa-dejavu install-alpa" in found["our patches"].remedy
    assert found["Alpa"].runs
    assert found["Alpa"].finding == "alpa 0.2.3 can be imported"
    monkeypatch.setattr(doctor.subprocess, "run", fails("alpa_dejavu.install"))
    found = {check.what: check for check in doctor.checks()}
    assert [found[what].runs for what in ("Alpa", "our hooks into Alpa")] == [True, False]
    assert found["Alpa"].finding == "it works"


def test_the_command_lists_what_to_do_and_fails_where_nothing_can_be_planned(monkeypatch):
    monkeypatch.setattr(doctor.subprocess, "run", fails("ray"))
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0
    assert "1. Ray: alpa-dejavu install-alpa" in result.stdout
    monkeypatch.setattr(doctor.subprocess, "run", fails("jax"))
    assert CliRunner().invoke(main, ["doctor"]).exit_code == 1
    monkeypatch.setattr(doctor.subprocess, "run", fails())
    assert "nothing to do" in CliRunner().invoke(main, ["doctor"]).stdout


def test_what_takes_too_long_does_not_run(monkeypatch):
    def hangs(command, **_):
        raise subprocess.TimeoutExpired(command, 120)

    monkeypatch.setattr(doctor.subprocess, "run", hangs)
    assert doctor.checks()[0].finding == "took more than 120 s"


TRAPS = "click", "jax", "pip", "random", "secrets", "struct"


@pytest.fixture
def trapped(tmp_path, monkeypatch):
    """A current folder with modules that leave a file when they are run, by the names of others."""
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'trapped')!r}, 'a').write({name!r})")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "trapped"


def test_nothing_of_the_current_folder_is_run(trapped, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", *map(str, filter(None, sys.path))]))
    check = doctor._tried("packages", "import jax, random, struct, alpa_dejavu; print('imported')", "")
    assert (check.runs, check.finding) == (True, "imported")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    shown = subprocess.run([sys.executable, "-m", "alpa_dejavu", "--help"], capture_output=True, text=True, check=False)
    assert "doctor" in shown.stdout
    with child_process(print, name="child", patience_s=600.0):
        pass
    assert not trapped.exists()


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


def test_nothing_goes_on_after_pip_has_failed(calls):
    calls[1].append(3)
    result = CliRunner().invoke(main, ["install-alpa"])
    assert result.exit_code == 1
    assert "pip ended with 3" in result.stderr
    assert len(calls[0]) == 1


def test_a_wheel_holds_the_wheel_of_the_patches(tmp_path, monkeypatch):
    monkeypatch.setattr(install_alpa, "_ROOT", tmp_path)
    with pytest.raises(ValueError, match="which hold the patches; install it by pip"):
        install_alpa.pip_commands()
    wheel = tmp_path / "wheels" / "alpa_stock_jax-0.2.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    assert str(wheel) in install_alpa.pip_commands()[0]


def test_versions_are_those_that_are_installed():
    found = {package.name: package.version for package in doctor.versions()}
    assert found["python"] == platform.python_version()
    assert found["jax"] == jax.__version__
    assert doctor.installed_version("no-such-package") is None


def test_no_folder_is_left_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("ALPA_DEJAVU_CACHE", str(tmp_path / "cache" / "models"))
    monkeypatch.setattr(doctor.subprocess, "run", fails())
    assert CliRunner().invoke(main, ["doctor"]).exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_slicing_is_tried():
    assert re.match(r"[1-9]\d* inner loops are compiled", warm_up())


def test_compiling_ends_in_time(monkeypatch):
    made, times = [], iter(range(10))
    monkeypatch.setattr(compiled, "_KNOWN", [lambda n=n: made.append(n) for n in range(5)])
    assert compile_all(within_s=2.5, clock=lambda: next(times)) == (2, 5)
    assert made == [0, 1]
    assert compile_all() == (5, 5)
    assert re.match("0 of 5 inner loops are compiled; the first plan compiles the others", warm_up(-1.0))


def test_a_trial_is_really_made():
    code = f"import sys; assert sys.executable == {sys.executable!r}; print('yes')"
    check = doctor._tried("this python", code, "")
    assert (check.runs, check.finding) == (True, "yes")
    check = doctor._tried("nonsense", "import no_such_module", "install it")
    assert not check.runs
    assert check.finding == "ModuleNotFoundError: No module named 'no_such_module'"
    assert check.remedy == "nonsense: install it"


def test_a_dry_run_runs_nothing(calls):
    result = CliRunner().invoke(main, ["install-alpa", "--dry-run"])
    assert result.stdout.count("-m pip install") == 2
    assert calls[0] == []


def test_an_environment_without_pip_is_told_what_to_do(calls, monkeypatch):
    monkeypatch.setattr(install_alpa.importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["install-alpa"])
    assert result.exit_code == 1
    assert "ensurepip" in result.stderr
    assert calls[0] == []
