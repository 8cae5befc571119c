"""The table of all patches in README.md, written from the patches themselves.

`python -m alpa_stock_jax._table README.md` puts the table of today's patches into a file, between its two marks.
"""

from __future__ import annotations

import pathlib
import sys

from alpa_stock_jax._patch import Patch
from alpa_stock_jax._registry import patches

__all__ = ["replace_table", "table"]

_SHOWN = 4
_BEGIN, _END = "<!-- patches: begin -->", "<!-- patches: end -->"


def table() -> str:
    """A Markdown table with a row for each patch, in the order in which they are applied."""
    rows = [_row(patch) for patch in patches()]
    return "\n".join(["| changes | what and why | file | guard |", "|---|---|---|---|", *rows])


def replace_table(text: str) -> str:
    """The text with the table of today between its marks; ValueError if it has no marks."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the text has no lines '{_BEGIN}' and '{_END}' to put the table between")
    return f"{before}{begin}\n{table()}\n{end}{after}"


def _row(patch: Patch) -> str:
    return f"| `{patch.module}` | {patch.reason} | `{_room(patch)}` | {_guard(patch)} |"


def _room(patch: Patch) -> str:
    return f"{patch.room.rpartition('.')[2]}.py"


def _guard(patch: Patch) -> str:
    """What must be there; `(…)` where the names of the parameters are checked, too."""
    there = [f"`{path}`" if names is None else f"`{path}(…)`" for path, names in patch.expects.items()]
    names = list(dict.fromkeys([*there, *(f"`{name}`" for name in patch.uses)]))
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join(names[:_SHOWN] + more) or "the module"


if __name__ == "__main__":
    readme = pathlib.Path(sys.argv[1])
    readme.write_text(replace_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
