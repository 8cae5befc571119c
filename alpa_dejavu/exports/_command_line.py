"""The command line that a shell script runs: its arguments with their lines, read and not run."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, final

from alpa_dejavu._util.json_file import read_text
from alpa_dejavu.exports._shell import Script, ShellCommand
from alpa_dejavu.exports._shell_words import Field, Unknown, text_of, unknown_in
from alpa_dejavu.exports._target import short

_REMEDY = "give a script or a command line with the arguments of the run"
MOST_DIGITS = 18
"""So many digits may a number have."""
_NAMED = re.compile(r"--?[A-Za-z].*", re.DOTALL)
_OF_TORCHRUN = ("nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "rdzv_id", "rdzv_backend",
                "rdzv_endpoint", "max_restarts")  # fmt: skip
_SAYS = ("echo", "printf", "cat", ":", "[", "test", "sed", "awk", "grep", "export")


@final
@dataclasses.dataclass(frozen=True)
class ShellArgument:
    """An argument of a command line.

    Attributes:
        name: its name, without the dashes in front; empty for words in front of all names.
        values: the words behind it, up to the next argument.
        line: the number of its line, from 1.
        unknown: why its text isn't known; None: it is.
        joined: whether its first value is behind an equals sign.
    """

    name: str
    values: tuple[str, ...]
    line: int
    unknown: Unknown | None = None
    joined: bool = False

    @property
    def value(self) -> str:
        """Returns its first value; empty where it has none."""
        return self.values[0] if self.values else ""


@final
@dataclasses.dataclass(frozen=True)
class CommandLine:
    """A command that trains, as a script runs it.

    Attributes:
        launch: the words in front of the program, such as those of torchrun.
        launched: the arguments among these.
        program: the file of the program, which ends in .py; empty: there are arguments alone.
        arguments: the arguments behind it, in their order.
        line: the number of its line.
    """

    launch: tuple[str, ...]
    launched: tuple[ShellArgument, ...]
    program: str
    arguments: tuple[ShellArgument, ...]
    line: int


def command_line_of(path: pathlib.Path, telling: Collection[str]) -> CommandLine:
    """Returns the one command that a script runs with arguments of certain names, or the arguments of a file that has
    nothing else.

    Variables are what the script sets them to; nothing is run.

    Args:
        path: the file.
        telling: names of arguments, without dashes, of which the command has one at least.

    Raises:
        ValueError: the file can't be read, or there is none or more than one such command, or whether it runs isn't
            known; says in which line.
    """
    try:
        script = Script(read_text(path, _REMEDY)).read()
    except SyntaxError as error:
        raise wrong_line(path, error.lineno or 1, error.msg) from None
    bare = [command for command in script.commands if text_of(command.words[0]).startswith("-")]
    runs = [command for command in script.commands if _tells(command.words, telling) and command not in bare]
    if not runs and bare:
        words = tuple(word for command in bare for word in command.words)
        runs = [ShellCommand(words, bare[0].line, next((command.within for command in bare if command.within), None))]
    if not runs:
        fields = tuple(word for _, words in script.variables if _names(words) for word in words)
        if _tells(fields, telling):
            runs = [ShellCommand(fields, next(word[0].line for word in fields if word), None)]
    if not runs:
        for command in script.commands:
            unknown = unknown_in(command.words)
            trains = unknown_in(command.words[:1]) is not None or any(
                text_of(word).endswith(".py") for word in command.words
            )
            if unknown is not None and trains:
                raise wrong_line(path, unknown.line, f"what line {command.line} runs isn't known: {unknown.reason}")
        raise ValueError(f"{path}: there are no arguments of Megatron's in it; give the script of the run")
    first = runs[0]
    for other in runs:
        if other.within is not None:
            raise wrong_line(
                path, other.within.line, f"whether line {other.line} trains isn't known: {other.within.reason}"
            )
        if [*map(text_of, other.words)] != [*map(text_of, first.words)]:
            raise wrong_line(path, other.line, f"it trains again, after line {first.line}; leave one of them out")
    ends = [n for n, word in enumerate(first.words) if text_of(word).endswith(".py")]
    if not ends:
        both = _arguments(first.words)
        launched = tuple(argument for argument in both if argument.name.replace("-", "_") in _OF_TORCHRUN)
        return CommandLine(
            (), launched, "", tuple(argument for argument in both if argument not in launched), first.line
        )
    launch, behind = first.words[: ends[0]], first.words[ends[0] + 1 :]
    return CommandLine(
        tuple(map(text_of, launch)), tuple(_arguments(launch)), text_of(first.words[ends[0]]),
        tuple(_arguments(behind)), first.line,
    )  # fmt: skip


def _tells(words: Sequence[Field], telling: Collection[str]) -> bool:
    if not words or text_of(words[0]) in _SAYS:
        return False
    return any(name.partition("=")[0] in telling for name in _names(words))


def _names(words: Iterable[Field]) -> list[str]:
    return [text_of(word).lstrip("-") for word in words if _NAMED.fullmatch(text_of(word))]


def _arguments(words: Iterable[Field]) -> list[ShellArgument]:
    rows: list[tuple[str, list[str], int, list[Field], bool]] = []
    for word in words:
        text = text_of(word)
        if _NAMED.fullmatch(text):
            name, equals, value = text.lstrip("-").partition("=")
            rows.append((name, [value] if equals else [], word[0].line, [word], bool(equals)))
        else:
            if not rows:
                rows.append(("", [], word[0].line if word else 1, [], False))
            rows[-1][1].append(text)
            rows[-1][3].append(word)
    return [
        ShellArgument(name, tuple(values), line, unknown_in(fields), joined)
        for name, values, line, fields, joined in rows
    ]


def wrong_line(path: pathlib.Path, line: int, why: str) -> ValueError:
    """Returns the error that says what is wrong in a line of a file."""
    return ValueError(f"{path}, line {line}: {why}")


_LONG: Final = {"N": "nodes"}


def check_processes(path: pathlib.Path, command: CommandLine, num_devices: int) -> None:
    """Checks that a launcher starts as many processes as a cluster has devices, where it says how many.

    Args:
        path: the script.
        command: the command that it runs.
        num_devices: the cluster's devices.

    Raises:
        ValueError: it starts another number, or one that isn't known; says in which line.
    """
    names = {word.rpartition("/")[2] for word in command.launch}
    by_torch = not names.isdisjoint(("torchrun", "torch.distributed.run", "torch.distributed.launch"))
    launcher = {_LONG.get(argument.name, argument.name.replace("_", "-")): argument for argument in command.launched}
    if not command.program and {"nnodes", "nproc-per-node"} & {*launcher}:
        by_torch = True
    pairs = (("nnodes", "nproc-per-node"), ("num-nodes", "num-gpus"), ("nodes", "ntasks-per-node"))
    nodes, per_node = pairs[0] if by_torch else pairs[1] if "deepspeed" in names else pairs[2]
    whole = [] if by_torch else [name for name in ("np", "n", "num-processes", "ntasks") if name in launcher]
    if whole and names & {"mpirun", "mpiexec", "accelerate", "srun"}:
        count, started = _count(path, launcher[whole[0]]), f"{launcher[whole[0]].value} processes"
    elif (
        by_torch
        or {nodes, per_node} <= {*launcher}
        or (per_node == "num-gpus" in launcher and "hostfile" not in launcher)
    ):
        if by_torch and per_node in launcher and launcher[per_node].value in ("gpu", "auto"):
            return
        first = _count(path, launcher[nodes]) if nodes in launcher else 1
        second = _count(path, launcher[per_node]) if per_node in launcher else 1
        count, started = first * second, f"{first} nodes of {second} processes"
    else:
        return
    if count != num_devices:
        counting = next((launcher[name] for name in (nodes, per_node, *whole) if name in launcher), None)
        raise wrong_line(
            path, command.line if counting is None else counting.line,
            f"{started} aren't the {num_devices} devices of the cluster; give the cluster that it runs on, by "
            "--cluster and --hosts",
        )  # fmt: skip


def _count(path: pathlib.Path, argument: ShellArgument) -> int:
    if argument.unknown is not None:
        raise wrong_line(
            path, argument.unknown.line, f"--{argument.name} {argument.value} isn't known: {argument.unknown.reason}"
        )
    value = argument.value
    least, _, most = value.partition(":")
    value = least if least == most else value
    if not (value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS):
        raise wrong_line(
            path, argument.line, f"--{argument.name} is {short(value)}, but must be a whole number; write it out"
        )
    return int(value)
