"""Past runs in one SQLite file, which several programs may append to, and any of them be killed meanwhile.

The rollback journal does both, on network file systems too, where a write-ahead log doesn't; it is beside the file
during a transaction alone. Each run is one transaction. A file that isn't a history is left as it is.

References:
    SQLite, "Atomic Commit In SQLite" and "Write-Ahead Logging" (its disadvantages).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, final

from alpa_dejavu._util import units
from alpa_dejavu._util.dataclass_format import data_of, keys_of, object_of, typed_dict_of
from alpa_dejavu._util.file_size import VARIABLE, most_bytes
from alpa_dejavu._util.format_fields import stated
from alpa_dejavu._util.json_file import check_folder
from alpa_dejavu._util.json_text import strict_json
from alpa_dejavu.calibration.history.past_run import UNKNOWN, PastRun
from alpa_dejavu.plans.plan_file import plan_format

VERSION = 2
"""Version 1 has no calibrations: it is read as it is, and becomes version 2 with the next run that is appended."""
_APPLICATION = 0x616C7061
_BUSY_S = 30.0
_MOST_MIB = 256.0
_STEPS, _STEPS_EACH = 1_000_000, 10_000
"""So many steps of SQLite's machine a history may take besides one for each byte (a run takes a tenth of that), counted
by so many: a file may hold views and triggers that never end.
"""
_ANOTHER = "move it away, or give another file by --history or ALPA_DEJAVU_HISTORY"
_TABLE = """CREATE TABLE runs (
    id INTEGER PRIMARY KEY, batch INTEGER, when_s REAL NOT NULL, model TEXT NOT NULL, model_fingerprint TEXT NOT NULL,
    cluster TEXT NOT NULL, cluster_fingerprint TEXT NOT NULL, devices TEXT NOT NULL, predictor TEXT NOT NULL,
    num_micro_batches INTEGER NOT NULL, schedule TEXT NOT NULL, plan TEXT NOT NULL, predicted_s REAL NOT NULL,
    measured_s REAL NOT NULL, num_steps INTEGER NOT NULL, steps_s TEXT NOT NULL, stages TEXT NOT NULL,
    versions TEXT NOT NULL, calibration TEXT NOT NULL
)"""
"""The batch may be empty, where only Alpa knows it. What the plan says is there again for SQL."""


@functools.cache
def _row_format() -> Any:
    """Returns the `TypedDict` of a row, once the JSON in its columns is read; columns for SQL alone aren't in it."""
    return typed_dict_of(PastRun, plan=Annotated[plan_format(), stated("an object: a plan")])


@final
class Store:
    """A history of past runs in an SQLite file, made by the first run. ValueError for a broken file, another version's
    or program's, one locked for over half a minute, or that can't be opened; it says what to do.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)

    def append(self, run: PastRun) -> int:
        """Adds a run to the history file, whole or not at all; returns how many runs it has then."""
        row = _row(run)
        if self.path == default_path():
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.writing() as connection:
            names = ", ".join(row)
            places = ", ".join("?" for _ in row)
            connection.execute(f"INSERT INTO runs ({names}) VALUES ({places})", list(row.values()))
            (count,) = connection.execute("SELECT count(*) FROM runs").fetchone()
        return int(count)

    def runs(self) -> tuple[PastRun, ...]:
        """Returns all runs in the order in which they were appended; none where there is no file yet."""
        try:
            self.path.stat()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ValueError(f"the history {self.path} can't be used: {error.strerror}; {_ANOTHER}") from error
        with self._opened("rw") as connection:
            connection.execute("BEGIN")
            version = self._version(connection)
            if version is None:
                return ()
            names = ["id", *(name for name in keys_of(PastRun) if version > 1 or name != "calibration")]
            rows = connection.execute(f"SELECT {', '.join(names)} FROM runs ORDER BY id").fetchall()
        return tuple(self._run({"calibration": UNKNOWN, **dict(zip(names, row, strict=True))}) for row in rows)

    def check(self) -> None:
        """Raises ValueError if runs can't be appended to the history file, without changing it."""
        self.runs()
        if self.path != default_path():
            check_folder(self.path)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yields a connection in a transaction, which other programs wait for, and which an error undoes."""
        check_folder(self.path)
        with self._opened("rwc") as connection:
            connection.execute("BEGIN IMMEDIATE")
            version = self._version(connection)
            if version is None:
                connection.execute(_TABLE)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            elif version == 1:
                connection.execute(f"ALTER TABLE runs ADD COLUMN calibration TEXT NOT NULL DEFAULT '{UNKNOWN}'")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            yield connection
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def _opened(self, mode: str) -> Iterator[sqlite3.Connection]:
        address = f"{self.path.absolute().as_uri()}?mode={mode}"
        try:
            # Closing undoes a transaction that wasn't committed.
            opened = sqlite3.connect(address, uri=True, timeout=_BUSY_S, isolation_level=None)
            with contextlib.closing(opened) as connection:
                self._bound(connection)
                yield connection
        except sqlite3.OperationalError as error:
            if str(error) == "interrupted":
                raise ValueError(f"{self.path} is no history: it takes without an end; {_ANOTHER}") from None
            wait = "wait for the program that has it" if "locked" in str(error) else "see to its folder and disk"
            raise ValueError(f"the history {self.path} can't be used: {error}; {wait}, or {_ANOTHER}") from error
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.path} is no history, or a broken one: {error}; {_ANOTHER}") from error

    def _bound(self, connection: sqlite3.Connection) -> None:
        """Has SQLite give up what takes much longer than a history of the file's size, or makes more than it holds."""
        size, most = self.path.stat().st_size, most_bytes(_MOST_MIB)
        if size > most:
            fault = f"{self.path} is larger than {units.size(most)}, which is more than is read"
            raise ValueError(f"{fault}; set {VARIABLE} to more, if it is meant, or {_ANOTHER}")
        left = iter(range((_STEPS + size) // _STEPS_EACH))
        connection.set_progress_handler(lambda: int(next(left, None) is None), _STEPS_EACH)
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, int(min(most, 2**30)))

    def _version(self, connection: sqlite3.Connection) -> int | None:
        """Returns the version of the history that is in the file, with or without runs; None for an empty file."""
        application, version, tables = (
            int(connection.execute(query).fetchone()[0])
            for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if (application, version, tables) == (0, 0, 0):
            return None
        if application != _APPLICATION:
            raise ValueError(f"{self.path} is another program's database, not a history; {_ANOTHER}")
        if version not in (1, VERSION):
            raise ValueError(f"{self.path} is a history in version {version}; this release has {VERSION}; {_ANOTHER}")
        for (kind,) in connection.execute("SELECT type FROM sqlite_master WHERE name = 'runs' AND type != 'table'"):
            raise ValueError(f"{self.path} is no history: its runs are a {kind}, but must be a table; {_ANOTHER}")
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise ValueError(f"{self.path} is broken: {verdict}; {_ANOTHER}")
        return version

    def _run(self, row: Mapping[str, Any]) -> PastRun:
        try:
            return _past_run({name: value for name, value in row.items() if name != "id"})
        except ValueError as error:
            fault = f"{self.path}: run {row['id']} can't be read: {error}"
            raise ValueError(f"{fault}; delete that row of its table runs, or {_ANOTHER}") from error


def _past_run(row: dict[str, Any]) -> PastRun:
    from alpa_dejavu._util.format_check import checked

    for name in ("plan", "steps_s", "stages", "versions"):
        if isinstance(row[name], str):
            row[name] = strict_json(row[name])
    return object_of(PastRun, checked(row, _row_format()))


def _row(run: PastRun) -> dict[str, Any]:
    row, plan = data_of(run), run.plan
    row |= {name: json.dumps(value, allow_nan=False) for name, value in row.items() if isinstance(value, (dict, list))}
    return row | {
        "model": plan.model,
        "cluster": plan.cluster,
        "batch": plan.batch,
        "num_micro_batches": plan.num_micro_batches,
        "schedule": plan.schedule,
        "measured_s": run.measured_s,
        "num_steps": len(run.steps_s),
    }


HISTORY_ENV = "ALPA_DEJAVU_HISTORY"


def default_path() -> pathlib.Path:
    """Returns the default path of the history, in the user's data directory by the XDG specification, version 0.8."""
    data_home = os.environ.get("XDG_DATA_HOME", "")
    # By the specification a relative directory is to be ignored.
    data = pathlib.Path(data_home) if os.path.isabs(data_home) else pathlib.Path.home() / ".local" / "share"
    return data / "alpa-dejavu" / "history.sqlite"


def history_path(chosen: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Returns the path of the history: the given one, else the environment's ALPA_DEJAVU_HISTORY, else the default."""
    named = chosen or os.environ.get(HISTORY_ENV)
    return pathlib.Path(named) if named else default_path()
