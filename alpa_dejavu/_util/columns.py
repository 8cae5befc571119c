"""Tables of text that fit a width: which columns stand, how wide they are, and where cells are broken into lines.

Cells are broken between words, but not between a number and its unit, and no figure is cut: a column that doesn't fit
is left out, or stands in a block of its own below the others.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Literal, final

from rich.cells import cell_len, chop_cells

Kind = Literal["name", "figure", "text"]
Rows = Sequence[Sequence[str]]

_GAP = 2
_LEAST_TEXT = 24
"""A narrower column of names or texts is hard to read, unless its cells are that short."""
_UNIT = r"(?:[num]?s|hours|days|years|%|[KMGTPEZY]iB|bytes?|[kMGTPEZY]?(?:B|FLOP)(?:/s)?|USD|W|[a-z]+illion)(?!\w)"
_BREAK = re.compile(rf"(?<!\d) | (?!{_UNIT})")
_FIGURE_BREAK = re.compile(rf"(?<!±)(?:(?<!\d) | (?!{_UNIT}))(?!±)(?![^(]*\))")
"""In a figure, what is in brackets, such as an interval, isn't broken either, nor is a mean from its deviation."""


@final
@dataclasses.dataclass(frozen=True)
class Head:
    """The head of a column: its name, and whether its cells are names, figures, or text that may take many lines."""

    name: str
    kind: Kind = "figure"


@final
@dataclasses.dataclass(frozen=True)
class Block:
    """Columns that stand beside each other: their numbers in the table, and how wide each is."""

    columns: tuple[int, ...]
    widths: tuple[int, ...]


def importance(heads: Sequence[Head], leave: Sequence[str] = ()) -> list[int]:
    """Returns the numbers of columns in the order in which they are given room.

    The first column comes first, and those named in `leave` come last, the first of them at the end. In between come
    names, then figures, then text, each from left to right.

    >>> heads = [Head("stage", "name"), Head("compute"), Head("why", "text"), Head("memory")]
    >>> [heads[n].name for n in importance(heads, ["compute"])]
    ['stage', 'memory', 'why', 'compute']
    """
    kinds: tuple[Kind, ...] = ("name", "figure", "text")
    last = {name: place for place, name in enumerate(leave)}
    return sorted(
        range(len(heads)),
        key=lambda n: (n > 0, -last.get(heads[n].name, len(last)), kinds.index(heads[n].kind), n),
    )


def fitting_block(heads: Sequence[Head], rows: Rows, width: int, order: Sequence[int]) -> Block:
    """Returns the columns that fit a width: of `order`, each that there is still room for, the first two always."""
    least = _least_widths(heads, rows)
    chosen: list[int] = []
    for n in order:
        if len(chosen) < 2 or _total(least, [*chosen, n]) <= width:
            chosen.append(n)
    return _spread(heads, rows, sorted(chosen), least, width)


def all_blocks(heads: Sequence[Head], rows: Rows, width: int) -> list[Block]:
    """Returns blocks that together have all columns, each with the first column and with what fits beside it."""
    least = _least_widths(heads, rows)
    blocks = [[0]]
    for n in range(1, len(heads)):
        if len(blocks[-1]) > 1 and _total(least, [*blocks[-1], n]) > width:
            blocks.append([0])
        blocks[-1].append(n)
    return [_spread(heads, rows, block, least, width) for block in blocks]


def drawn(heads: Sequence[Head], rows: Rows, block: Block) -> tuple[list[str], list[str]]:
    r"""Returns the lines of the heads, and those of the rows, of a block of a table; figures are aligned right.

    >>> heads, rows = [Head("stage", "name"), Head("once a step")], [["0", "42.97 ms"], ["1-14", "37.24 ms"]]
    >>> for lines in drawn(heads, rows, fitting_block(heads, rows, 15, [0, 1])):
    ...     print("\n".join(lines))
    stage    once a
               step
    0      42.97 ms
    1-14   37.24 ms
    """
    names = [head.name for head in heads]
    return _lines(heads, [names], block, of_heads=True), _lines(heads, rows, block)


def wrapped(text: str, width: int, kind: Kind = "text") -> list[str]:
    """Returns the lines of a text that is broken between words; only a word that is longer than a line is cut in two.

    >>> wrapped("141.8 ms (120 to 160 ms)", 9), wrapped("141.8 ms (120 to 160 ms)", 15, "figure")
    (['141.8 ms', '(120 to', '160 ms)'], ['141.8 ms', '(120 to 160 ms)'])
    """
    lines, width = list[str](), max(width, 1)
    for word in _words(text, kind):
        first, *others = chop_cells(word, width) if cell_len(word) > width else [word]
        joined = f"{lines[-1]} {first}" if lines else first
        lines = [*lines[:-1], joined] if cell_len(joined) <= width else [*lines, first]
        lines += others
    return [line.rstrip() for line in lines]


def _words(text: str, kind: Kind) -> list[str]:
    return (_FIGURE_BREAK if kind == "figure" else _BREAK).split(text)


def _lines(heads: Sequence[Head], rows: Rows, block: Block, of_heads: bool = False) -> list[str]:
    is_figure = [heads[n].kind == "figure" for n in block.columns]
    kinds: list[Kind] = ["text" if of_heads else heads[n].kind for n in block.columns]
    columns = list(zip(block.columns, block.widths, kinds, strict=True))
    lines = []
    for row in rows:
        cells = [wrapped(row[n], width, kind) for n, width, kind in columns]
        for texts in itertools.zip_longest(*cells, fillvalue=""):
            padded = []
            for text, width, right in zip(texts, block.widths, is_figure, strict=True):
                blanks = " " * (width - cell_len(text))
                padded.append(blanks + text if right else text + blanks)
            lines.append((" " * _GAP).join(padded).rstrip())
    return lines


def _least_widths(heads: Sequence[Head], rows: Rows) -> list[int]:
    """The widths below which a column would have a word cut in two, or would be hard to read."""
    widths = []
    for n, head in enumerate(heads):
        cells = [row[n] for row in rows]
        legible = max(map(cell_len, _words(head.name, "text") if head.kind == "figure" else [head.name, *cells]))
        words = [] if head.kind == "text" else [cell_len(word) for text in cells for word in _words(text, head.kind)]
        widths.append(max(min(_LEAST_TEXT, legible), *words, 1))
    return widths


def _total(widths: Sequence[int], columns: Sequence[int]) -> int:
    return sum(widths[n] + _GAP for n in columns) - _GAP


def _spread(heads: Sequence[Head], rows: Rows, columns: Sequence[int], least: Sequence[int], width: int) -> Block:
    """Columns that have at least their least widths; what is left of the line goes to names and figures first."""
    widths = {n: least[n] for n in columns}
    spare = max(0, width - _total(least, columns))
    wants = {n: max(cell_len(text) for text in (heads[n].name, *(row[n] for row in rows))) - least[n] for n in columns}
    for of_text in (False, True):
        asking = sorted((n for n in columns if (heads[n].kind == "text") is of_text), key=wants.__getitem__)
        for place, n in enumerate(asking):
            more = min(wants[n], spare // (len(asking) - place))
            widths[n] += more
            spare -= more
    return Block(tuple(columns), tuple(widths[n] for n in columns))
