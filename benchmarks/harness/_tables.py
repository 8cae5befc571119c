"""Tables and figures with aims: for the terminal, for the JSON file, and as Markdown."""

from __future__ import annotations

import dataclasses
import string
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, final

import rich.table
from rich.console import Console
from rich.text import Text

from alpa_dejavu._util import units

Row = Mapping[str, Any]
_WIDTH = 200
"""Characters of a line where nobody looks at a terminal."""


@final
@dataclasses.dataclass(frozen=True)
class Table:
    """A table: headings, and the cells of each row; missing ones at the end of a row are empty."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    @classmethod
    def of(cls, rows: Iterable[Row], columns: Mapping[str, Any], title: str = "") -> Table:
        """A table of results, whose cells are format strings of a row's keys, or functions of a row.

        Format strings may say `:seconds` or `:size` of a quantity, which then has its unit.

        What a row doesn't know makes an empty cell. A row with an "error" has its first line in the first empty cell.

        >>> Table.of([{"a": 1, "b": {"c": 2.5}}, {"a": 3}], {"A": "{a}", "C": "{b[c]:seconds}"}).rows
        (('1', '2.5 s'), ('3', ''))
        """
        return cls(tuple(columns), tuple(_cells(row, columns.values()) for row in rows), title)

    def markdown(self, left_out: Collection[str] = (), width: int = 120) -> str:
        """The table as Markdown has it, its title in bold above it.

        Args:
            left_out: headings of columns that aren't wanted.
            width: characters of a line: a wider table becomes several, each of which begins with the first column, or
                a list where the first column doesn't tell the rows apart.
        """
        lines = [self.columns, *((*row, *[""] * (len(self.columns) - len(row))) for row in self.rows)]
        wanted = [n for n, name in enumerate(self.columns) if name not in left_out]
        columns = [[line[n].replace("|", "\\|") for line in lines] for n in wanted]
        parts = [[columns[0]]]
        for column in columns[1:]:
            if _width([*parts[-1], column]) > width and len(parts[-1]) > 1:
                parts.append([columns[0]])
            parts[-1].append(column)
        names = columns[0][1:]
        listed = len(parts) > 1 and len(set(names)) < len(names)
        text = _listed(columns, width) if listed else "\n\n".join(map(_drawn, parts))
        return f"**{self.title}**\n\n{text}" if self.title else text


@final
@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure beside its aim, both in words: what is measured, and whether it meets the aim."""

    of: str
    what: str
    aim: str
    measured: str
    held: bool


def figures_table(figures: Sequence[Figure]) -> Table:
    """A row for each figure, which says in the end whether it is held."""
    rows = [(one.of, one.what, one.aim, one.measured, "held" if one.held else "missed") for one in figures]
    held = sum(one.held for one in figures)
    return Table(("of", "on", "aim", "measured", ""), tuple(rows), f"{held} of {len(figures)} figures are held")


def show(*shown: Table | str) -> None:
    """Prints tables and lines."""
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, markup=False, highlight=False)
    for one in shown:
        if isinstance(one, str):
            console.print(one, soft_wrap=True)
            continue
        drawn = rich.table.Table(*one.columns, title=Text(one.title) if one.title else None)
        for row in one.rows:
            drawn.add_row(*map(Text, row))
        console.print(drawn)


@final
class _Quantities(string.Formatter):
    """Formats as strings do, and quantities with their units."""

    def format_field(self, value: Any, spec: str) -> str:
        return getattr(units, spec)(value) if spec in ("seconds", "size") else str(super().format_field(value, spec))


def _drawn(columns: Sequence[Sequence[str]]) -> str:
    head, *rows = (f"| {' | '.join(line)} |" for line in zip(*columns, strict=True))
    return "\n".join([head, f"|{' --- |' * len(columns)}", *rows])


def _listed(columns: Sequence[Sequence[str]], width: int) -> str:
    """An item for each row, with the headings of its cells but the first."""
    (_, *heads), *rows = zip(*columns, strict=True)
    items = []
    for first, *rest in rows:
        cells = [f"{head}: {cell}" if head else cell for head, cell in zip(heads, rest, strict=True) if cell]
        items.append(textwrap.fill(f"- {'; '.join([first, *cells])}", width, subsequent_indent="  "))
    return "\n".join(items)


def _width(columns: Sequence[Sequence[str]]) -> int:
    return max(map(len, _drawn(columns).splitlines()))


def _cells(row: Row, columns: Iterable[Any]) -> tuple[str, ...]:
    cells = [_cell(row, column) for column in columns]
    if "error" in row and "" in cells:
        cells[cells.index("")] = str(row["error"]).partition("\n")[0]
    return tuple(cells)


def _cell(row: Row, column: str | Callable[[Row], object]) -> str:
    try:
        found = _Quantities().vformat(column, (), row) if isinstance(column, str) else column(row)
    except (KeyError, TypeError):  # the row has no such key, or None there
        return ""
    return {"True": "yes", "False": "no", "None": ""}.get(str(found), str(found))
