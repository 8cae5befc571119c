"""Files that are being written, each under a name of its own beside the one that it will have.

They are gone when a `with` block ends; a process that ends at once, without leaving its blocks, removes them itself.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import IO

_NOW: set[str] = set()


@contextlib.contextmanager
def unfinished(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Yields a new temporary file beside a path, to write and rename to it; it is removed if it wasn't renamed."""
    name = str(path.with_name(f".{path.name}.{os.urandom(4).hex()}"))
    _NOW.add(name)
    try:
        with open(name, "xb") as file:
            try:
                yield file
            finally:
                remove_unfinished(name)
    finally:
        _NOW.discard(name)


def remove_unfinished(*names: str) -> None:
    """Removes temporary files by their paths, or without any all that this process is writing; errors are ignored."""
    for name in names or tuple(_NOW):
        with contextlib.suppress(OSError):
            os.unlink(name)
