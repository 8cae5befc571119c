"""The leaderboard: our models and the baselines on open measurements, groups left out.

    python benchmarks/open_trials.py --train ../shared/data [--test DIR] --json OUT [--only SET] [--plots DIR]

Without `--test` each group of each set in `--train` is predicted by models that were fitted without it; with it,
models are fitted on `--train` and predict the rows of `--test` that aren't in `--train`. The figures are fractions
(0.08 is 8 %). A set that has no rows to score is listed in `absent`; a file that can't be read is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from harness import Results, Table, options, wrong_input_told
from trials._baselines import BASELINES
from trials._folder import Folder
from trials._plots import draw
from trials._run import Scored, score
from trials._sets import SETS

VERSION = 1
SHOWN = ("mape", "median_ape", "coverage_90", "width_90", "spearman", "subset_regret", "memory_mape")


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Scores the sets and writes the result; returns 2 where an input is wrong, with what and where on stderr."""
    parser = options(__doc__, needs_json=True)
    parser.add_argument("--train", type=Path, required=True, help="the folder whose measurements models are fitted on")
    said = "a folder of measurements to predict; without it, groups are left out"
    parser.add_argument("--test", type=Path, help=said)
    parser.add_argument("--only", action="append", metavar="SET", help="one set alone (may be given several times)")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="a folder for a picture of each set")
    given = parser.parse_args(arguments)
    scored = run(given.train, given.test, given.only)
    result = Results(given.json, **leaderboard(scored, given.only or list(SETS)))
    if given.plots is not None:
        for key, each in tqdm(scored.items(), desc="plots"):
            draw(given.plots, key, each)
    return result.shown(*_tables(result))


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
        each = score(SETS[key], SETS, Folder(train), None if test is None else Folder(test))
        if each is not None:
            scored[key] = each
        elif only:
            where = train if test is None else test
            raise ValueError(f"--only: {key} has no rows to score in {where}; choose another set or folder")
    return scored


def leaderboard(scored: dict[str, Scored], asked: Sequence[str]) -> dict[str, Any]:
    """The result in version 1."""
    pooled = [(each.result["coverage_90"], each.result["n"]) for k, each in scored.items() if not SETS[k].report_only]
    rows = sum(n for _, n in pooled)
    return {
        "version": VERSION,
        "sets": {key: each.result for key, each in scored.items()},
        "absent": [key for key in asked if key not in scored],
        "coverage_pooled": sum(share * n for share, n in pooled) / rows if rows else None,
    }


def _tables(result: dict[str, Any]) -> list[Table | str]:
    columns: dict[str, Any] = {"set": "{key}", "n": "{n}"}
    columns |= {name: lambda row, name=name: _percent(row[name]) for name in SHOWN}
    for name in ("linear", "random_forest"):
        columns[name] = lambda row, name=name: " ±".join(
            _percent(row["baselines"][name][figure]) for figure in ("mape", "width_90")
        )
    columns["coverage may be"] = lambda row: "-".join(map(_percent, row["coverage_band"]))
    columns |= {"is": "{coverage_in_band}", "≤ linear's width": "{not_wider_than_linear}"}
    lines: list[Table | str] = [Table.of([{"key": key, **each} for key, each in result["sets"].items()], columns)]
    for name, said in (
        ("coverage_in_band", "coverage is outside the 95 % band of its number of groups"),
        ("not_wider_than_linear", "intervals are wider than the linear baseline's"),
    ):
        wrong = [key for key, each in result["sets"].items() if not each[name]]
        lines.append(f"{said}: {', '.join(wrong) or 'nowhere'}")
    others = {name: lambda row, name=name: _percent(row["baselines"][name]["mape"]) for name in BASELINES}
    all_sets = [{"key": key, **each} for key, each in result["sets"].items()]
    lines.append(Table.of(all_sets, {"set": "{key}", "ours": lambda row: _percent(row["mape"]), **others}))
    pooled = _percent(result["coverage_pooled"])
    if steps := _of_steps(result):
        lines.insert(1, steps)
    return [*lines, f"coverage of all rows: {pooled}; absent: {', '.join(result['absent']) or 'none'}"]


def _of_steps(result: dict[str, Any]) -> Table | None:
    """Whole steps: with rows left out, with the whole cluster left out, and by the plain sum of measured parts."""
    rows = [{"key": key, **each} for key, each in result["sets"].items() if "plain" in each]
    columns: dict[str, Any] = {"steps": "{key}"}
    ways = {
        "rows": lambda row: row,
        "cluster": lambda row: row.get("cluster_left_out", {}),
        "plain": lambda row: row["plain"],
    }
    for way, of in ways.items():
        for name in ("mape", "spearman", "subset_regret", "coverage_90"):
            if way != "plain" or name != "coverage_90":
                columns[f"{way}: {name}"] = lambda row, of=of, name=name: _percent(of(row).get(name))
    columns["plain's 95 %"] = lambda row: "-".join(map(_percent, row["plain"]["mape_interval"]))
    columns["cluster is no worse"] = lambda row: row.get("cluster_left_out", {}).get("at_most_the_plain_sum", "")
    return Table.of(rows, columns) if rows else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
