"""Broken files of every format, each read by the commands that read it."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import gzip
import io
import itertools
import json
import os
import pathlib
import pickle
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from hypothesis import strategies as st

from fuzzing._breaks import ENCODINGS, NAMES, NUMBERS, OTHERS, broken_bytes, broken_json, broken_lines
from fuzzing._example import Example, Placed
from fuzzing._right import MACHINE, MODEL, PLANNED, Content, Files, alpa_pickle

Contents: TypeAlias = "st.SearchStrategy[bytes]"
Command: TypeAlias = tuple[str, ...]

_ON_CLUSTER: Command = ("plan", *PLANNED, "--cluster", "cluster.json")
_ON_MACHINE: Command = ("plan", *PLANNED, "--cluster", MACHINE)
_LOST: Command = ("replan", "plan.json", "--without", f"{MACHINE}-1", "--json", "new.json")
_PLAN_READERS: tuple[Command, ...] = (
    ("estimate", "plan.json"),
    ("estimate", "plan.json", "--model", MODEL, "--json", "new.json"),
    ("estimate", "plan.json", "--model", MODEL, "--cluster", "cluster.json", "--html", "new.html"),
    ("explain", "plan.json"),
    ("diff", "plan.json", "other.json", "--model", MODEL, "--cluster", "cluster.json"),
    ("diff", "other.json", "plan.json"),
    _LOST,
    ("replan", "plan.json", "--cluster", MACHINE, "--python", "new.py"),
)


@final
@dataclasses.dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        name: in the table.
        file: that is broken, a pattern of its path.
        broken: the broken contents of such a file.
        commands: that read it.
        environment: variables that they are given.
        reader: whether the commands are those of `_read.py`.
        changed: what may be changed by reading it: paths, or what they begin with.
    """

    name: str
    file: str
    broken: Callable[[bytes], Contents]
    commands: tuple[Command, ...]
    environment: tuple[tuple[str, str], ...] = ()
    reader: bool = False
    changed: tuple[str, ...] = ()

    def examples(self, right: Files) -> st.SearchStrategy[Example]:
        """All files are there, and one that is broken; or none, or something else, is in its place."""
        return st.composite(_example)(self, right)


def _example(draw: st.DrawFn, form: Format, right: Files) -> Example:
    name = draw(st.sampled_from(fnmatch.filter(right, form.file)))
    rest = tuple(Placed(other, content) for other, content in right.items() if other != name)
    if draw(st.integers(0, 9)):
        placed: tuple[Placed, ...] = (Placed(name, draw(form.broken(right[name]))),)
    else:
        placed = draw(st.sampled_from(_instead(name, right[name])))
    command = draw(st.sampled_from(form.commands))
    outputs = (*outputs_of(command), *form.changed)
    return Example(form.name, command, (*rest, *placed), outputs, form.environment, form.reader)


def _instead(name: str, content: bytes) -> tuple[tuple[Placed, ...], ...]:
    """Nothing, a folder, links to the file, to nothing and to themselves, and files that never end, or not soon."""
    moved = Placed("moved", content)
    link = functools.partial(Placed, name, sort="link")
    ends = (b"nowhere", os.fsencode(pathlib.PurePath(name).name), b"/dev/null", b"/dev/full", b"/dev/zero")
    up = b"../" * name.count("/")
    links = [(link(up + b"moved"), moved), *((link(end),) for end in ends)]
    return ((), (Placed(name, sort="folder"),), (Placed(name, content, "sparse"),), *links)


def outputs_of(command: Sequence[str]) -> tuple[str, ...]:
    """What a command line names to be written."""
    options = ("--json", "--python", "--html", "--trace", "--output", "--plots")
    return tuple(value for option, value in itertools.pairwise(command) if option in options and value)


def _json(content: bytes) -> Contents:
    return st.one_of(*[broken_json(content)] * 4, broken_bytes(content))


def _lines(content: bytes) -> Contents:
    return broken_lines(content) | broken_bytes(content)


def _packed(content: bytes) -> Contents:
    inside = Content(gzip.decompress(content))
    packed = broken_json(inside).map(_gzip) | broken_bytes(inside).map(_gzip)
    return st.one_of(packed, packed, broken_bytes(content), st.builds(_bomb))


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, 1, mtime=0)


@functools.cache
def _bomb() -> bytes:
    """A little that unfolds to a quarter of a gibibyte."""
    return _gzip(b" " * 2**28)


@st.composite
def _history(draw: st.DrawFn, content: bytes) -> bytes:
    """A history with a value, a table or a number of its version that is another."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "history"
        path.write_bytes(content)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            if draw(st.integers(0, 3)):
                _break_row(draw, connection)
            else:
                connection.execute(draw(st.sampled_from(_STATEMENTS)))
        return path.read_bytes()


_STATEMENTS = (
    "DROP TABLE runs", "DELETE FROM runs", "ALTER TABLE runs RENAME COLUMN plan TO plans",
    "ALTER TABLE runs ADD COLUMN more TEXT", "ALTER TABLE runs DROP COLUMN stages", "PRAGMA user_version = 3",
    "PRAGMA user_version = -1", "PRAGMA user_version = 1", "PRAGMA application_id = 1", "CREATE TABLE more (a INT)",
    "CREATE TRIGGER t BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'no'); END",
)  # fmt: skip


def _break_row(draw: st.DrawFn, connection: sqlite3.Connection) -> None:
    names = [row[1] for row in connection.execute("PRAGMA table_info(runs)")]
    name = draw(st.sampled_from(names))
    (before,) = connection.execute(f"SELECT {name} FROM runs LIMIT 1").fetchone()
    if isinstance(before, str) and before.startswith(("{", "[")) and draw(st.booleans()):
        text = draw(_json(before.encode()))
        value: Any = text.decode("utf-8", "replace") if draw(st.booleans()) else text
    else:
        fitting = [one for one in NUMBERS if not isinstance(one, int) or abs(one) < 2**63]
        texts = [one.encode("utf-8", "replace").decode() for one in NAMES]
        value = draw(st.sampled_from((*fitting, *texts, b"\x00\xff")))
    with contextlib.suppress(sqlite3.IntegrityError):
        connection.execute(f"UPDATE runs SET {name} = ?", (value,))


@st.composite
def _arrays(draw: st.DrawFn, content: bytes) -> bytes:
    """The arrays of a state with one that is another, is gone, or claims to be larger than any memory."""
    if draw(st.booleans()):
        return draw(broken_bytes(content))
    with np.load(io.BytesIO(content)) as opened:
        arrays: dict[str, Any] = dict(opened.items())
    name = draw(st.sampled_from(sorted(arrays)))
    others = (None, np.ones((2, 2), np.float32), np.float64(1.0), np.ones(0), np.array(["x"]), _Evil.array())
    changed = draw(st.sampled_from(("claim", *others)))
    arrays.pop(name)
    if changed is not None and not isinstance(changed, str):
        arrays[draw(st.sampled_from((name, "other", "../up")))] = changed
    made = io.BytesIO()
    np.savez(made, **arrays)
    if isinstance(changed, str):
        import zipfile

        header = {"descr": "<f4", "fortran_order": False, "shape": (draw(st.sampled_from((2**36, 2**46, 2**63))),)}
        claim = io.BytesIO()
        np.lib.format.write_array_header_1_0(claim, header)
        with zipfile.ZipFile(made, "a") as archive:
            archive.writestr(f"{name}.npy", claim.getvalue())
    return made.getvalue()


@final
class _Evil:
    """Makes a file when it is unpickled by what trusts pickles."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch trapped",)

    @classmethod
    def array(cls) -> np.ndarray[Any, Any]:
        """An array that holds one."""
        return np.array([cls()], dtype=object)


@st.composite
def _pickled(draw: st.DrawFn, content: bytes) -> bytes:
    """A profiling database with another attribute, or another pickle."""
    way = draw(st.sampled_from(("bytes", "attribute", "attribute", "other")))
    if way == "bytes":
        return draw(broken_bytes(content))
    value = draw(st.sampled_from((*NAMES, *NUMBERS, *OTHERS, _Evil(), _Evil.array(), np.ones(3), ({}, []))))
    if way == "other":
        return pickle.dumps(draw(st.sampled_from((value, {"default": value}, {("default", (1, 4)): value}))))
    names = ("all_reduce_cost_dict", "dot_cost_dict", "available_memory_per_device", "more")
    rows = [value, {("x",): value}, {(((0, 1),), "f32"): value}, {(((0, 1),), "f32"): [(value, 1e-3), (4, value)]}]
    # What cannot be a key isn't drawn as one: Python would refuse it here, not there.
    return alpa_pickle(**{draw(st.sampled_from(names)): draw(st.sampled_from(rows))})


@st.composite
def _any_encoding(draw: st.DrawFn, content: bytes) -> bytes:
    """The right text in another encoding, or with what JSON's writer wouldn't write but its readers take."""
    text = json.dumps(json.loads(content), indent=draw(st.sampled_from((None, 8))))
    text = draw(st.sampled_from((text, text.replace("\n", "\r\n"), "\t" + text, text + "\n" * 1000)))
    return text.encode(draw(st.sampled_from(ENCODINGS)))


def _text(content: bytes) -> Contents:
    return st.one_of(*[_json(content)] * 8, _any_encoding(content))


FORMATS: tuple[Format, ...] = (
    Format("plan", "plan.json", _text, _PLAN_READERS),
    Format("kept", "plan.*kept*", _packed, (("explain", "plan.json"), _LOST)),
    Format(
        "cluster", "cluster.json", _text,
        (_ON_CLUSTER, ("estimate", "plan.json", "--model", MODEL, "--cluster", "cluster.json"),
         ("replan", "plan.json", "--cluster", "cluster.json")),
    ),
    Format(
        "machine", "machine.json", _text,
        (("plan", *PLANNED, "--cluster", "machine.json", "--hosts", "2", "--json", "new.json"),
         ("replan", "plan.json", "--cluster", "machine.json", "--hosts", "2")),
    ),
    Format(
        "measured calibration", "measured.json", _text,
        (("calibration", "show", "measured.json"), (*_ON_MACHINE, "--calibration", "measured.json")),
    ),
    Format(
        "fitted calibration", "fitted.json", _text,
        (("calibration", "show", "fitted.json"), (*_ON_MACHINE, "--calibration", "fitted.json")),
    ),
    Format(
        "measurements", "*.measurements.jsonl", _lines,
        (("calibration", "show", "measured.json", "--plots", "plots"),),
    ),
    Format(
        "database", "database.json", _text,
        (("calibration", "show", "database.json"), ("calibration", "show", "database.json", "--plots", "plots")),
    ),
    Format(
        "pickle", "database.pkl", _pickled, (("calibration", "convert", "database.pkl", "--output", "new.json"),)
    ),
    Format(
        "history", "history.sqlite", lambda content: st.one_of(*[_history(content)] * 4, broken_bytes(content)),
        (("history", "--history", "history.sqlite"), ("history", "--history", "history.sqlite", "--json"),
         (*_ON_MACHINE, "--history", "history.sqlite")),
    ),
    Format("result", "result.json", _text, (("result", "result.json"),), reader=True),
    Format("state", "result.*.npz", _arrays, (("result", "result.json"),), reader=True),
    Format(
        "model cache", "cache/*", _packed, (_ON_MACHINE, ("estimate", "plan.json", "--model", MODEL)),
        (("ALPA_DEJAVU_CACHE", "cache"),), changed=("cache/",),
    ),
)  # fmt: skip
