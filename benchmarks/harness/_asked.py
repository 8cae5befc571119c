"""Answers of other processes that are waited for no longer than a limit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from alpa_dejavu._util.child_process import child_process
from alpa_dejavu._util.units import seconds


def asked_within(limit_s: float, call: Callable[..., Any], *arguments: Any, ready_s: float = 600.0) -> Any:
    """What a call returns in a fresh process, or None if that takes longer than the limit.

    Args:
        limit_s: seconds that the call may take.
        call: a function of a module. One that is a generator yields once, when all is ready, before the limit counts.
        arguments: are sent to the process.
        ready_s: that getting ready may take.

    Raises:
        RuntimeError: it wasn't ready in time, or it has failed.
    """
    with child_process(_called, call, *arguments, name=call.__name__, patience_s=1.0) as connection:
        if not connection.poll(ready_s):
            raise RuntimeError(f"{call.__name__} wasn't ready in {seconds(ready_s)}; is the machine busy?")
        with contextlib.suppress(EOFError):
            connection.recv()
            return connection.recv() if connection.poll(limit_s) else None
    raise RuntimeError(f"{call.__name__} ended without an answer: see its error above")


def _called(connection: Connection, call: Callable[..., Any], *arguments: Any) -> None:
    found = call(*arguments)
    if isinstance(found, Iterator):
        next(found)
        connection.send("ready")
        connection.send(next(found))
    else:
        connection.send("ready")
        connection.send(found)
