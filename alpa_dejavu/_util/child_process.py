"""A process beside this one that answers over a pipe: there while a `with` block runs, gone in every way out of it."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["child_process"]


@contextlib.contextmanager
def child_process(serve: Callable[..., object], *arguments: Any, name: str, patience_s: float) -> Iterator[Connection]:
    """Runs `serve(connection, *arguments)` in a fresh Python process while a `with` block runs, and yields this side's
    end of the connection to it.

    Args:
        serve: a module-level function, which is expected to return once the connection is closed.
        arguments: further arguments of `serve`, which are pickled and sent to the process.
        name: the name of the process, for people.
        patience_s: how long the process may take to end once the connection is closed, before it is killed.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments), name=name)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(patience_s)
        if process.is_alive():
            process.terminate()
            process.join(patience_s)
        if process.is_alive():
            process.kill()
