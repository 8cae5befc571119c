"""Writes a page from the JSON file that a benchmark has left: command, machine, date and tables.

    python benchmarks/page.py RESULT.json [--into docs/results.md] [--mark NAME] [--only TITLE] [--leave-out COLUMN ...]

With `--into` it goes between the page's two marks of the benchmark, `<!-- strategies: begin -->` and
`<!-- strategies: end -->`, in place of what is there; without, it is printed. Where a page has several results of a
benchmark, `--mark` names the marks of one. A page shows ten rows of a table; a longer one is written to a CSV file
beside the JSON file, which the page links.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from harness import described, wrong_input_told


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Writes it; returns 2 where the file or the page can't be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="the JSON file")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="the page that has the marks")
    parser.add_argument(
        "--leave-out", nargs="+", metavar="COLUMN", default=[], help="headings that aren't wanted there"
    )
    parser.add_argument("--only", metavar="TITLE", help="the one table that is wanted there ('' if it has no title)")
    parser.add_argument("--mark", metavar="NAME", help="the marks' name (default: the benchmark's)")
    given = parser.parse_args(arguments)
    result = json.loads(given.result.read_text(encoding="utf-8"))
    if not {"run", "tables"} <= result.keys():
        raise ValueError(f"{given.result} has no run with tables, but must be the file of a whole benchmark")
    if given.into is None:
        print(described(result, given.leave_out, given.only), end="")
        return 0
    name = given.mark or Path(shlex.split(result["run"]["command"])[1]).stem
    begin, end = (f"<!-- {name}: {which} -->" for which in ("begin", "end"))
    before, found, rest = given.into.read_text(encoding="utf-8").partition(begin)
    _, ends, after = rest.partition(end)
    if not found or not ends:
        raise ValueError(f"{given.into} must have the lines {begin} and {end}; add them where the tables belong")
    folder = Path(os.path.relpath(given.result.parent, given.into.parent))
    link = (folder / _rows_file(given.result, "{}").name).as_posix()
    text = described(result, given.leave_out, given.only, link)
    for number, table in enumerate(result["tables"], 1):
        if f"({link.format(number)})" in text:
            with _rows_file(given.result, number).open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([table["columns"], *table["rows"]])
    given.into.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")
    return 0


def _rows_file(result: Path, number: int | str) -> Path:
    return result.with_name(f"{result.stem}-{number}.csv")


if __name__ == "__main__":
    raise SystemExit(main())
