"""What the command line does with terminals, closed or full streams, and other encodings."""

import dataclasses
import json
import logging
import os
import pathlib
import subprocess
import sys

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli import main
from alpa_dejavu.cli.output import console, printable, printable_lines
from alpa_dejavu.plans.plan_file import write_plan
from plans import example_plan, stage

ESCAPES = "\x1b[2J\x1b]0;title\x07\r\x9b31mred\u202e\n"
COMMAND = [sys.executable, "-m", "alpa_dejavu"]


def command(*words):
    return CliRunner().invoke(main.main, [str(word) for word in words])


def process(shell, *words, **environment):
    """A command line in a process of its own, as a shell starts it; `shell` says how, with "$@" for the command."""
    here = pathlib.Path(main.__file__).parents[1]
    return subprocess.run(
        ["sh", "-c", shell, "sh", *COMMAND, *map(str, words)],
        capture_output=True, text=True, encoding="utf-8", timeout=600,
        env={**os.environ, "PYTHONPATH": str(here), **environment},
    )  # fmt: skip


def controls(text):
    return [one for one in text if not one.isprintable() and one != "\n"]


def test_text_is_printed_without_control_characters():
    assert printable("plain: äöü 中文") == "plain: äöü 中文"
    assert printable(ESCAPES) == r"\x1b[2J\x1b]0;title\x07\r\x9b31mred\u202e\n"
    assert printable_lines("a\tb\r\nc\udcff") == "a\tb\\r\nc\\udcff"


def test_text_of_a_file_moves_no_cursor(tmp_path):
    stages = (stage((0, 3), hosts=(f"host{ESCAPES}",)),)
    plan = example_plan(stages=stages, cluster=f"cluster{ESCAPES}", model=f"model{ESCAPES}", notes=(f"note{ESCAPES}",))
    path = write_plan(plan, tmp_path / "plan.json")
    result = command("explain", path)
    assert result.exit_code == 0
    assert controls(result.output) == []
    for word in ("host", "cluster", "model", "note"):
        assert rf"{word}\x1b[2J\x1b]0;title\x07\r" in result.stdout
    assert [line for line in result.stdout.splitlines() if line.startswith("note")] == [f"note{printable(ESCAPES)}"]
    assert controls(command("diff", path, path).output) == []


def test_errors_and_warnings_have_none_either(tmp_path):
    path = write_plan(example_plan(), tmp_path / "plan.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, f"key{ESCAPES}": 1}))
    result = command("explain", path)
    assert result.exit_code == 1
    assert r"key\x1b]0;title\x07\r" in result.stderr
    assert controls(result.stderr) == []
    record = logging.LogRecord("alpa_dejavu", logging.WARNING, "", 0, "what is in %s", (ESCAPES,), None)
    assert controls(logging.lastResort.format(record)) == []


@pytest.mark.parametrize("words", [["history"], ["history", "--json"], ["--help"], ["plan", "--help"], ["--version"]])
def test_a_full_standard_output_is_said_in_a_line(words, tmp_path):
    done = process('"$@" >/dev/full', *words, ALPA_DEJAVU_HISTORY=str(tmp_path / "history.sqlite"))
    assert done.returncode == 1
    assert done.stderr == "Error: standard output can't be written: No space left on device\n"


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ('"$@" >&-', 1, "Error: standard output is closed, but must be open; give >/dev/null to print nothing\n"),
        ('"$@" 2>&-', 0, ""),
        ('"$@" 2>/dev/full', 0, ""),
        ('"$@" >&- 2>&- <&-', 1, ""),
    ],
)
def test_closed_streams_have_no_traceback(shell, code, said, tmp_path):
    done = process(shell, "history", ALPA_DEJAVU_HISTORY=str(tmp_path / "history.sqlite"))
    assert (done.returncode, done.stderr) == (code, said)


def test_a_pipe_that_nobody_reads_ends_a_command_quietly(tmp_path):
    read, write = os.pipe()
    os.close(read)
    asked = [*COMMAND, "history", "--history", str(tmp_path / "history.sqlite")]
    done = subprocess.run(asked, stdout=write, stderr=subprocess.PIPE, text=True, timeout=600)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_only_four_exit_codes(monkeypatch, tmp_path):
    for raised in (SystemExit(7), MemoryError(), OSError(5, "broken"), RecursionError()):

        def fails(*_, raised=raised):
            raise raised

        monkeypatch.setattr("alpa_dejavu.cli.explain.read_plan", fails)
        assert command("explain", tmp_path / "plan.json").exit_code == 1


def test_what_is_going_on_is_no_markup(tmp_path):
    result = command("explain", tmp_path / "[/b]plan.json")
    path = write_plan(example_plan(), tmp_path / "[plan].json")
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert command("explain", path).exit_code == 0


def test_errors_without_a_standard_error_exit_with_1(tmp_path):
    for shell in ('"$@" 2>&-', '"$@" 2>/dev/full'):
        done = process(shell, "explain", tmp_path / "none.json")
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_hosts_in_chinese_are_shown_on_an_ascii_terminal(tmp_path):
    stages = tuple(dataclasses.replace(one, hosts=("主机",)) for one in example_plan().stages)
    path = write_plan(example_plan(stages=stages), tmp_path / "plan.json")
    done = process('"$@"', "explain", path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u4e3b\u673a" in done.stdout
    assert "主机" in process('"$@"', "explain", path, PYTHONIOENCODING="utf-8").stdout


def test_a_size_that_no_terminal_has_is_as_good_as_none(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "9" * 5000)
    console().print("text")
    assert capsys.readouterr().out == "text\n"
