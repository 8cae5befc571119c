"""The help of commands: their order is that of their use, with examples, and with what their figures rest on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

__all__ = ["PREDICTIONS", "Command", "Group"]

_MOST = 76
"""How long a line of an example may be."""

PREDICTIONS = (
    "Seconds on GPUs are predicted by models that are fitted to measured ones, and those on other devices from data "
    "sheets, unless a calibration of the cluster is given. The rows under `rests on` say which, and how far off they "
    "may be. Memory is counted, not measured."
)


class Command(click.Command):
    """A command whose help ends with examples, and with what its figures rest on.

    Args:
        examples: command lines, each with all its words.
        rests_on: a sentence or two on where the figures that it prints are from; "" where it prints none.
        given, named: what `click.Command` takes.
    """

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), rests_on: str = "", **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.examples, self.rests_on = tuple(examples), rests_on

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples, and what the figures rest on, below the options."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write("".join(f"  {line}\n" for line in _lines(example)))
        if self.rests_on:
            with formatter.section("What the figures rest on"):
                formatter.write_text(self.rests_on)


class Group(click.Group):
    """A group of commands that are listed in the order in which they were added, each with its whole first sentence."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands, in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _sentence(command)) for name, command in self.commands.items()])


def _sentence(command: click.Command) -> str:
    """The first sentence of a command's help, without an end that only explains it."""
    text = " ".join((command.help or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].partition(";")[0].rstrip(".") + "."


def _lines(example: str) -> list[str]:
    """An example, with long lines broken before an option."""
    words, lines = example.split(" --"), []
    line = words[0]
    for word in words[1:]:
        if len(f"{line} --{word}") > _MOST - 2:
            lines.append(line + " \\")
            line = f"    --{word}"
        else:
            line = f"{line} --{word}"
    return [*lines, line]
