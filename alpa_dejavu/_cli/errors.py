"""How a command fails: one message for what the user can mend; a model function's error with its own traceback."""

from __future__ import annotations

import pathlib
import traceback
from typing import IO, Any

import click

_PACKAGE = str(pathlib.Path(__file__).parents[1])


class ReportingGroup(click.Group):
    """Commands whose errors are told on stderr; the exit code is then 1 (2 for wrong usage)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            raise reported(error) from error


class ForeignError(click.ClickException):
    """An error of code that isn't ours: shown as Python shows it, from where our code called it."""

    def __init__(self, error: BaseException, first: int) -> None:
        super().__init__(str(error))
        shown = traceback.TracebackException.from_exception(error)
        del shown.stack[:first]
        self._text = "".join(shown.format(chain=False))

    def show(self, file: IO[Any] | None = None) -> None:
        """Writes the traceback to stderr."""
        click.echo(self._text, file=file, err=True, nl=False)


def reported(error: Exception) -> click.ClickException:
    """What to show: our own errors as they read, others with their traceback."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [n for n, file in enumerate(files) if file.startswith(_PACKAGE)]
    if isinstance(error, ModuleNotFoundError) and error.name is not None and ours and ours[-1] == len(files) - 1:
        return click.ClickException(f"the package {error.name!r} is missing; `alpa-dejavu doctor` says what to install")
    if ours and ours[-1] == len(files) - 1 and isinstance(error, (ValueError, TypeError, RuntimeError)):
        return click.ClickException(str(error))
    calls = [n for n in ours if n + 1 < len(files) and not files[n + 1].startswith(_PACKAGE)]
    outside = [n + 1 for n in calls if "click" not in pathlib.Path(files[n + 1]).parts]
    return ForeignError(error, outside[0] if outside else 0)
