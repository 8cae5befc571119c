"""Writes what README.md and docs/ say of runs, from the JSON files that benchmarks left in docs/results.

    python benchmarks/page.py            # or `make pages`
    python benchmarks/page.py --check    # writes nothing, and ends with 1 where a page isn't current

What stands between a mark and the next `<!--end-->` is written anew, and the number before a mark of one figure:

    <!-- run kraken -->                                 the command of kraken.json, a link to it, and its date
    <!-- table kraken "the published cases" -->         ten rows of a table; a longer one is in a CSV file, too
    <!-- table kraken 2 without "fewer" rows "1.3B" --> the second table, without a column, of some rows
    10.5 s<!--=planning-->                              a figure that docs/results/figures.json declares

A row is named by its first cells, joined by a comma; `*` stands for anything. A figure is a cell of a table ("run",
"table", "row", "column"), or what a pattern ("find") matches in it or in all that the run says, or of several of them
the number ("count") or the median ("median"). It is written as the run wrote it, or as a format of its number ("as");
`"over": NAME` divides it by another figure.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import fnmatch
import functools
import io
import json
import os
import re
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import Table, wrong_input_told

ROOT = Path(__file__).resolve().parents[1]
MOST_ROWS = 10
"""Rows that a page shows of a table; all of them are in a CSV file beside the JSON file."""
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_MARK = re.compile(r"<!-- (run|table) (.*?) -->(.*?)<!--end-->", re.DOTALL)
_FIGURE = re.compile(r"(?:[-+]?\d[\d.,]*(?:\s+(?:%|s|ms|us|GiB|times))?)?<!--=(\S+?)-->")


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the pages, or looks whether they are current; returns 2 where a mark or a run can't be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where a page isn't current")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder that has README.md and docs/")
    given = parser.parse_args(arguments)
    results, wanted = given.root / "docs" / "results", dict[Path, str | None]()
    wanted |= dict.fromkeys(results.glob("*-[0-9].csv"))
    for page in [given.root / "README.md", *sorted((given.root / "docs").rglob("*.md"))]:
        wanted[page], sheets = filled(page.read_text(encoding="utf-8"), page.parent, results)
        wanted |= sheets
    stale = [file for file, text in wanted.items() if (file.read_text("utf-8") if file.exists() else None) != text]
    for file in stale:
        text = wanted[file]
        if not given.check:
            file.unlink() if text is None else file.write_text(text, encoding="utf-8")
        done = "is no longer shown" if text is None else "isn't what its runs say"
        print(f"{file.relative_to(given.root)} {done if given.check else 'is changed'}")
    return int(given.check and bool(stale))


def filled(text: str, folder: Path, results: Path) -> tuple[str, dict[Path, str]]:
    """A page in a folder with what its marks ask for, and the CSV files of the tables that it shows a part of."""
    rows: dict[Path, str] = {}

    def replaced(mark: re.Match[str]) -> str:
        kind, asked = mark[1], shlex.split(mark[2])
        file = results / f"{asked[0]}.json"
        link = Path(os.path.relpath(file, folder)).as_posix()
        lines = _command(_run(file), link) if kind == "run" else _table(file, link, asked[1:], rows)
        return f"<!-- {kind} {mark[2]} -->\n{lines}\n<!--end-->"

    return _MARK.sub(replaced, _FIGURE.sub(lambda mark: _current(mark, results), text)), rows


def _current(mark: re.Match[str], results: Path) -> str:
    """A figure with its mark, in the lines that it has where it is the same."""
    current = f"{figure(mark[1], results)[0]}<!--={mark[1]}-->"
    return mark[0] if " ".join(mark[0].split()) == current else current


def figure(name: str, results: Path) -> tuple[str, float]:
    """A figure that figures.json declares, as pages write it, and its number, in seconds where it has such a unit."""
    declared: Mapping[str, Any] = json.loads((results / "figures.json").read_text(encoding="utf-8")).get(name)
    if declared is None:
        raise ValueError(f"the figure {name!r} is not in {results / 'figures.json'}; declare it there")
    run = _run(results / f"{declared['run']}.json")
    cells = [_all_text(run)]
    if "column" in declared:
        cells = _cells(_of_run(run, declared.get("table", 1))[1], declared.get("row", "*"), declared["column"])
    if "find" in declared:
        cells = [match for cell in cells for match in re.findall(declared["find"], cell)]
    if declared.get("count"):
        cells = [str(len(cells))]
    if declared.get("median"):
        # That of an even number of rows is the mean of two of them.
        cells = [f"{statistics.median(_quantity(cell) for cell in cells):.4g}"]
    if len(set(cells)) != 1:
        raise ValueError(f"the figure {name!r} is {len(set(cells))} times in {declared['run']}.json, but must be once")
    text = re.sub(r"(?<=\d)%", " %", cells[0])
    quantity = _quantity(text)
    if "over" in declared:
        quantity /= figure(declared["over"], results)[1]
    return declared["as"].format(quantity) if "as" in declared else text, quantity


def _quantity(text: str) -> float:
    """The number that a text begins with, seconds where it has such a unit; without one, NaN."""
    number = re.match(r"[-+]?([\d.]+) ?(ms|us|s)?\b", text.replace(",", ""))
    return float("nan") if number is None else float(number[1]) * _UNITS.get(number[2], 1.0)


def _cells(table: Mapping[str, Any], row: str, column: str) -> list[str]:
    """The cells of a column in the rows of a name."""
    if column not in table["columns"]:
        raise ValueError(f"column is {column!r}, but must be one of {', '.join(table['columns'])}")
    return [cells[table["columns"].index(column)] for cells in table["rows"] if _is_named(cells, row)]


def _is_named(row: Sequence[str], name: str) -> bool:
    return any(fnmatch.fnmatchcase(", ".join(row[:count]), name) for count in range(1, len(row) + 1))


def _all_text(run: Mapping[str, Any]) -> str:
    """The tables and lines of a run, one after the other."""
    rows = [[[told]] if isinstance(told, str) else [[told["title"]], *told["rows"]] for told in run["tables"]]
    return "\n".join(cell for told in rows for row in told for cell in row)


@functools.cache
def _run(file: Path) -> Mapping[str, Any]:
    run: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if not {"run", "tables"} <= run.keys():
        raise ValueError(f"{file} has no run with tables, but must be the file of a whole benchmark")
    return run


def _command(run: Mapping[str, Any], link: str) -> str:
    date = datetime.date.fromisoformat(run["run"]["date"])
    command = re.sub(r" --json \S+", "", run["run"]["command"])
    return f"```\n{_folded(command)}\n```\n\n[All figures of this run]({link}), {date.day} {date:%B %Y}."


def _of_run(run: Mapping[str, Any], title: str | int) -> tuple[int, Mapping[str, Any]]:
    """A table by its title or its number, or that of "figures" with aims, and its number in the run."""
    tables = [(number, table) for number, table in enumerate(run["tables"], 1) if isinstance(table, dict)]
    named = [(number, table) for number, table in tables if table["title"] == title]
    if title == "figures":
        named = [(number, table) for number, table in tables if table["title"].endswith(" figures are held")]
    if str(title).isdecimal():
        named = tables[int(title) - 1 : int(title)]
    if not named:
        raise ValueError(f"no table is titled {title!r}")
    return named[0]


def _table(file: Path, link: str, asked: Sequence[str], files: dict[Path, str]) -> str:
    title, options = asked[0] if asked else "1", {"without": list[str](), "rows": list[str]()}
    listed: list[str] = []
    for word in asked[1:]:
        if word in options:
            listed = options[word]
        else:
            listed.append(word)
    number, table = _of_run(_run(file), title)
    unknown = set(options["without"]) - set(table["columns"])
    every, rows = table["rows"], [row for row in table["rows"] if any(_is_named(row, name) for name in options["rows"])]
    absent = [name for name in options["rows"] if not any(_is_named(row, name) for row in every)]
    if unknown or absent:
        raise ValueError(f"{file.name} has no columns {sorted(unknown)} and no rows {absent} in {title!r}")
    if not options["rows"]:
        # From the first to the last: rows are often sorted, and the first ones alone would flatter.
        last, steps = len(every) - 1, MOST_ROWS - 1
        rows = every if len(every) <= MOST_ROWS else [every[n * last // steps] for n in range(MOST_ROWS)]
    heading = table["title"] if title == "figures" else ""
    text = Table(tuple(table["columns"]), tuple(map(tuple, rows)), heading).markdown(options["without"])
    if len(rows) == len(every):
        return text
    sheet = file.with_name(f"{file.stem}-{number}.csv")
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([table["columns"], *every])
    files[sheet] = lines.getvalue()
    named = f"[{len(every)} rows]({Path(link).with_name(sheet.name).as_posix()})"
    return f"{text}\n\nThese are {len(rows)} of {named}."


def _folded(command: str) -> str:
    """The command in lines of 120 columns at most, as a shell reads it."""
    lines = [""]
    for word in map(shlex.quote, shlex.split(command)):
        if lines[-1] and len(lines[-1]) + len(word) > 117:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
