"""Help and what a command shows before and while it works."""

import contextlib
import io
import os
import pathlib
import pty
import re
import shlex
import subprocess
import sys
import threading

import click
import pytest
from click.testing import CliRunner

import alpa_dejavu.cli
from alpa_dejavu import planning
from alpa_dejavu._util.phases import phase, progress_bar
from alpa_dejavu.cli import working as working_module
from alpa_dejavu.cli.commands import Command
from alpa_dejavu.cli.main import main
from alpa_dejavu.cli.working import _ShownWork, working
from guides import shell_commands


def commands(group=main, path=()):
    """All commands that do something, by the words that name them."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands())
every = pytest.mark.parametrize("words", ALL, ids=" ".join)


def check_usage(words):
    """Raises click's error where a command line couldn't be run."""
    command, rest = main, list(words)
    while isinstance(command, click.Group):
        command = command.commands[rest.pop(0)]
    with click.Context(main, info_name="alpa-dejavu"):
        command.make_context(command.name, rest)


@every
def test_a_command_has_two_examples_that_could_be_typed(words):
    command = ALL[words]
    assert isinstance(command, Command), f"make {' '.join(words)} by @click.command(cls=Command, examples=..., ...)"
    assert len(set(command.examples)) >= 2
    for example in command.examples:
        typed = shlex.split(re.split(r" [|>] ", example)[0])
        assert tuple(typed[: 1 + len(words)]) == ("alpa-dejavu", *words)
        check_usage(typed[1:])
        assert example in " ".join(help_of(*words).replace(" \\\n", " ").split())


def help_of(*words, option="--help"):
    return CliRunner().invoke(main, [*words, option], terminal_width=80).stdout


def listed_options(text):
    """The options that a help lists below its first heading, in its order."""
    lists = re.split(r"^[A-Z][a-z ]+:$", text, maxsplit=1, flags=re.MULTILINE)[-1]
    return re.findall(r"^  (?:-h, )?(--[a-z-]+)(?= |$)", lists, flags=re.MULTILINE)


@every
def test_help_fits_on_a_screen_and_says_how_many_options_are_behind_help_all(words):
    lines = help_of(*words).splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    options = [p for p in ALL[words].params if isinstance(p, click.Option) and not p.hidden]
    everything = listed_options(help_of(*words, option="--help-all"))
    assert sorted(everything) == sorted([*(p.opts[-1] for p in options), "--help"])
    rest = set(everything) - set(listed_options("\n".join(lines)))
    assert rest == {p.opts[-1] for p in options if getattr(p, "rare", False)}
    plural = "s" * (len(rest) != 1)
    assert (lines[-1] == f"{len(rest)} more option{plural}: --help-all") == bool(rest)


def test_help_all_lists_the_options_of_plan_under_headings():
    text = help_of("plan", option="--help-all")
    heads = ["Model", "Cluster", "Batch and degrees", "Search", "Memory", "Predictions", "Failures", "Prices", "Output"]
    assert re.findall(r"^([A-Z][a-z ]+):$", text, flags=re.MULTILINE)[:9] == heads
    cluster = text.partition("\nCluster:\n")[2].partition("\n\n")[0]
    assert listed_options(cluster) == ["--cluster", "--hosts"]


@pytest.mark.parametrize("group", ["calibration", "playground"])
def test_a_group_has_help_all(group):
    assert help_of(group, option="--help-all") == help_of(group)


@every
def test_an_option_says_what_it_is_in_words_that_stand_alone(words):
    for parameter in ALL[words].params:
        text = getattr(parameter, "help", None)
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert text, parameter.opts
            assert not re.match(r"(Of|By|Between|At|In|What|Whether|How|Instead) ", text), text


def test_each_command_is_listed_with_a_sentence_of_one_line():
    assert len(help_of().split("Commands:")[1].strip().splitlines()) == len(main.commands)


def test_commands_stand_in_the_order_of_their_use_with_whole_sentences():
    listed = help_of().split("Commands:")[1]
    names = re.findall(r"^  (\S+)", listed, flags=re.MULTILINE)
    assert names == list(main.commands)
    assert names[:4] == ["install-alpa", "doctor", "models", "machines"]
    assert "..." not in listed
    sentences = " ".join(listed.split()).split(". ")
    assert len(sentences) == len(names)


@pytest.mark.parametrize("line", shell_commands())
def test_commands_of_the_guides_could_be_typed(line):
    check_usage(shlex.split(line)[1:])


HEAVY = "numpy", "scipy", "numba", "jax", "pydantic", "plotly", "pandas", "sklearn", "yaml", "tqdm"
HELP = "import click; from alpa_dejavu.cli.main import main; main(['--help'], standalone_mode=False)"
PARSED = """
import click
from alpa_dejavu.cli.main import main
with click.Context(main, info_name="alpa-dejavu"):
    main.commands["plan"].make_context("plan", "--model gpt-1.3b --cluster p3.16xlarge --batch 8".split())
"""


def modules_after(code):
    ended = f"try:\n    exec({code!r})\nexcept SystemExit:\n    pass\nimport sys; print(); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", ended], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(("code", "most"), [(HELP, 12), (PARSED, 32)])
def test_nothing_heavy_is_imported_before_a_command_shows_something(code, most):
    modules = modules_after(code)
    assert not modules & set(HEAVY)
    own = [name for name in modules if name.partition(".")[0] == "alpa_dejavu"]
    assert len(own) <= most, sorted(own)


def test_planning_imports_neither_jax_nor_what_fits_and_draws():
    imports = "import alpa_dejavu.planning.by_name, alpa_dejavu.planning.changed.kept, alpa_dejavu.cli.tables"
    modules = modules_after(imports)
    assert not modules & {*HEAVY} - {"numpy"}


def test_a_command_is_imported_once_and_no_other_name_is_one():
    assert main.commands["plan"] is main.commands["plan"]
    assert "sys" not in main.commands
    assert main.commands.get("_warm-up") is None


def test_on_a_terminal_a_plan_shows_what_it_does_before_heavy_imports():
    ours, theirs = pty.openpty()
    code = (
        "import os, sys\n"
        "from alpa_dejavu.cli import working\n"
        "def first(self):\n"
        f"    print([name for name in {HEAVY} if name in sys.modules], flush=True)\n"
        "    os._exit(0)\n"
        "working._ShownWork.text = first\n"
        "from alpa_dejavu.cli.main import main\n"
        "main('plan --model gpt-1.3b --cluster p3.16xlarge --batch 8'.split())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, text=True, check=True)
    os.close(theirs)
    os.close(ours)
    assert run.stdout == "[]\n"


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


CLI = pathlib.Path(alpa_dejavu.cli.__file__).parent


@every
def test_a_command_that_prints_figures_says_what_they_rest_on(words):
    assert ALL[words].rests_on or words in {("playground", "list"), ("install-alpa",)}


@every
def test_a_command_shows_all_by_wide(words):
    assert "--wide" in help_of(*words)


def test_tables_and_progress_are_drawn_in_one_place_each():
    parts = re.compile(r"rich\.(table|progress|status)|tqdm|\.status\(")
    found = [path.name for path in CLI.glob("*.py") if parts.search(path.read_text(encoding="utf-8"))]
    assert sorted(found) == ["output.py", "working.py"]


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
