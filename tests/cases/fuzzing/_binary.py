"""Broken files that are no text: compressed JSON, histories, states and pickles."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import os
import pathlib
import pickle
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any, final

import numpy as np
from hypothesis import strategies as st

from fuzzing._breaks import NAMES, NUMBERS, OTHERS, Contents, broken_bytes, broken_json, broken_text
from fuzzing._right import Content, alpa_pickle


def broken_gzip(content: bytes) -> Contents:
    """Compressed JSON that is broken inside or out, or unfolds to more than anybody has."""
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
def broken_history(draw: st.DrawFn, content: bytes) -> bytes:
    """A history with a value, a table or a number of its version that is another."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "history"
        path.write_bytes(content)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            if draw(st.integers(0, 3)):
                _break_row(draw, connection)
            else:
                connection.executescript(draw(st.sampled_from(_STATEMENTS)))
        return path.read_bytes()


_STATEMENTS = (
    "DROP TABLE runs", "DELETE FROM runs", "ALTER TABLE runs RENAME COLUMN plan TO plans",
    "ALTER TABLE runs ADD COLUMN more TEXT", "ALTER TABLE runs DROP COLUMN stages", "PRAGMA user_version = 3",
    "PRAGMA user_version = -1", "PRAGMA user_version = 1", "PRAGMA application_id = 1", "CREATE TABLE more (a INT)",
    "DROP TABLE runs; CREATE VIEW runs AS WITH RECURSIVE c(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM c) "
    "SELECT id FROM c",
    "CREATE TRIGGER t BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'no'); END",
)  # fmt: skip


def _break_row(draw: st.DrawFn, connection: sqlite3.Connection) -> None:
    names = [row[1] for row in connection.execute("PRAGMA table_info(runs)")]
    name = draw(st.sampled_from(names))
    (before,) = connection.execute(f"SELECT {name} FROM runs LIMIT 1").fetchone()
    if isinstance(before, str) and before.startswith(("{", "[")) and draw(st.booleans()):
        text = draw(broken_text(before.encode()))
        value: Any = text.decode("utf-8", "replace") if draw(st.booleans()) else text
    else:
        fitting = [one for one in NUMBERS if not isinstance(one, int) or abs(one) < 2**63]
        texts = [one.encode("utf-8", "replace").decode() for one in NAMES]
        value = draw(st.sampled_from((*fitting, *texts, b"\x00\xff")))
    with contextlib.suppress(sqlite3.IntegrityError):
        connection.execute(f"UPDATE runs SET {name} = ?", (value,))


@st.composite
def broken_arrays(draw: st.DrawFn, content: bytes) -> bytes:
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


_DOUBLED = b")q\x000" + 40 * b"h\x00h\x00\x86q\x000" + b"h\x00"
_ENDLESS = (
    b"\x80\x02K\x01r\xff\xff\xff\x0f.", b"\x80\x02}" + _DOUBLED + b"Ns.", b"\x80\x02}K\x01" + _DOUBLED + b"s.",
    b"\x80\x02})" + 10**5 * b"\x85" + b"Ns.",
)
"""A number far up in the memory of what was met, and tuples that hold the one before them twice, or very deep."""


@st.composite
def broken_pickle(draw: st.DrawFn, content: bytes) -> bytes:
    """A profiling database with another attribute, or another pickle."""
    way = draw(st.sampled_from(("bytes", "attribute", "attribute", "other", "endless")))
    if way == "endless":
        return draw(st.sampled_from(_ENDLESS))
    if way == "bytes":
        return draw(broken_bytes(content))
    value = draw(st.sampled_from((*NAMES, *NUMBERS, *OTHERS, _Evil(), _Evil.array(), np.ones(3), ({}, []))))
    if way == "other":
        return pickle.dumps(draw(st.sampled_from((value, {"default": value}, {("default", (1, 4)): value}))))
    names = ("all_reduce_cost_dict", "dot_cost_dict", "available_memory_per_device", "more")
    rows = [value, {("x",): value}, {(((0, 1),), "f32"): value}, {(((0, 1),), "f32"): [(value, 1e-3), (4, value)]}]
    # What cannot be a key isn't drawn as one: Python would refuse it here, not there.
    return alpa_pickle(**{draw(st.sampled_from(names)): draw(st.sampled_from(rows))})
