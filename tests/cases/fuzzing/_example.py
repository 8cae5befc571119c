"""What is tried: a command line, the files that it finds, and how they are laid out in a folder of its own."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shlex
from typing import final

SPARSE_BYTES = 3 * 2**30
"""Of a file that is larger than what an example may take."""

TRAP = """import pathlib
pathlib.Path("trapped").touch()


def run(batch_size=None):
    pathlib.Path("trapped").touch()
"""
"""A module beside the files of each example, which tells if a file's text has made anybody import it."""


@final
@dataclasses.dataclass(frozen=True)
class Placed:
    """Something at a path of an example's folder.

    Attributes:
        name: the path.
        content: of a file; what a link leads to.
        sort: "file", "folder", "link" or "sparse", a file that is longer than it takes of the disk.
    """

    name: str
    content: bytes = b""
    sort: str = "file"

    def place(self, folder: pathlib.Path) -> None:
        """Makes it."""
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.sort == "folder":
            path.mkdir()
        elif self.sort == "link":
            path.symlink_to(os.fsdecode(self.content))
        else:
            path.write_bytes(self.content)
            if self.sort == "sparse":
                os.truncate(path, SPARSE_BYTES)


@final
@dataclasses.dataclass(frozen=True)
class Example:
    """A command line with its files.

    Attributes:
        kind: which format or flags are tried.
        arguments: of `alpa-dejavu`, or of `fuzzing/_read.py` if `reader` is set.
        files: that it finds.
        outputs: paths that it may write: all else must stay as it is.
        environment: variables that are set for it.
        reader: whether `_read.py` reads it, as where no command does.
        accepts: the file whose figures must agree with one another if this ends well; empty: none.
        own_error: whether the model is one that raises, whose traceback is to be seen.
        stdout: where a command's output goes: "", a file; "full", where nothing fits; "closed".
        interrupted_s: after so many seconds a command is interrupted; None: it isn't.
    """

    kind: str
    arguments: tuple[str, ...]
    files: tuple[Placed, ...] = ()
    outputs: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    reader: bool = False
    own_error: bool = False
    stdout: str = ""
    interrupted_s: float | None = None
    accepts: str = ""

    def place(self, folder: pathlib.Path) -> None:
        """Lays out the files."""
        (folder / "trap.py").write_text(TRAP, encoding="utf-8")
        for file in self.files:
            file.place(folder)

    def shown(self, folder: pathlib.Path) -> str:
        """The line for a shell that runs it again in a folder where it lies."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment]
        program = ["python", "-m", "fuzzing._read"] if self.reader else ["alpa-dejavu"]
        after = {"": "", "full": " > /dev/full", "closed": " >&-"}[self.stdout]
        if self.interrupted_s is not None:
            program = ["timeout", "-s", "INT", f"{self.interrupted_s:g}", *program]
        words = [*variables, *map(shlex.quote, (*program, *self.arguments))]
        return f"cd {shlex.quote(str(folder))} && {' '.join(words)}{after}"
