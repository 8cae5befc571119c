"""Tables and figures of what was run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ahead._plan import ABLATED, JUDGED, default_of, three_of, ways
from ahead._problems import MAKERS, Problem
from ahead._runs import FIRST, means
from alpa_dejavu._util.units import seconds
from harness import Figure, Table
from races._figures import Interval

UNREACHED = 1.5
"""Who doesn't reach the target in the plain optimizer's steps counts as if it took so many times as many."""
FASTER, WORST, MOST_FLOAT32, MOST_BFLOAT16 = 1.5, 1.05, 0.5, 0.2
Rows = Mapping[str, Mapping[str, Any]]


def tables(found: Mapping[str, Any], problems: Mapping[str, Problem]) -> list[Table | str]:
    """Returns the tables of all that is there."""
    rows = found.get("runs", {})
    shown: list[Table | str | None] = []
    for name, problem in problems.items():
        each = [_row(problem, way.name, _runs(rows, name, way.name), _plain(rows, problem)) for way in ways(problem)]
        known = [row for row in each if row is not None]
        if known:
            target = found["targets"][name]["target"]
            shown.append(_table(known, f"{name}: {problem.steps} steps at most, target {target:.4g}"))
    shown += [_told_apart(rows, problems)]
    for name in [name for name in ABLATED if name in problems]:
        plain = _plain(rows, problems[name])
        names = [key.split(", ", 1)[1] for key in found.get("ablations", {}) if key.startswith(f"{name}, ")]
        changed = [_row(problems[name], way, _runs(found["ablations"], name, way), plain) for way in dict.fromkeys(
            way.rsplit(", ", 1)[0] for way in names)]  # fmt: skip
        default = _row(problems[name], "the default", _runs(rows, name, default_of(problems[name])), plain)
        own = [row for row in changed if row is not None]
        if own and default:
            shown.append(_table([default, *own], f"{name}: one setting changed"))
    return [*(each for each in shown if each is not None), *_costs(found)]


def figures(found: Mapping[str, Any], problems: Mapping[str, Problem]) -> list[Figure]:
    """Returns the aims of what is there."""
    rows, made = found.get("runs", {}), []
    ratios: dict[str, Interval] = {}
    for name, problem in problems.items():
        row = _row(problem, "", _runs(rows, name, default_of(problem)), _plain(rows, problem))
        if row:
            ratios[name] = row["ratio"]
    for name, ratio in ratios.items():
        if problems[name].kind == "function":
            fewer = 1 / ratio.mean
            made.append(Figure("optex, N = 5", f"sequential steps, {name}", f"{FASTER:g} times fewer", f"{fewer:.2f}",
                               fewer >= FASTER))  # fmt: skip
    networks = {name: ratio for name, ratio in ratios.items() if problems[name].kind == "network"}
    if len(networks) == 4:
        faster = sum(ratio.high < 1 for ratio in networks.values())
        worst = max(ratio.mean for ratio in networks.values())
        made.append(Figure("optex, N = 4", "surely faster in sequential steps", "2 of 4 networks", f"{faster} of 4",
                           faster >= 2))  # fmt: skip
        made.append(Figure("optex, N = 4", "steps over plain, worst network", f"at most {WORST}", f"{worst:.2f}",
                           worst <= WORST))  # fmt: skip
    for (name, row), most in zip(found.get("overhead", {}).items(), (MOST_FLOAT32, MOST_BFLOAT16), strict=False):
        made.append(Figure("estimate", f"seconds over a gradient's, {name}", f"under {most:g}", f"{row['ratio']:.2f}",
                           row["ratio"] < most))  # fmt: skip
    return made


def _row(problem: Problem, name: str, runs: Sequence[Any], plain: Mapping[int, float]) -> dict[str, Any] | None:
    runs = [run for run in runs if run["seed"] in plain]
    if len(runs) < 2:
        return None
    most = UNREACHED * problem.steps
    logs = [math.log((run["reached"] or most) / plain[run["seed"]]) for run in runs]
    at = round(FIRST * problem.steps)
    early = [means(run["losses"][:at])[-1] for run in runs]
    return {
        "way": name + (f" ({runs[0]['rate']:g}x)" if runs[0]["rate"] != 1 else ""),
        "steps": statistics.mean(run["reached"] or most for run in runs),
        "ratio": Interval.of(logs).exp(),
        "gradients": statistics.mean(run["gradients"] for run in runs),
        "walked": statistics.mean(run["gradients"] / run["steps"] for run in runs),
        "early": statistics.mean(early),
        "apart": _mean(run["error"] for run in runs),
        "cosine": _mean(run["cosine"] for run in runs),
        "seconds": statistics.median(run["seconds"] for run in runs),
        "unreached": sum(run["reached"] is None for run in runs) or None,
    }


def _table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    columns = {
        "way": "{way}",
        "steps": "{steps:.0f}",
        "over plain": lambda row: f"{row['ratio'].mean:.2f} ({row['ratio'].low:.2f} to {row['ratio'].high:.2f})",
        "gradients": "{gradients:.0f}",
        "a step": "{walked:.1f}",
        "loss early": "{early:.3g}",
        "error": "{apart:.2f}",
        "cosine": "{cosine:.2f}",
        "one process": "{seconds:seconds}",
        "unreached": "{unreached}",
    }
    return Table.of(rows, columns, title)


def _told_apart(rows: Rows, problems: Mapping[str, Problem]) -> Table | None:
    made = []
    for name, problem in problems.items():
        plain = _plain(rows, problem)
        own = {way: _row(problem, way, _runs(rows, name, way), plain) for way in three_of(problem)}
        known = {way: row["ratio"].mean for way, row in own.items() if row}
        if len(known) == 3:
            best = min(known, key=lambda way: known[way])
            made.append({"problem": name, "best": best, "ratio": known[best], "default": known[default_of(problem)]})
    columns = {"problem": "{problem}", "best of three settings": "{best}", "its steps over plain": "{ratio:.2f}",
               "the default's": "{default:.2f}"}  # fmt: skip
    return Table.of(made, columns, "The best of three settings, chosen on the judged seeds") if made else None


def _costs(found: Mapping[str, Any]) -> Iterable[Table | str]:
    if "overhead" in found:
        columns = {"history": "{name}", "takes": "{history_bytes:size}", "estimate": "{estimate_s:seconds}",
                   "gradient": "{gradient_s:seconds}", "estimate over gradient": "{ratio:.2f}"}  # fmt: skip
        rows = [{"name": name, **row} for name, row in found["overhead"].items()]
        dimension = rows[0]["dimension"]
        yield Table.of(rows, columns, f"One step's estimates beside one gradient: {dimension} parameters, 50 points, "
                                      "N = 4, 256 digits")  # fmt: skip
    for row in found.get("cholesky", {}).values():
        yield (f"A Cholesky factor of 50 points takes {seconds(row['anew_s'])} anew, and "
               f"{seconds(row['updated_s'])} by four rank-one updates.")  # fmt: skip
    for row in found.get("workers", {}).values():
        yield Table.of([row], {"plain step": "{plain_s:seconds}", "step of two points": "{optex_s:seconds}",
                               "over plain": "{ratio:.2f}"},
                       "On two Ray workers: the network and digits of the table above")  # fmt: skip


def _runs(rows: Rows, problem: str, way: str) -> list[Any]:
    return [rows[key] for seed in JUDGED if (key := f"{problem}, {way}, {seed}") in rows]


def _plain(rows: Rows, problem: Problem) -> dict[int, float]:
    return {run["seed"]: run["reached"] or UNREACHED * problem.steps for run in _runs(rows, problem.name, "plain")}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def made(names: Iterable[str]) -> dict[str, Problem]:
    """Returns problems by name."""
    return {name: MAKERS[name]() for name in names}
