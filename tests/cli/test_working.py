"""What is shown while a command works: its phase and its seconds, as lines where there is no terminal."""

import contextlib
import io
import re
import threading

from click.testing import CliRunner

from alpa_dejavu import planning
from alpa_dejavu._util.phases import phase, progress_bar
from alpa_dejavu.cli import working as working_module
from alpa_dejavu.cli.main import main
from alpa_dejavu.cli.working import _ShownWork, working


class Told(io.StringIO):
    """Takes the place of standard error, which then isn't a terminal, and knows when two lines are there."""

    def __init__(self):
        super().__init__()
        self.two = threading.Event()

    def write(self, text):
        super().write(text)
        if self.getvalue().count("\n") >= 2:
            self.two.set()


def test_phase_and_seconds_are_said():
    now = iter([100.0, 100.9, 112.0, 175.5])
    work = _ShownWork("planning gpt-39b", None, lambda: next(now))
    assert work.text() == "planning gpt-39b: 0 s"
    work.tell("slicing")
    assert work.text() == "planning gpt-39b: slicing, 12 s"
    assert work.text() == "planning gpt-39b: slicing, 75 s"
    timed = iter([0.0, 30.0])
    assert _ShownWork("measuring", 150.0, lambda: next(timed)).text() == "measuring: 30 s of about 150 s"


def test_without_a_terminal_lines_are_written_and_no_carriage_return(monkeypatch):
    monkeypatch.setattr(working_module, "EVERY_S", 0.01)
    stream = Told()
    with contextlib.redirect_stderr(stream), working("planning"):
        phase("sharding\r4 layers")
        assert stream.two.wait(60)
    lines = stream.getvalue().splitlines()
    assert re.fullmatch(r"planning: sharding\\r4 layers, \d+ s", lines[-1])
    assert "\r" not in stream.getvalue()


def test_no_command_guesses_how_long_it_takes(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "plan_model", interrupted)
    asked = "plan --model wresnet-1b --batch 32 --cluster p3.16xlarge --hosts 64".split()
    assert CliRunner().invoke(main, asked).stderr == "Interrupted\n"


def test_a_bar_is_lines_without_a_terminal():
    stream = io.StringIO()
    with progress_bar(stream, total=4, desc="simulating", unit=" steps", delay=0, mininterval=0) as bar:
        for _ in range(4):
            bar.update(1)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 4
    assert all(line.startswith("simulating: ") for line in lines)
    assert "4/4" in lines[-1]
