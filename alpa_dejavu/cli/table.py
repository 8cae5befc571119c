"""Tables on the terminal: what doesn't fit its width is left out in a stated order, or with `--wide` stands below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import click
from rich.console import Console, ConsoleOptions
from rich.text import Text

from alpa_dejavu._util.columns import Block, Head, all_blocks, drawn, fitting_block, importance, wrapped
from alpa_dejavu.cli.output import printable

_WIDE = f"{__name__}.wide"


@final
class Table:
    """A table for a terminal of any width, in which no figure is cut. Where there isn't room for all, columns named in
    `leave` are left out first, then texts and figures, from right to left; the first column always stands.
    """

    def __init__(self, heads: Sequence[Head], leave: Sequence[str] = ()) -> None:
        self.heads, self.leave = tuple(heads), tuple(leave)
        self.rows: list[tuple[str, ...]] = []

    @property
    def row_count(self) -> int:
        """Returns how many rows the table has."""
        return len(self.rows)

    def add_row(self, *cells: str) -> None:
        """Appends a row; cells that aren't given are empty."""
        if len(cells) > len(self.heads):
            raise ValueError(f"a row has {len(cells)} cells, but must have at most {len(self.heads)}; add a column")
        self.rows.append((*map(printable, cells), *[""] * (len(self.heads) - len(cells))))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yields the lines of the table, and one that names what was left out; rich calls this."""
        if is_wide():
            blocks = all_blocks(self.heads, self.rows, options.max_width)
        else:
            order = importance(self.heads, self.leave)
            blocks = [fitting_block(self.heads, self.rows, options.max_width, order)]
        for n, block in enumerate(blocks):
            if n:
                yield Text("")
            yield from self._lines(block)
        stand = {n for block in blocks for n in block.columns}
        left_out = [head.name for n, head in enumerate(self.heads) if n not in stand]
        if left_out:
            line_below = f"left out: {', '.join(left_out)} (--wide shows all)"
            yield from (Text(line, style="dim") for line in wrapped(line_below, options.max_width))

    def _lines(self, block: Block) -> Iterator[Text]:
        heads, rows = drawn(self.heads, self.rows, block)
        # Lines are as wide as they must be, even where that is wider than the terminal: nothing is cut.
        yield from (Text(line, style="bold", no_wrap=True, overflow="ignore") for line in heads)
        yield from (Text(line, no_wrap=True, overflow="ignore") for line in rows)


def new_table(left: Sequence[str], right: Sequence[str], wide: Sequence[str] = (), leave: Sequence[str] = ()) -> Table:
    """Returns an empty table of columns of names, figures and long texts; those named in `leave` are left out first."""
    heads = *(Head(name, "name") for name in left), *map(Head, right), *(Head(name, "text") for name in wide)
    return Table(heads, leave)


def is_wide() -> bool:
    """Returns whether the command that is running was given `--wide`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_WIDE, False))


def with_wide(command: click.Command) -> click.Command:
    """Adds the option `--wide` to a command, or to all of a group of commands, and returns it."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_wide(inner)
    elif all("--wide" not in parameter.opts for parameter in command.params):
        command.params.append(
            click.Option(
                ["--wide"], is_flag=True, expose_value=False,
                callback=lambda context, _, value: context.meta.update({_WIDE: value}),
                help="Show all columns and rows of tables.",
            )
        )  # fmt: skip
    return command
