"""A folder of measurements, laid out as ../shared/data: tables and JSON, and errors that name what can't be read."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from alpa_dejavu._util.json_text import strict_json

_log = logging.getLogger(__name__)
_FILES = "files"
"""A table's attribute: the names of its files, and how many rows are from each."""
_UNITS = ("ns", "us", "ms", "s", "min", "hours", "h", "kb", "mb", "gb", "kib", "mib", "gib", "bytes", "bits")


class UnreadableError(ValueError):
    """A file is there, but not what it should be."""


class AbsentError(FileNotFoundError):
    """A file isn't there: in a folder to test on that is no error, in one to fit on it is."""


@final
@dataclasses.dataclass(frozen=True)
class Folder:
    """Where measurements are."""

    path: Path

    def table(
        self,
        name: str,
        text: Sequence[str],
        numbers: Sequence[str],
        optional: Sequence[str] = (),
        counts: Sequence[str] = (),
    ) -> pd.DataFrame:
        """The rows of a CSV file, or of all files that match a pattern (`collectives*.csv`).

        Args:
            name: relative to the folder.
            text: columns that must be there, of any text but none.
            numbers: columns that must be there; every number is finite, or empty (NaN).
            optional: columns of numbers that may be missing, and are NaN then.
            counts: those of `numbers` that are at least 1, and never empty.

        Raises:
            AbsentError: there is no such file.
            UnreadableError: it is no table, lacks a column, or has something else in a row than what is asked for.
        """
        paths = self._paths(name)
        tables = [_table(path, text, numbers, optional, counts) for path in paths]
        rows = pd.concat(tables, ignore_index=True)
        rows.attrs[_FILES] = tuple((path.name, len(table)) for path, table in zip(paths, tables, strict=True))
        _warn_of_repeats(rows)
        return rows

    def document(self, name: str) -> Any:
        """The content of a JSON file; numbers that aren't finite stay, for whoever knows which of them is to be named.

        Raises:
            AbsentError: there is no such file.
            UnreadableError: it is no JSON, or has a key twice in an object.
        """
        (path,) = self._paths(name)
        try:
            return strict_json(path.read_text(encoding="utf-8"), finite=False)
        except (OSError, ValueError) as error:
            raise UnreadableError(f"{path}: is no JSON ({error}); convert it again from its origin") from error

    def _paths(self, name: str) -> list[Path]:
        found = sorted(self.path.glob(name))
        if not found:
            raise AbsentError(f"{self.path / name}: there is no such file; it belongs beside the other measurements")
        return found


def measured(rows: pd.DataFrame, columns: Sequence[str], origin: str) -> pd.DataFrame:
    """The rows in which all these columns were measured; times of zero or below are named and left out."""
    values = rows[list(columns)].to_numpy(float)
    wrong = (values <= 0).any(axis=1)
    if wrong.any():
        first = rows.index[wrong][0]
        what = rows.loc[first, list(columns)].to_dict()
        _log.warning(
            "%s: %d rows have no positive time (%s: %s) and are left out; measure them again, or remove them",
            origin, wrong.sum(), place(rows, first), what,
        )  # fmt: skip
    return rows[~wrong & np.isfinite(values).all(axis=1)].reset_index(drop=True)


def place(rows: pd.DataFrame, index: int) -> str:
    """Where a row of a table is from, by its index there: its file and line; only its number where that isn't known."""
    first = 0
    for name, count in rows.attrs.get(_FILES, ()):
        if index < first + count:
            return f"{name}, line {index - first + 2}"
        first += count
    return f"row {index}"


def _warn_of_repeats(rows: pd.DataFrame) -> None:
    """A line that is there again is no second measurement: two are never equal in all digits of all columns."""
    again = rows.duplicated().to_numpy()
    if again.any():
        later = int(again.argmax())
        earlier = int((rows.astype(str) == rows.iloc[later].astype(str)).all(axis=1).to_numpy().argmax())
        _log.warning(
            "%s: the same as %s (%d such lines); each counts as a measurement of its own: remove what was copied",
            place(rows, later), place(rows, earlier), again.sum(),
        )  # fmt: skip


def _table(
    path: Path, text: Sequence[str], numbers: Sequence[str], optional: Sequence[str], counts: Sequence[str]
) -> pd.DataFrame:
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise UnreadableError(f"{path}: is no table ({why}); convert it again from its origin") from error
    missing = [column for column in (*text, *numbers) if column not in rows]
    if missing:
        other = [hint for column in missing for hint in _in_another_unit(column, list(rows))]
        said = f"; {', '.join(other)}" if other else ""
        known = f"lacks the columns {missing}, has {list(rows)}{said}"
        raise UnreadableError(f"{path}: {known}; see the folder's README.md")
    for column in text:
        wrong = rows[column].isna() | (rows[column].astype(str).str.strip() == "")
        _refuse(path, column, rows[column], wrong, "must not be empty")
    for column in (*numbers, *(name for name in optional if name in rows)):
        rows[column] = _numbers(path, column, rows[column], column in counts)
    for column in optional:
        if column not in rows:
            rows[column] = np.nan
    return rows


def _numbers(path: Path, column: str, texts: pd.Series, is_count: bool) -> pd.Series:
    empty = texts.str.strip() == ""
    values = pd.to_numeric(texts.where(~empty), errors="coerce").astype(float)
    if is_count:
        _refuse(path, column, texts, ~(np.isfinite(values) & (values >= 1)), "must be a number of at least 1")
    _refuse(path, column, texts, ~empty & ~np.isfinite(values), "must be a finite number")
    return values


def _refuse(path: Path, column: str, texts: pd.Series, wrong: pd.Series, asked: str) -> None:
    """Names the first row where something is wrong."""
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise UnreadableError(
            f"{path}: line {row + 2}: {column} is {texts.iloc[row]!r}, but {asked}; mend or remove it"
        )


def _in_another_unit(column: str, there: Sequence[str]) -> list[str]:
    """Columns of the same name but for their unit."""
    name, _, unit = column.rpartition("_")
    if not name or unit not in _UNITS:
        return []
    parts = [(other, *other.rpartition("_")[::2]) for other in there]
    return [
        f"{other} is in another unit: convert it to {column}"
        for other, start, end in parts
        if start == name and end.lower() in _UNITS
    ]
