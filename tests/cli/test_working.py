"""What is shown while a command works: its phase and its seconds, as lines where there is no terminal."""
import contextlib
import io
import threading

from click.testing import CliRunner

from alpa_dejavu import planning
from alpa_dejavu._util.phases import progress_bar
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


def test_what_is_left_is_said_as_long_as_it_is_more_than_a_moment():
    now = [0.0]
    work = _ShownWork("planning", None, lambda: now[0])
    for _ in range(2):
        now[0] += 2.0
        work.search.price(True, (5, 0), False)
    assert work.text() == "planning: 4 s, about 10 s left"
    now[0] += 9.8
    assert work.text() == "planning: 13 s"
    work.search.is_stopped = True
    assert work.text().startswith("Stopping with the best plan so far")


def test_a_short_command_says_nothing():
    stream = Told()
    with contextlib.redirect_stderr(stream), working("planning") as tell:
        tell("sharding")
    assert stream.getvalue() == ""


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


def test_a_bar_of_a_short_run_says_nothing():
    stream = io.StringIO()
    with progress_bar(stream, total=1, desc="simulating") as bar:
        bar.update(1)
    assert stream.getvalue() == ""
