"""CSV files of users: cells by lines; an error names the file, the line and the remedy."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Iterator

from alpa_dejavu._util.json_file import read_text

__all__ = ["csv_lines"]


def csv_lines(path: pathlib.Path, remedy: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the lines of a CSV file, each with its number, from 1, and its cells; `remedy` ends errors.

    Raises:
        ValueError: the file can't be read, or is no CSV, as where a cell has more than 131,072 characters.
    """
    lines = csv.reader(read_text(path, remedy).splitlines())
    try:
        for cells in lines:
            yield lines.line_num, cells
    except csv.Error as error:
        raise ValueError(f"{path}, line {max(lines.line_num, 1)}: it is no CSV ({error}); {remedy}") from None
