"""The planner's default models on open measurements, to which nothing was fitted but collectives of V100.

    python benchmarks/open_trials.py --train ../shared/data [--test DIR] --json OUT [--only SET] [--plots DIR]

Without `--test` the rows in `--train` are predicted; with it those rows of `--test` that aren't in `--train`, which has
the profiles of layers and the links. The figures are fractions (0.08 is 8 %). A set that has no rows to score is listed
in `absent`; a file that can't be read is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from harness import Results, Table, options, wrong_input_told
from trials._folder import Folder
from trials._plots import draw
from trials._run import Scored, score
from trials._sets import SETS

VERSION = 2
SHOWN = ("mape", "median_ape", "bias", "coverage_90", "width_90", "spearman", "regret", "memory_mape")


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Scores the sets and writes the result; returns 2 where an input is wrong, with what and where on stderr."""
    parser = options(__doc__, needs_json=True)
    parser.add_argument("--train", type=Path, required=True, help="the folder of measurements, with profiles of layers")
    said = "a folder of measurements to predict in place of those in --train"
    parser.add_argument("--test", type=Path, help=said)
    parser.add_argument("--only", action="append", metavar="SET", help="one set alone (may be given several times)")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="a folder for a picture of each set")
    given = parser.parse_args(arguments)
    scored = run(given.train, given.test, given.only)
    sets = {key: each.result for key, each in scored.items()}
    absent = [key for key in given.only or SETS if key not in scored]
    if given.plots is not None:
        for key, each in tqdm(scored.items(), desc="plots"):
            draw(given.plots, key, each)
    columns: dict[str, Any] = {"set": "{key}", "n": "{n}", "fitted": "{fitted_to_them}"}
    columns |= {name: lambda row, name=name: _percent(row.get(name)) for name in SHOWN}
    table = Table.of([{"key": key, **each} for key, each in sets.items()], columns)
    result = Results(given.json, version=VERSION, sets=sets, absent=absent)
    return result.shown(table, f"absent: {', '.join(absent) or 'none'}")


def run(train: Path, test: Path | None, only: Sequence[str] | None = None) -> dict[str, Scored]:
    """The sets that have rows to score, by key.

    Raises:
        ValueError: a set or folder doesn't exist, or a set that `only` names has no rows to score.
        UnreadableError: a file is broken.
    """
    for name, folder in (("--train", train), ("--test", test)):
        if folder is not None and not folder.is_dir():
            raise ValueError(f"{name}: {folder} is no folder; give one that is laid out as ../shared/data")
    unknown = [key for key in only or () if key not in SETS]
    if unknown:
        raise ValueError(f"--only: there is no set {unknown[0]!r}; choose one of {', '.join(SETS)}")
    scored = {}
    for key in tqdm(only or list(SETS), desc="sets"):
        each = score(SETS[key], Folder(train), None if test is None else Folder(test))
        if each is not None:
            scored[key] = each
        elif only:
            where = train if test is None else test
            raise ValueError(f"--only: {key} has no rows to score in {where}; choose another set or folder")
    return scored


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
