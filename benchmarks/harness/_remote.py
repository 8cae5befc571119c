"""Processes beside this one: methods of an object there, and answers that are waited for no longer than a limit."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, final

from alpa_dejavu._util.child_process import child_process
from alpa_dejavu._util.units import seconds


@final
class Remote:
    """An object in another process, as this one sees it: `remote("steps", 3)` calls its method `steps(3)`."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name

    def __call__(self, method: str, *arguments: Any) -> Any:
        """Calls a method there, and waits for what it returns.

        Raises:
            RuntimeError: the process has ended, or the method has failed; with its traceback.
        """
        self.send(method, *arguments)
        return self.answer()

    def send(self, method: str, *arguments: Any) -> None:
        """Calls a method there without waiting: `answer` does."""
        # A process that has ended says so where its answer is asked for.
        with contextlib.suppress(OSError):
            self._connection.send((method, *arguments))

    def answer(self) -> Any:
        """The result of the next call that hasn't been answered yet.

        Raises:
            RuntimeError: the process has ended, or the method has failed; with its traceback.
        """
        try:
            failed, answer = self._connection.recv()
        except (EOFError, OSError):
            raise RuntimeError(f"the process {self._name!r} ended without an answer: see its error above") from None
        if failed:
            raise RuntimeError(answer)
        return answer

    @classmethod
    @contextlib.contextmanager
    def started(cls, serve: Callable[..., object], *arguments: Any, name: str, patience_s: float) -> Iterator[Remote]:
        """A process that runs `serve(connection, *arguments)`, which ends in `answer_all`; gone when the block ends."""
        with child_process(serve, *arguments, name=name, patience_s=patience_s) as connection:
            yield cls(connection, name)


def answer_all(connection: Connection, server: object) -> None:
    """Calls the methods of an object that a `Remote` asks for, until the other side closes the connection."""
    while True:
        try:
            method, *arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((False, getattr(server, method)(*arguments)))
        except Exception:
            connection.send((True, traceback.format_exc()))


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
