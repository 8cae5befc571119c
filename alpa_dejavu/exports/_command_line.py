"""The command line that a shell script runs: its arguments with their lines, read and not run."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from alpa_dejavu._util.json_file import read_text
from alpa_dejavu.exports._settings import cluster_of, short
from alpa_dejavu.exports._shell import Script, ShellCommand
from alpa_dejavu.exports._shell_words import Unknown, Word, text_of, unknown_in

_REMEDY = "give a script or a command line with the arguments of the run"
MOST_DIGITS = 18
"""So many digits may a number have."""
_NAMED: Final = re.compile(r"--?([A-Za-z].*)", re.DOTALL)
PLAIN_NAMED: Final = re.compile(r"([A-Za-z]\w*=.*)", re.DOTALL)
"""Arguments with dashes in front, and those that are `name=value`."""
_OF_TORCHRUN: Final = ("nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "rdzv_id", "rdzv_backend",
                       "rdzv_endpoint", "max_restarts")  # fmt: skip
_SAYS: Final = ("echo", "printf", "cat", ":", "[", "test", "sed", "awk", "grep", "export", "in")
"""Words that commands begin with which don't train, and that the values of a loop begin with."""
_BY_TORCH: Final = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}


class ShellArgument(NamedTuple):
    """An argument of a command line."""

    name: str  # its name, without the dashes in front; empty for words in front of all names
    values: tuple[str, ...]  # the words behind it, up to the next argument
    line: int  # the number of its line, from 1
    unknown: Unknown | None = None  # why its text isn't known; None: it is
    joined: bool = False  # whether its first value is behind an equals sign

    @property
    def value(self) -> str:
        """Returns its first value; empty where it has none."""
        return self.values[0] if self.values else ""


class CommandLine(NamedTuple):
    """A command that trains, as a script runs it."""

    launch: tuple[str, ...]  # the words in front of the program, such as those of torchrun
    launched: tuple[ShellArgument, ...]  # the arguments among these
    program: str  # the file of the program, which ends in .py; empty: there are arguments alone
    arguments: tuple[ShellArgument, ...]  # the arguments behind it, in their order
    line: int
    assigned: Mapping[str, int]  # the script's variables, with their lines
    sourced: Sequence[tuple[str, int]]  # the files that the script reads into itself, which aren't read, with lines


def command_line_of(
    path: pathlib.Path, telling: Collection[str], named: re.Pattern[str] = _NAMED, whose: str = "Megatron"
) -> CommandLine:
    """Returns the one command that a script runs with some of the arguments `telling`, or those of a file that has
    nothing else; `named` matches arguments, and `whose` they are is told in errors. Variables are what the script sets
    them to; nothing is run. Raises ValueError if the file can't be read, or there isn't one such command, or whether it
    runs isn't known; says in which line.
    """
    try:
        script = Script(read_text(path, _REMEDY))
    except SyntaxError as error:
        raise wrong_line(path, error.lineno or 1, error.msg) from None
    runs = _training(script, telling, named)
    if not runs:
        for words, line, _ in script.commands:
            unknown = unknown_in(words)
            if unknown is not None and (unknown_in(words[:1]) or any(map(_is_program, words))):
                raise wrong_line(path, unknown.line, f"what line {line} runs isn't known: {unknown.reason}")
        raise ValueError(f"{path}: there are no arguments of {whose}'s in it; give the script of the run")
    (words, line, _), texts = runs[0], [list(map(text_of, run.words)) for run in runs]
    for run, text in zip(runs, texts, strict=True):
        if run.within is not None:
            why = f"whether line {run.line} trains isn't known: {run.within.reason}"
            raise wrong_line(path, run.within.line, why)
        if text != texts[0]:
            raise wrong_line(path, run.line, f"it trains again, after line {line}; leave one of them out")
    ends = next((n for n, word in enumerate(words) if _is_program(word)), None)
    if ends is None:
        both = _arguments(words, named)
        launched = tuple(argument for argument in both if argument.name.replace("-", "_") in _OF_TORCHRUN)
        others = tuple(argument for argument in both if argument not in launched)
        return CommandLine((), launched, "", others, line, script.assigned, script.sourced)
    launch, program = tuple(texts[0][:ends]), texts[0][ends]
    before, behind = (_arguments(part, named) for part in (words[:ends], words[ends + 1 :]))
    return CommandLine(launch, before, program, behind, line, script.assigned, script.sourced)


def _training(script: Script, telling: Collection[str], named: re.Pattern[str]) -> list[ShellCommand]:
    """Returns the commands that train; all arguments as one command where a file has these alone, in arrays or not."""

    def tells(words: tuple[Word, ...]) -> bool:
        if not words or text_of(words[0]) in _SAYS:
            return False
        return any(_name(word, named).partition("=")[0] in telling for word in words)

    bare = [command for command in script.commands if text_of(command.words[0]).startswith("-")]
    runs = [command for command in script.commands if tells(command.words) and command not in bare]
    if not runs and bare:
        words = tuple(word for command in bare for word in command.words)
        runs = [ShellCommand(words, bare[0].line, next((command.within for command in bare if command.within), None))]
    if not runs:
        words = tuple(word for words in script.variables if any(_name(word, named) for word in words) for word in words)
        runs = [ShellCommand(words, next(word[0].line for word in words if word), None)] if tells(words) else []
    return runs


def _is_program(word: Word) -> bool:
    return text_of(word).endswith(".py")


def _name(word: Word, named: re.Pattern[str]) -> str:
    """Returns the name of an argument, perhaps with a value behind; empty for another word."""
    match = named.fullmatch(text_of(word))
    return match[1] if match else ""


def _arguments(words: Iterable[Word], named: re.Pattern[str]) -> tuple[ShellArgument, ...]:
    rows: list[tuple[str, list[str], int, list[Word], bool]] = []
    for word in words:
        name, equals, value = _name(word, named).partition("=")
        if name or not rows:
            rows.append((name, [value] if equals else [], word[0].line if word else 1, [], bool(equals)))
        if not name:
            rows[-1][1].append(text_of(word))
        rows[-1][3].append(word)
    return tuple(
        ShellArgument(name, tuple(values), line, unknown_in(own), joined) for name, values, line, own, joined in rows
    )


def wrong_line(path: pathlib.Path, line: int, why: str) -> ValueError:
    """Returns the error that says what is wrong in a line of a file."""
    return ValueError(f"{path}, line {line}: {why}")


def check_processes(path: pathlib.Path, command: CommandLine, num_devices: int) -> None:
    """Checks that a launcher starts as many processes as there are devices, if it says how many; ValueError if not."""
    names = {word.rpartition("/")[2] for word in command.launch}
    launcher = {
        "nodes" if argument.name == "N" else argument.name.replace("_", "-"): argument for argument in command.launched
    }
    by_torch = bool(names & _BY_TORCH) or (
        not command.program and not {"nnodes", "nproc-per-node"}.isdisjoint(launcher)
    )
    nodes, per_node = (
        ("nnodes", "nproc-per-node") if by_torch
        else ("num-nodes", "num-gpus") if "deepspeed" in names else ("nodes", "ntasks-per-node")
    )  # fmt: skip
    all_processes = next((name for name in ("np", "n", "num-processes", "ntasks") if name in launcher), "")
    if all_processes and not by_torch and names & {"mpirun", "mpiexec", "accelerate", "srun"}:
        count, started = _count(path, launcher[all_processes]), f"{launcher[all_processes].value} processes"
    elif (
        by_torch
        or {nodes, per_node} <= {*launcher}
        or (per_node == "num-gpus" in launcher and "hostfile" not in launcher)
    ):
        if by_torch and per_node in launcher and launcher[per_node].value in ("gpu", "auto"):
            return
        first, second = (_count(path, launcher[name]) if name in launcher else 1 for name in (nodes, per_node))
        count, started = first * second, f"{first} nodes of {second} processes"
    else:
        return
    if count != num_devices:
        counting = next((launcher[name] for name in (nodes, per_node, all_processes) if name in launcher), command)
        raise wrong_line(path, counting.line, f"{started} aren't {cluster_of(num_devices)}")


def _count(path: pathlib.Path, argument: ShellArgument) -> int:
    name, value = argument.name, argument.value
    if argument.unknown is not None:
        raise wrong_line(path, argument.unknown.line, f"--{name} {value} isn't known: {argument.unknown.reason}")
    least, _, most = value.partition(":")
    value = least if least == most else value
    if not (value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS):
        raise wrong_line(path, argument.line, f"--{name} is {short(value)}, but must be a whole number; write it out")
    return int(value)
