"""Rows of a CSV file with known columns; an error names the file, the line, the column and the remedy."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from alpa_dejavu._util.csv_file import csv_lines
from alpa_dejavu._util.near_names import near

__all__ = ["HOST_COLUMNS", "JOB_COLUMNS", "Cells", "read_rows"]

JOB_COLUMNS = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem",
               "plan_gpu", "gpu_type")  # fmt: skip
HOST_COLUMNS = ("machine_id", "time_stamp", "failure_domain_1", "failure_domain_2", "cpu_num", "mem_size", "status")


@final
@dataclasses.dataclass(frozen=True)
class Cells:
    """The cells of a line by their columns.

    Attributes:
        where: the file and the line.
        cells: the texts.
        remedy: ends errors.
    """

    where: str
    cells: Mapping[str, str]
    remedy: str

    def text(self, column: str) -> str:
        """Returns the text of a column, which must not be empty."""
        found = self.cells[column]
        if not found:
            raise self.wrong(column, "but must not be empty")
        return found

    def one_of(self, column: str, known: Sequence[str]) -> str:
        """Returns the text of a column, which must be one of some words."""
        found = self.text(column)
        if found not in known:
            raise self.wrong(column, f"but must be one of {', '.join(known)}{near(found, known)}")
        return found

    def number(self, column: str, empty: float | None = None, least: float = 0.0) -> float:
        """Returns the number of a column, which must be finite and not below the least one.

        Args:
            column: the column.
            empty: stands for no text; None: there must be some.
            least: the least number.
        """
        if empty is not None and not self.cells[column]:
            return empty
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            raise self.wrong(column, f"but must be a finite number of at least {least:g}")
        return value

    def wrong(self, column: str, must: str) -> ValueError:
        """Returns the error of a cell."""
        return ValueError(f"{self.where}: {column} is {self.cells[column]!r}, {must}; {self.remedy}")


def read_rows(path: pathlib.Path, columns: Sequence[str]) -> Iterator[Cells]:
    """Yields the lines of a CSV file, in their order, as cells by columns; a first line with their names is passed
    over.

    Raises:
        ValueError: the file can't be read, or a line has another number of cells than there are columns.
    """
    remedy = f"a line has {', '.join(columns)}, separated by commas: mend the line, or leave it out"
    for line, cells in csv_lines(path, remedy):
        texts = [cell.strip() for cell in cells]
        if not any(texts) or (line == 1 and texts == list(columns)):
            continue
        where = f"{path}, line {line}"
        if len(texts) != len(columns):
            raise ValueError(f"{where}: it has {len(texts)} cells, but must have {len(columns)}; {remedy}")
        yield Cells(where, dict(zip(columns, texts, strict=True)), remedy)
