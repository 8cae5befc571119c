"""A folder of measurements, laid out as ../shared/data: tables and JSON, and errors that name what can't be read."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

_log = logging.getLogger(__name__)


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
        self, name: str, text: Sequence[str], numbers: Sequence[str], optional: Sequence[str] = ()
    ) -> pd.DataFrame:
        """The rows of a CSV file, or of all files that match a pattern (`collectives*.csv`).

        Args:
            name: relative to the folder.
            text: columns that must be there, of any text.
            numbers: columns that must be there; every number is finite, or empty (NaN).
            optional: columns of numbers that may be missing, and are NaN then.

        Raises:
            AbsentError: there is no such file.
            UnreadableError: it is no table, lacks a column, or has text where a number should be.
        """
        return pd.concat([_table(path, text, numbers, optional) for path in self._paths(name)], ignore_index=True)

    def document(self, name: str) -> Any:
        """What a JSON file holds.

        Raises:
            AbsentError: there is no such file.
            UnreadableError: it is no JSON.
        """
        (path,) = self._paths(name)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
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
            "%s: %d rows have no positive time (row %d: %s) and are left out", origin, wrong.sum(), first, what
        )
    return rows[~wrong & np.isfinite(values).all(axis=1)].reset_index(drop=True)


def _table(path: Path, text: Sequence[str], numbers: Sequence[str], optional: Sequence[str]) -> pd.DataFrame:
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path}: is no table ({error}); convert it again from its origin") from error
    missing = [column for column in (*text, *numbers) if column not in rows]
    if missing:
        raise UnreadableError(f"{path}: lacks the columns {missing}, has {list(rows)}; see the folder's README.md")
    for column in (*numbers, *(name for name in optional if name in rows)):
        rows[column] = _numbers(path, column, rows[column])
    for column in optional:
        if column not in rows:
            rows[column] = np.nan
    return rows


def _numbers(path: Path, column: str, texts: pd.Series) -> pd.Series:
    empty = texts.str.strip() == ""
    values = pd.to_numeric(texts.where(~empty), errors="coerce").astype(float)
    wrong = ~empty & ~np.isfinite(values)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise UnreadableError(
            f"{path}: line {row + 2}: {column} is {texts.iloc[row]!r}, but must be a finite number; mend or remove it"
        )
    return values
