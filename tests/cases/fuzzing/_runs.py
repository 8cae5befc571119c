"""Runs examples: in this process, in one beside it that can be ended, or as commands."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import final

from fuzzing._example import Example
from fuzzing._outcome import Ended, Limits, Outcome, Watch
from harness import peak_bytes

_CASES = pathlib.Path(__file__).resolve().parents[1]
_ROOT = _CASES.parents[1]
_PATH = os.pathsep.join((str(_CASES), str(_ROOT / "benchmarks"), str(_ROOT)))

_MOST_EXAMPLES = 200
"""A process is replaced after so many, since what it keeps of each counts for the next ones' memory."""

Run = Callable[[Example, pathlib.Path], Ended]


def outcome_of(example: Example, run: Run, limits: Limits) -> Outcome:
    """Lays an example out in a folder of its own, runs it, and says what became of it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = pathlib.Path(name)
        example.place(folder)
        watch = Watch(folder)
        return watch.outcome(example, run(example, folder), limits)


def in_process(example: Example, folder: pathlib.Path) -> Ended:
    """Runs it here."""
    from click.testing import CliRunner

    from alpa_dejavu.cli.main import main
    from fuzzing._read import main as reader

    with _inside(folder), _memory_watched() as peak:
        started = time.perf_counter()
        command = reader if example.reader else main
        done = CliRunner().invoke(command, example.arguments, env=_variables(example, folder))
        seconds = time.perf_counter() - started
    stderr = done.stderr
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        stderr += "".join(traceback.format_exception(done.exception))
    return Ended(done.exit_code, done.stdout, stderr, seconds, peak(), failed_at(stderr))


def failed_at(text: str) -> str:
    """The last place of ours in a traceback, and its error."""
    places = re.findall(r'File ".*?/(alpa_dejavu/\S+)", line (\d+), in (\S+)', text)
    errors = [line[:160] for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
    if "KeyboardInterrupt" in text or not places:
        return "KeyboardInterrupt" if "KeyboardInterrupt" in text else ""
    return ", ".join([f"{places[-1][0]}:{places[-1][2]}", *errors[-1:]])


@contextlib.contextmanager
def _inside(folder: pathlib.Path) -> Iterator[None]:
    """In the example's folder; what is imported from there is forgotten, and warnings are of nobody's concern."""
    before = pathlib.Path.cwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(before)
        sys.modules.pop("trap", None)


def _variables(example: Example, folder: pathlib.Path) -> Mapping[str, str]:
    usual = {"ALPA_DEJAVU_CACHE": str(folder / "cache"), "ALPA_DEJAVU_HISTORY": "", "JAX_PLATFORMS": "cpu"}
    return {**usual, "XDG_DATA_HOME": str(folder), "XDG_STATE_HOME": str(folder), **dict(example.environment)}


@contextlib.contextmanager
def _memory_watched() -> Iterator[Callable[[], float]]:
    """Gives how much more memory the process has had since, at its most; only Linux tells of less than ever before."""
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = peak_bytes()
    yield lambda: peak_bytes() - before


@final
class _OverTime(KeyboardInterrupt):
    """An example takes too long: it is interrupted as by a user."""


@final
class Worker:
    """A process that runs examples one after the other; one that hangs or dies is replaced."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._stack = limits, contextlib.ExitStack()
        self._connection: Connection | None = None
        self._examples = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, example: Example, folder: pathlib.Path) -> Ended:
        """Runs it there, for at most three times as long as it may take; after twice as long it is interrupted."""
        if self._examples == _MOST_EXAMPLES:
            self._end()
        connection = self._connection or self._started()
        self._examples += 1
        started = time.perf_counter()
        where = "code that can't be interrupted"
        connection.send((example, folder))
        try:
            if connection.poll(3 * self._limits.seconds):
                answer = connection.recv()
                if isinstance(answer, Ended):
                    return answer
        except EOFError:
            where = "the process died"
        seconds = time.perf_counter() - started
        self._end()
        return Ended(None, "", "", seconds, 0.0, where)

    def _end(self) -> None:
        self._stack.close()
        self._connection, self._examples = None, 0

    def _started(self) -> Connection:
        from alpa_dejavu._util.child_process import child_process

        made = child_process(_serve, self._limits, name="fuzz", patience_s=0.1)
        connection = self._stack.enter_context(made)
        connection.recv()
        self._connection = connection
        return connection


def _serve(connection: Connection, limits: Limits) -> None:
    """Answers each example with how it ended."""
    _limit_memory(limits)
    os.environ["JAX_PLATFORMS"] = "cpu"
    with contextlib.suppress(EOFError):
        connection.send("ready")
        while True:
            example, folder = connection.recv()
            connection.send(interrupted(example, folder, 2 * limits.seconds))


def interrupted(example: Example, folder: pathlib.Path, after_s: float) -> Ended:
    """Runs it here, in a process's main thread, and ends it if it takes too long."""
    stacks: list[str] = []

    def interrupt(_: int, frame: types.FrameType | None) -> None:
        stacks.append("".join(traceback.format_stack(frame)))
        raise _OverTime

    before = signal.signal(signal.SIGALRM, interrupt)
    with _memory_watched() as peak:
        try:
            signal.setitimer(signal.ITIMER_REAL, after_s)
            ended = in_process(example, folder)
        except _OverTime:
            ended = Ended(None, "", "", after_s, peak())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
    return dataclasses.replace(ended, stopped=True, where=failed_at(stacks[0])) if stacks else ended


def as_command(example: Example, folder: pathlib.Path, limits: Limits) -> Ended:
    """Runs it as a command, for at most three times as long as it may take; after twice as long it is interrupted."""
    module = "fuzzing._read" if example.reader else "alpa_dejavu"
    paths = os.pathsep.join(filter(None, (_PATH, os.environ.get("PYTHONPATH", ""))))
    variables = {**os.environ, **_variables(example, folder), "PYTHONPATH": paths}
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr, open("/dev/full", "wb") as full:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", module, *example.arguments], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
            stdout=full if example.stdout == "full" else stdout, stderr=stderr,
            preexec_fn=functools.partial(_prepared, example, limits),
        )  # fmt: skip
        timers = [threading.Timer(3 * limits.seconds, process.kill)]
        for after_s in (2 * limits.seconds, example.interrupted_s):
            if after_s is not None:
                timers.append(threading.Timer(after_s, process.send_signal, (signal.SIGINT,)))
        for timer in timers:
            timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        for timer in timers:
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "backslashreplace"))
    code = None if process.returncode == -signal.SIGKILL and seconds > 3 * limits.seconds else process.returncode
    stopped = seconds > 2 * limits.seconds
    return Ended(code, texts[0], texts[1], seconds, usage.ru_maxrss * 1024.0, failed_at(texts[1]), stopped)


def _prepared(example: Example, limits: Limits) -> None:
    """A command's process before it runs."""
    _limit_memory(limits)
    if example.stdout == "closed":
        os.close(1)


def _limit_memory(limits: Limits) -> None:
    """What takes much more than it may is refused by the system before it hurts others."""
    if math.isfinite(limits.memory_bytes):
        resource.setrlimit(resource.RLIMIT_DATA, (int(1.5 * limits.memory_bytes), resource.RLIM_INFINITY))
