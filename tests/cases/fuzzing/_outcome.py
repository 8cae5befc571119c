"""How an example ended, and what is wrong with that."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import json
import pathlib
import re
import signal
from collections.abc import Iterator, Mapping
from typing import final

from alpa_dejavu._util import units
from fuzzing._example import Example
from fuzzing._figures import contradictions_in

_DEVICES = pathlib.Path("/dev")
ALLOWED = (0, 1, 2, 3, 130)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@final
@dataclasses.dataclass(frozen=True)
class Ended:
    """What a run of an example left behind.

    Attributes:
        code: the exit status; None: it had to be ended.
        stdout, stderr: what it printed.
        seconds: that it took.
        memory_bytes: at its most; in a process that has run others before, over what that had.
        where: of the code where it hung or failed, as far as it is known.
        stopped: whether it was interrupted since it took too long.
    """

    code: int | None
    stdout: str
    stderr: str
    seconds: float
    memory_bytes: float
    where: str = ""
    stopped: bool = False


@final
@dataclasses.dataclass(frozen=True)
class Limits:
    """What an example may take."""

    seconds: float = 20.0
    memory_bytes: float = 2 * 2.0**30


@final
@dataclasses.dataclass(frozen=True)
class Outcome:
    """An example, how it ended, and what is wrong with that: nothing, where it is as it should be."""

    example: Example
    ended: Ended
    faults: tuple[str, ...]

    @property
    def sort(self) -> str:
        """Failures that have the same one most likely have one cause."""
        words = f"{'; '.join(self.faults)}: {self.ended.where or last_line(self.ended.stderr)}"
        return re.sub(r"\d+", "0", re.sub(r"fuzz-\w+", "fuzz", words))[:300]


def last_line(text: str) -> str:
    """The last line that says anything; of a traceback the line that names the error."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Warning|Interrupt)\b", line)]
    return (errors or lines or [""])[-1]


@final
class Watch:
    """What lies in an example's folder before it runs."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._before, self._devices = folder, dict(_digests(folder)), set(_devices())

    def outcome(self, example: Example, ended: Ended, limits: Limits) -> Outcome:
        """What became of it."""
        faults = (*_said_wrong(example, ended), *_took_too_much(ended, limits), *self._files_wrong(example))
        if example.accepts and ended.code == 0:
            found = dict.fromkeys(contradictions_in(self._folder / example.accepts))
            faults += tuple(f"accepted, but {said}" for said in found)
        return Outcome(example, ended, faults)

    def _files_wrong(self, example: Example) -> Iterator[str]:
        after = dict(_digests(self._folder))
        if "trapped" in after and not any("trap" in word for word in example.arguments):
            yield "code that a file names was run"
        for name in sorted({*self._before, *after} - {"trapped"}):
            if self._before.get(name) == after.get(name) or name.startswith("__pycache__"):
                continue
            if not _may_change(name, example):
                how = "made" if name not in self._before else "changed" if name in after else "lost"
                yield f"{name} was {how}, though nobody asked for it"
            elif name in after and (why := _half(self._folder / name)):
                yield f"a {pathlib.PurePath(name).suffix} file was written by half: {why}"
        for device in set(_devices()) - self._devices:
            (_DEVICES / device).unlink()
            yield f"{_DEVICES / device} was made"


def _said_wrong(example: Example, ended: Ended) -> Iterator[str]:
    if ended.code is None or (example.interrupted_s is not None and _before_ours(ended)):
        return
    if ended.code not in ALLOWED:
        yield f"exit status {ended.code}"
    if ended.code == 130 and example.interrupted_s is None and not ended.stopped:
        yield "exit status 130 without an interrupt"
    printed = ended.stdout + ended.stderr
    if "Traceback (most recent call last)" in printed and not example.own_error:
        yield "traceback"
    elif ended.code in (1, 2) and not ended.stderr.strip() and example.arguments[0] != "doctor":
        yield "no word on stderr"
    # A page or a document that is asked for on standard output is data, which a terminal isn't meant for.
    if _CONTROL.search(ended.stderr if "-" in example.arguments else printed):
        yield "control characters on the terminal"


def _before_ours(ended: Ended) -> bool:
    """Whether an interrupt met Python itself, before any line of ours was run."""
    while_starting = "init_import_site" in ended.stderr or ended.code == -signal.SIGINT
    # Python is at our first line there, which has interrupts end in a line from then on.
    return while_starting and not re.search(r"/alpa_dejavu/(?!__main__\.py)", ended.stderr)


def _took_too_much(ended: Ended, limits: Limits) -> Iterator[str]:
    told = re.search(r"\b(seconds|minutes|hours)\b|\d s\b", ended.stderr) is not None
    if ended.code is None or (ended.stopped and not told):
        yield "had to be ended"
    elif ended.seconds > limits.seconds and not told:
        yield f"over {units.seconds(limits.seconds)}"
    if ended.memory_bytes > limits.memory_bytes:
        yield f"over {units.size(limits.memory_bytes)}"


def _may_change(name: str, example: Example) -> bool:
    """Whether it is an output, what is kept beside one, or in a folder that may be filled."""
    for output in (*example.outputs, "cache/"):
        path = pathlib.PurePath(output)
        if name == output or name.startswith(f"{output.rstrip('/')}/") or pathlib.PurePath(name) == path:
            return True
        stem = name.removesuffix(".kept.json.gz")
        if stem != name and stem in (str(path), str(path.with_suffix("")) if path.name else str(path)):
            return True
        if output in ("linked", "nowhere") and name in ("linked", "nowhere"):
            return True
    return False


def _half(path: pathlib.Path) -> str:
    """Why a file that was written isn't whole; nothing where it is, as JSON, as Python, as a table or as a page."""
    if not path.is_file() or path.suffix in (".js", ".sqlite"):
        return ""
    content = path.read_bytes()
    if content.rstrip().endswith(b"</html>") or _whole_table(content):
        return ""
    try:
        json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    except (ValueError, EOFError, OSError) as error:
        with contextlib.suppress(SyntaxError, ValueError):
            compile(content, path.name, "exec")
            return ""
        return str(error)
    return ""


def _whole_table(content: bytes) -> bool:
    """Whether these are rows of one length, each with its end, as `--order` writes them into a file of any name."""
    rows = [line.split(b",") for line in content.splitlines()]
    return content.endswith(b"\n") and len({len(row) for row in rows}) == 1 and len(rows[0]) > 1


def _digests(folder: pathlib.Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            yield name, str(path.readlink())
        elif path.is_dir():
            yield name, "a folder"
        elif path.stat().st_size < 2**28:
            yield name, hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            yield name, units.exact_bytes(path.stat().st_size)


def _devices() -> list[str]:
    """What programs leave beside /dev/null and /dev/full when they take them for files."""
    with contextlib.suppress(OSError):
        return [path.name for path in _DEVICES.iterdir() if path.suffix or path.name.startswith(".")]
    return []


def tally(outcomes: list[Outcome]) -> Mapping[str, list[Outcome]]:
    """The failures by their sort, those met most often first."""
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.faults:
            found.setdefault(outcome.sort, []).append(outcome)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
