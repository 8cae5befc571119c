"""Help: commands stand in the order of their use, with examples that could be typed, and with what figures rest on."""

import pathlib
import re
import shlex

import click
import pytest
from click.testing import CliRunner

import alpa_dejavu.cli
from alpa_dejavu.cli.commands import Command
from alpa_dejavu.cli.main import main
from guides import shell_commands


def commands(group=main, path=()):
    """All commands that do something, by the words that name them."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


CLI = pathlib.Path(alpa_dejavu.cli.__file__).parent
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


@every
def test_a_command_that_prints_figures_says_what_they_rest_on(words):
    assert ALL[words].rests_on or words in {("playground", "list"), ("install-alpa",)}


@every
def test_a_command_shows_all_by_wide(words):
    assert "--wide" in help_of(*words)


def help_of(*words):
    return CliRunner().invoke(main, [*words, "--help"]).stdout


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


def test_tables_and_progress_are_drawn_in_one_place_each():
    parts = re.compile(r"rich\.(table|progress|status)|tqdm|\.status\(")
    found = [path.name for path in CLI.glob("*.py") if parts.search(path.read_text(encoding="utf-8"))]
    assert sorted(found) == ["output.py", "working.py"]
