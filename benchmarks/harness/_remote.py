"""Processes beside this one: methods of an object there, and answers that are waited for; the memory of this one."""

from __future__ import annotations

import contextlib
import re
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, final

from alpa_dejavu._util.child_process import child_process

__all__ = ["Remote", "answer_all", "peak_bytes"]


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
        """Returns the result of the next call that hasn't been answered yet.

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
        """Starts a process that runs `serve(connection, *arguments)`, gone when the block ends."""
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


def peak_bytes() -> float:
    """The most that this process has had in memory since it began, or since Linux was told to count anew.

    The operating system's resource usage has the parent's in it, from before the program began; it stands in where
    there is no /proc.
    """
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        if found is not None:
            return 1024.0 * int(found[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
