"""Outputs of the command line: tried before any work, written after all is printed, each where it is asked for."""

import errno
import json
import os
import sys

import pytest
from click.testing import CliRunner

from alpa_dejavu import planning
from alpa_dejavu._util import json_file
from alpa_dejavu.cli import files
from alpa_dejavu.cli.main import main
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.given import plan_estimate as plan_estimate_module
from alpa_dejavu.plans.plan_file import read_plan, write_plan
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from alpa_dejavu.testing import example_cluster
from models import chain
from plans import example_plan

CLUSTER, MODEL = example_cluster(1), chain(4, flop=1e9, activation_bytes=1e6, parameter_bytes=1e6)
ASKED = ["plan", "--model", "gpt-125m", "--cluster", "p3.16xlarge", "--batch", "32"]


def planned():
    config = MeshConfig((2, 1), 2, 1, {"force_batch_dim_to_mesh_dim": 0})
    stages = [GivenStage(first, first + 1, Submesh(1, 2), config) for first in (0, 2)]
    return estimate(MODEL, CLUSTER, Run(4), stages, name="tiny", batch=32)


@pytest.fixture
def run(monkeypatch):
    """Runs a command line with a planner that answers at once; `run.asked` says how often it was asked."""

    class Estimator:
        def __init__(self, *_, **__):
            runs.asked += 1

        def estimate(self, _plan):
            return planned()

    def plan_model(*_, **__):
        runs.asked += 1
        return planned()

    def runs(*args):
        return CliRunner().invoke(main, [str(arg) for arg in args])

    runs.asked = 0
    monkeypatch.setattr(planning, "plan_model", plan_model)
    monkeypatch.setattr(plan_estimate_module, "PlanEstimator", Estimator)
    return runs


def link(path, target):
    path.symlink_to(target)
    return path


OUTPUTS = {
    "empty": (lambda _: "", "is a folder, but must be a file"),
    "a link to nowhere": (lambda folder: link(folder / "link", folder / "none" / "plan"), "there is no folder"),
    "a link to itself": (lambda folder: link(folder / "loop", folder / "loop"), "Too many levels of symbolic links"),
    "a full device": (lambda _: "/dev/full", "No space left on device"),
    "a name that is too long": (lambda folder: folder / ("a" * 300), "File name too long"),
    "a folder that takes no files": (lambda _: "/proc/plan.json", "can't be written: "),
    "a file for a folder": (lambda folder: folder / "plan.json" / "x", "there is no folder"),
}


@pytest.mark.parametrize("option", ["--json", "--python", "--html", "--trace"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_cannot_be_written_is_found_before_planning(run, tmp_path, name, option):
    make, said = OUTPUTS[name]
    plan = write_plan(example_plan(), tmp_path / "plan.json")
    path = make(tmp_path)
    there = sorted(os.listdir(tmp_path))
    for words in (ASKED, ["estimate", plan]):
        result = run(*words, option, path)
        assert (result.exit_code, result.stdout, run.asked) == (1, "", 0)
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == there


def test_read_only_files_and_full_disks_are_found_before_planning(run, tmp_path, monkeypatch):
    path = tmp_path / "plan.html"
    path.write_text("before")
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "access", lambda *_: False)  # as for whoever isn't root
        assert "it is read-only; make it writable" in run(*ASKED, "--html", path).stderr

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "unfinished", full)
    assert "No space left on device; give another path, or make room" in run(*ASKED, "--html", path).stderr
    assert run.asked == 0
    assert path.read_text() == "before"


def test_other_commands_try_theirs_too(run, tmp_path):
    plan = write_plan(example_plan(), tmp_path / "plan.json")
    for words in (
        ["replan", plan, "--without", "p3.16xlarge-0", "--json"],
        ["profile", plan, "--no-history", "--html"],
        ["calibrate", "--output"],
        ["calibration", "convert", plan, "--output"],
    ):
        result = run(*words, "/dev/full")
        assert result.exit_code == 1
        assert "/dev/full can't be written: No space left on device" in result.stderr


@pytest.mark.parametrize("ending", ["", ".new"])
def test_what_will_be_kept_beside_the_plan_is_tried_too(run, tmp_path, ending):
    plan = write_plan(example_plan(), tmp_path / "before.json")
    (tmp_path / "plan.kept.json.gz").write_bytes(b"of an older release")
    (tmp_path / f"plan.json.kept.json.gz{ending}").mkdir()
    for words in (ASKED, ["replan", plan, "--without", "p3.16xlarge-0"]):
        result = run(*words, "--json", tmp_path / "plan.json")
        assert (result.exit_code, result.stdout, run.asked) == (1, "", 0)
        assert f"plan.json.kept.json.gz{ending}' is a folder" in result.stderr


@pytest.mark.parametrize("stdout", ["-", "/dev/stdout", "/dev/fd/1", "link"])
def test_a_dash_is_standard_output_and_the_table_is_aside(run, tmp_path, monkeypatch, stdout):
    monkeypatch.chdir(tmp_path)
    given = write_plan(example_plan(), tmp_path / "given.json")
    link(tmp_path / "link", "/dev/stdout")
    for words in (ASKED, ["estimate", given]):
        result = run(*words, "--json", stdout, "--trace", tmp_path / "trace.json")
        assert result.exit_code == 0
        (tmp_path / "read.json").write_text(result.stdout)
        assert read_plan(tmp_path / "read.json").model == "tiny"
        assert "stage  layers" in result.stderr
        assert result.stderr.splitlines()[-1] == f"wrote {tmp_path / 'trace.json'}"
    assert json.loads(run(*ASKED, "--trace", stdout).stdout)["traceEvents"]
    assert run(*ASKED, "--python", stdout).stdout.startswith('"""')
    assert "the output - is given twice" in run(*ASKED, "--json", stdout, "--python", "-").stderr
    assert sorted(os.listdir()) == ["given.json", "link", "read.json", "trace.json"]


def test_the_plan_is_kept_where_another_file_cannot_be_written(run, tmp_path, monkeypatch):
    replaced = json_file._replace

    def full(path, content):
        if path.suffix == ".html":
            raise OSError(errno.ENOSPC, "No space left on device")
        replaced(path, content)

    monkeypatch.setattr(json_file, "_replace", full)
    done = run(*ASKED, "--json", tmp_path / "plan.json", "--html", tmp_path / "page.html")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {tmp_path / 'page.html'} can't be written: No space left on device")
    assert read_plan(tmp_path / "plan.json").model == "tiny"
    assert f"wrote {tmp_path / 'plan.json'}\n" in done.stdout


def test_what_was_planned_is_written_though_nothing_can_be_printed(run, tmp_path, monkeypatch):
    def breaks(*_, **__):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("rich.console.Console.print", breaks)
    result = run(*ASKED, "--json", tmp_path / "plan.json")
    assert (result.exit_code, result.stderr) == (1, "")
    assert read_plan(tmp_path / "plan.json").model == "tiny"
    assert sys.stdout.writable()


def test_an_old_file_of_what_was_kept_is_not_written_and_not_tried(run, tmp_path):
    (tmp_path / "plan.kept.json.gz").mkdir()
    assert run(*ASKED, "--json", tmp_path / "plan.json").exit_code == 0
    assert (tmp_path / "plan.json.kept.json.gz").is_file()


@pytest.mark.parametrize(
    "words",
    [[*ASKED, "--json", "out.json"], ["plan", "--model", "mine:step", "--cluster", "p3.16xlarge", "--batch", "8"]],
)
def test_a_current_folder_that_is_gone_is_told(tmp_path, monkeypatch, words):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "Error: the current folder isn't there any more; go to one that is, and ask again"
    )


def test_an_output_is_given_once(run, tmp_path):
    os.symlink(tmp_path / "one", tmp_path / "other")
    for one, other in (("one", "one"), ("one", "other"), ("one", "./one")):
        result = run(*ASKED, "--json", f"{tmp_path}/{one}", "--trace", f"{tmp_path}/{other}")
        assert (result.exit_code, result.stdout, run.asked) == (1, "", 0)
        assert "is given twice, but must be given once" in result.stderr
    assert "the output - is given twice" in run(*ASKED, "--json", "-", "--python", "-").stderr
    assert not (tmp_path / "one").exists()


def test_an_open_file_is_written_where_it_stands(run, tmp_path):
    with open(tmp_path / "out", "wb", buffering=0) as out:
        out.write(b"before\n")
        result = run(*ASKED, "--json", f"/dev/fd/{out.fileno()}")
        out.write(b"after\n")
    assert result.exit_code == 0
    assert "stage  layers" in result.stdout
    assert os.listdir(tmp_path) == ["out"]
    before, *text, after = (tmp_path / "out").read_text().splitlines()
    assert (before, after) == ("before", "after")
    assert json.loads("\n".join(text))["model"] == "tiny"


def test_an_open_file_that_is_only_read_is_found_before_planning(run, tmp_path):
    (tmp_path / "in").write_text("as it was")
    with open(tmp_path / "in", "rb") as file:
        path = f"/dev/fd/{file.fileno()}"
        result = run(*ASKED, "--html", path)
    assert (result.exit_code, result.stdout, run.asked) == (1, "", 0)
    assert f"{path} can't be written: Bad file descriptor" in result.stderr
    assert (tmp_path / "in").read_text() == "as it was"


def test_the_table_is_printed_before_anything_is_written(run, tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", fails)
    result = run(*ASKED, "--json", tmp_path / "plan.json")
    assert result.exit_code == 1
    assert "stage  layers" in result.stdout
    assert result.stderr.startswith(f"Error: {tmp_path / 'plan.json'}")
    assert "can't be written: No space left on device" in result.stderr
    assert os.listdir(tmp_path) == []
