"""Commands: their help, with examples and what their figures rest on, and one message for what the user can mend."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import keyword
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NoReturn, TypeVar, final

import click

from alpa_dejavu._util.units import counted
from alpa_dejavu.cli.output import prepare_streams, printable_lines, to_stdout
from alpa_dejavu.cli.table import with_wide

_MOST = 76
"""How long a line of an example may be."""

PREDICTIONS = (
    "Seconds are predicted by a calibration, else by models fitted to measured GPUs, else by data sheets; a plan says "
    "how far off they may be."
)

DOES_NOT_FIT = 3
"""The exit code where no plan fits, or the one that was given doesn't."""

F = TypeVar("F", bound=Callable[..., Any])
_PLACEHOLDERS = {"integer": "N", "float": "NUMBER", "text": "TEXT"}
_WIDEST = 23
"""How wide the names of options may be before their help starts on a line of its own."""
_OTHERS = "Options"
"""The heading of options that have none of their own."""


@final
class GroupedOption(click.Option):
    """An option with the heading under which `--help-all` lists it; `--help` lists it, too, unless it is rare."""

    def __init__(self, *arguments: Any, group: str = _OTHERS, rare: bool = False, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.group, self.rare = group, rare
        self.type.name = self.type.name.removesuffix(" range")  # errors then say "isn't a valid integer"

    def make_metavar(self, ctx: click.Context) -> str:
        """Returns the placeholder of the option's value: its choices, N for a whole number, or the type's own name."""
        name = self.type.name
        return self.metavar or self.type.get_metavar(self, ctx) or _PLACEHOLDERS.get(name, name)

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        """Returns what follows the help in brackets; that a number can't be negative goes without saying."""
        extra = super().get_help_extra(ctx)
        if extra.get("range") in ("x>=0", "x>=1", "x>0"):
            extra.pop("range")
        return extra


def option(*names: str, group: str = _OTHERS, rare: bool = False, **attributes: Any) -> Callable[[F], F]:
    """Returns a decorator that adds a `GroupedOption` to a command; other attributes are those of `click.option`."""
    return click.option(*names, cls=GroupedOption, group=group, rare=rare, **attributes)


_ALL = f"{__name__}.all"


def _show_all(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def _help_all() -> GroupedOption:
    return GroupedOption(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=_show_all
    )


class Command(click.Command):
    """A command whose help ends with examples, each with all its words, with rows under a title, which a function makes
    when they are shown, and with what its figures rest on, if any. Rare options are in `--help-all` alone.
    """

    def __init__(
        self,
        *arguments: Any,
        examples: Sequence[str] = (),
        rests_on: str = "",
        rows: tuple[str, Callable[[], Sequence[tuple[str, str]]]] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.examples, self.rests_on, self.rows = tuple(examples), rests_on, rows
        self.params.append(_help_all())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options: those that most people need, or with `--help-all` each under its heading."""
        shows_all, sections = bool(ctx.meta.get(_ALL)), dict[str, list[tuple[str, str]]]()
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            if shows_all or not _is_rare(parameter):
                heading = getattr(parameter, "group", _OTHERS) if shows_all else _OTHERS
                sections.setdefault(heading, []).append(record)
        others = sections.pop(_OTHERS)  # with `--help`, which every command has
        for heading, records in (*sections.items(), (_OTHERS, others)):
            with formatter.section(heading):
                formatter.write_dl(records, col_max=_WIDEST)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples, and what the figures rest on, below the options."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write("".join(f"  {line}\n" for line in _lines(example)))
        if self.rows is not None:
            title, rows = self.rows
            with formatter.section(title):
                formatter.write_dl(rows())
        if self.rests_on:
            with formatter.section("What the figures rest on"):
                formatter.write_text(self.rests_on)
        rare = sum(map(_is_rare, self.get_params(ctx)))
        if rare and not ctx.meta.get(_ALL):
            formatter.write(f"\n{counted(rare, 'more option')}: --help-all\n")


def _is_rare(parameter: click.Parameter) -> bool:
    return isinstance(parameter, GroupedOption) and parameter.rare


class CommandGroup(click.Group):
    """A group of commands that are listed in the order in which they were added, each with its whole first sentence."""

    command_class = Command

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.params.append(_help_all())

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands, in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(sentences_of(self.commands).items()))


@final
class LateCommands(Mapping[str, click.Command]):
    """The commands of this package, with their helps' first sentences; each is imported when it is first used."""

    def __init__(self, sentences: Mapping[str, str]) -> None:
        self.sentences = sentences

    def __getitem__(self, name: str) -> click.Command:
        self.sentences[name]  # raises KeyError where there is no such command
        return _imported(name.replace("-", "_") + "_" * keyword.iskeyword(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.sentences)

    def __len__(self) -> int:
        return len(self.sentences)


@functools.cache
def _imported(name: str) -> click.Command:
    command: click.Command = getattr(importlib.import_module(f"{__package__}.{name}"), name)
    return with_wide(command)


def sentences_of(commands: Mapping[str, click.Command]) -> Mapping[str, str]:
    """Returns the first sentence of each command's help, by the command's name."""
    if isinstance(commands, LateCommands):
        return commands.sentences
    texts = {name: " ".join((command.help or "").partition("\n\n")[0].split()) for name, command in commands.items()}
    # Without an end that only explains it.
    return {name: text.partition(". ")[0].partition(";")[0].rstrip(".") + "." for name, text in texts.items()}


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


_PACKAGE = str(pathlib.Path(__file__).parents[1])
_OF_PATHS = ("pathlib", "os", "genericpath", "posixpath", "tempfile")
"""Modules by which we ask for files: their errors say what is wrong with a path, wherever it is from."""
_WRAPPERS = {"click", "contextlib.py"}
"""Packages and modules through which this package calls itself."""


@final
class ReportingGroup(CommandGroup):
    """A group whose commands' errors go to standard error; the exit code is then 1 (2: wrong usage, 3: no plan fits,
    130: interrupt).
    """

    def main(self, *arguments: Any, **extra: Any) -> NoReturn:
        """Runs a command line with its arguments, and exits with its exit code."""
        try:
            prepare_streams()
            code = self._run(*arguments, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            code = error.exit_code
            shown = io.StringIO()
            error.show(shown)
            # Where standard error can't be written either, the exit code says it alone.
            with contextlib.suppress(OSError):
                click.echo(printable_lines(shown.getvalue()), err=True, nl=False)
        sys.exit(code)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Adds a command; its tables can be shown whole by `--wide`."""
        super().add_command(with_wide(cmd), name)

    def _run(self, *arguments: Any, **extra: Any) -> int:
        try:
            with to_stdout():
                code = super().main(*arguments, **extra)
            return code if isinstance(code, int) else 0
        except (KeyboardInterrupt, click.Abort):
            raise Interrupted from None

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command of a click context; errors become click exceptions, whose messages are then shown."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            raise Interrupted from None
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) and _files(error)[-1] == click.utils.__file__:
                # The help of a command couldn't be written.
                raise
            raise reported(error) from error


@final
class Interrupted(click.ClickException):
    """An exception that says that the user has interrupted the command; the exit code is 130."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("Interrupted")

    def show(self, file: IO[Any] | None = None) -> None:
        """Prints "Interrupted" on standard error, below the ^C that a terminal shows."""
        click.echo("\n" * sys.stderr.isatty() + self.message, file=file, err=True)


@final
class NothingFits(click.ClickException):
    """An exception that says that no plan fits, which scripts can tell from an error by its exit code."""

    exit_code = DOES_NOT_FIT


@final
class ForeignError(click.ClickException):
    """An error raised in code outside of this package, shown with its traceback from where this package called it."""

    def __init__(self, error: BaseException, first: int) -> None:
        super().__init__(str(error))
        shown = traceback.TracebackException.from_exception(error)
        del shown.stack[:first]
        self._text = "".join(shown.format(chain=False))

    def show(self, file: IO[Any] | None = None) -> None:
        """Prints the traceback of the error on standard error."""
        click.echo(self._text, file=file, err=True, nl=False)


def _files(error: BaseException) -> list[str]:
    """The file of each call that an error came by, ours first."""
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def _folder_is_gone() -> bool:
    """Returns whether the current folder was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def reported(error: Exception | SystemExit) -> click.ClickException:
    """Returns the exception that reports an error: this package's by their message, others by a traceback, too."""
    if isinstance(error, MemoryError):
        return click.ClickException(
            "there isn't enough memory for this; end other programs, or ask for a smaller model, cluster or batch"
        )
    if isinstance(error, FileNotFoundError) and error.filename is None and _folder_is_gone():
        return click.ClickException("the current folder isn't there any more; go to one that is, and ask again")
    files = _files(error)
    ours = [n for n, file in enumerate(files) if file.startswith(_PACKAGE)]
    if isinstance(error, ModuleNotFoundError) and error.name is not None and ours and ours[-1] == len(files) - 1:
        return click.ClickException(f"the package {error.name!r} is missing; `alpa-dejavu doctor` says what to install")
    if ours and ours[-1] == len(files) - 1 and isinstance(error, (ValueError, TypeError, RuntimeError)):
        from alpa_dejavu.problem import NoPlanError

        return NothingFits(str(error)) if isinstance(error, NoPlanError) else click.ClickException(str(error))
    of_path = bool(ours) and all(pathlib.Path(file).stem in _OF_PATHS for file in files[ours[-1] + 1 :])
    if isinstance(error, OSError) and error.filename is not None and of_path:
        return click.ClickException(f"{error.filename}: {error.strerror}; give another path")
    calls = [n for n in ours if n + 1 < len(files) and not files[n + 1].startswith(_PACKAGE)]
    outside = [n + 1 for n in calls if _WRAPPERS.isdisjoint(pathlib.Path(files[n + 1]).parts)]
    return ForeignError(error, outside[0] if outside else 0)
