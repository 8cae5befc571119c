"""A process beside this one that answers over a pipe: there while a `with` block runs, gone in every way out of it.

Python's own way to start one runs the user's script in it again, which may train without asking whether it is the main
module. So the script is kept from it, unless something that is sent to the process is defined there. Nor does it look
for modules in the current folder first, which may hold anybody's.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

_SAFE = "PYTHONSAFEPATH"
"""The environment variable by which Python 3.11 doesn't put the current folder in front of where it looks."""


def python_environment() -> dict[str, str]:
    """Returns the environment for a Python process whose modules aren't to be those of the current folder."""
    # An empty entry stands for the current folder.
    paths = os.pathsep.join(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    return {**os.environ, _SAFE: "1", "PYTHONPATH": paths}


@contextlib.contextmanager
def child_process(serve: Callable[..., object], *arguments: Any, name: str, patience_s: float) -> Iterator[Connection]:
    """Runs `serve(connection, *arguments)`, a module-level function that is expected to return once the connection is
    closed, in a fresh Python process of this name while a `with` block runs, and yields this side's end of the
    connection. The arguments are pickled. The process is killed if it hasn't ended `patience_s` after the connection is
    closed.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments), name=name)
    with _safe_path():
        try:
            with _without_script():
                process.start()
        except (pickle.PicklingError, AttributeError):
            process.start()  # nothing was started, since something of the script is sent
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


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Has an empty module stand for the user's script while a `with` block runs."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Has Python processes that are started while a `with` block runs look elsewhere than in the current folder first;
    those that are started by `multiprocessing` have this process's paths once they run.
    """
    before = {name: os.environ.get(name) for name in (_SAFE, "PYTHONPATH")}
    os.environ.update(python_environment())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
