"""How much worse the default search's plans are than those of a much wider one, on pairs that a seed draws.

    python benchmarks/search_gap.py [--seed N] [--pairs N] [--json FILE] [--only PART ...] [--cache DIR]

A pair is a model by name with a batch, and 1 to 8 hosts of a machine type, of which the first may be slower, or have
slower links; pairs that nothing fits are left out. The parts:

`gap`: the default search against a wide one, which tries all numbers of micro-batches, 8 to 48 layers, all numbers of
stages and of hosts. It leaves out numbers of stages that are far from the best by the closed form, and prices the
rest at its own micro-batch. Then the default search again with a host more, which must not make plans slower.
`strategies`: others' strategies by the same prices, none of which may be faster.
`slicers`: the slicing problem of each pair's best shape by `dynamic`, `mcmc` and `gradient` in equal wall time.
`published`: Alpa's 21 published cases, old plans (`gaps/old_plans.json`) beside new ones, both by today's prices.

What the JSON file has already isn't computed again. All seconds of steps are predictions. Exit status 1 if an aim is
missed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

from tqdm import tqdm

from alpa_dejavu._util.units import seconds
from alpa_dejavu.planning import PlanningResult, plan
from alpa_dejavu.planning.model_cache import ModelCache, chosen_cache
from alpa_dejavu.planning.strategies import ByStrategy, strategy
from alpa_dejavu.problem import NoPlanError
from gaps import _published, _slicers
from gaps._pairs import Pair, drawn
from gaps._wide import Wide, counted
from harness import Figure, Results, Table, at_least, options

PARTS = ("gap", "strategies", "slicers", "published")
STRATEGIES = ("alpa", "amp", "megatron")
MEDIAN, WORST = 0.01, 0.03
"""By which share the default search's step may be longer."""
SAME = 1e-3
Row = dict[str, Any]
Shown = tuple[list[Table], list[Figure]]
"""Of a part."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Computes the parts and shows every figure; exit status 1 if one is missed."""
    parser = options(__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the pairs (default: %(default)s)")
    parser.add_argument("--pairs", type=at_least(1), default=12, help="how many (default: %(default)s)")
    said = "keep what is learned of models here, from run to run (default: until the end)"
    parser.add_argument("--cache", type=Path, metavar="DIR", help=said)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args(arguments)
    results = Results(given.json, {"seed": given.seed})
    tables, figures = list[Table](), list[Figure]()
    with tempfile.TemporaryDirectory() as folder:
        known = _Known(results, chosen_cache(given.cache or folder))
        for part in given.only:
            more, judged = _part(part, given.seed, given.pairs, known)
            tables += more
            figures += judged
    return results.shown(*tables, figures=figures)


@final
@dataclasses.dataclass(frozen=True)
class _Known:
    """What was computed before, and what was learned of models."""

    results: Results
    cache: ModelCache | None

    def row(self, kind: str, name: str, computed: Callable[[], Row]) -> Row:
        """The row; computed, if it isn't there."""
        return self.results.known(kind, name, computed)


def _part(part: str, seed: int, pairs: int, known: _Known) -> Shown:
    if part == "published":
        return _published_figures([_published_row(one, known) for one in tqdm(_published.old_plans(), "published")])
    row, shown = PAIR_PARTS[part]
    chosen = tqdm(itertools.islice(_fitting(seed, known), pairs), part, pairs, unit="pair")
    return shown([_pair_row(pair, row, known) for pair in chosen])


def _fitting(seed: int, known: _Known) -> Iterator[Pair]:
    """The pairs of a seed that have a plan, or whose planning fails."""
    return (pair for pair in drawn(seed) if _known_default(pair, known).get("fits", True))


def _known_default(pair: Pair, known: _Known) -> Row:
    return known.row("default", pair.name, lambda: _default(pair, known.cache))


def _default(pair: Pair, cache: ModelCache | None, more: int = 0) -> Row:
    """The default search's plan of a pair, with so many hosts more."""
    try:
        with counted() as asked:
            made = plan(pair.task(pair.cluster(more), cache), annotations=())
    except NoPlanError:
        return {"fits": False}
    except ValueError as error:
        return {"error": str(error)}
    return {**_shape(made), **asked}


def _shape(made: PlanningResult) -> Row:
    return {
        "step_s": made.plan.step_s,
        "layers": made.model.num_layers,
        "micro_batches": made.plan.num_micro_batches,
        "stages": len(made.plan.stages),
        "hosts": len({host for stage in made.plan.stages for host in stage.hosts}),
    }


def _pair_row(pair: Pair, part: Callable[[Pair, Row, _Known], Row], known: _Known) -> Row:
    default = _known_default(pair, known)
    row: Row = {"pair": pair.name, "default": default}
    return row | ({"error": default["error"]} if "error" in default else part(pair, default, known))


def _gap_row(pair: Pair, default: Row, known: _Known) -> Row:
    wide = known.row("wide", pair.name, lambda: _wide(pair, default["step_s"], known.cache))
    more = known.row("a host more", pair.name, lambda: _default(pair, known.cache, more=1))
    best_s = min(default["step_s"], wide.get("step_s", default["step_s"]))
    return {
        "wide": wide,
        "gap": default["step_s"] / best_s - 1,
        "more_gap": more.get("step_s", math.inf) / default["step_s"] - 1,
    }


def _wide(pair: Pair, known_s: float, cache: ModelCache | None) -> Row:
    task = dataclasses.replace(pair.task(cache=cache), chooser=Wide(known_s))
    try:
        with counted() as asked:
            made = plan(task, annotations=())
    except (NoPlanError, ValueError) as error:
        return {"error": str(error)}
    return {**_shape(made), **asked}


def _strategies_row(pair: Pair, default: Row, known: _Known) -> Row:
    return {"others": known.row("strategies", pair.name, lambda: _strategies(pair, known.cache))}


def _strategies(pair: Pair, cache: ModelCache | None) -> Row:
    task, row = pair.task(cache=cache), Row()
    for name in STRATEGIES:
        try:
            made = plan(dataclasses.replace(task, chooser=ByStrategy(strategy(name))), annotations=())
        except (NoPlanError, ValueError) as error:
            row[name] = {"error": str(error)}
            continue
        row[name] = _shape(made)
    return row


def _slicers_row(pair: Pair, default: Row, known: _Known) -> Row:
    return known.row("slicers", pair.name, lambda: _slicers_compared(pair, known.cache))


def _slicers_compared(pair: Pair, cache: ModelCache | None) -> Row:
    task = pair.task(cache=cache)
    return _slicers.compared(task, plan(task, annotations=()))


def _published_row(old: Row, known: _Known) -> Row:
    row = known.row("published", old["model"], lambda: _published.compared(old, cache=known.cache))
    return {"pair": old["model"], **row}


def _gap_figures(rows: Sequence[Row]) -> Shown:
    found = [row for row in rows if "error" not in row]
    columns = {
        "pair": "{pair}",
        "default s": "{default[step_s]:.4g}",
        "shape": lambda row: _said(row["default"]),
        "wide s": "{wide[step_s]:.4g}",
        "wide shape": lambda row: _said(row["wide"]),
        "worse by": "{gap:.2%}",
        "slicings": "{default[slicings]} of {wide[slicings]}",
        "CPU s": "{default[cpu_s]:.0f} of {wide[cpu_s]:.0f}",
        "a host more": "{more_gap:+.1%}",
    }
    gaps = [row["gap"] for row in found] or [0.0]
    said = f"median {statistics.median(gaps):.2%}, worst {max(gaps):.2%}"
    aim = f"median {MEDIAN:.0%}, worst {WORST:.0%} at most"
    held = statistics.median(gaps) <= MEDIAN and max(gaps) <= WORST
    slower = [row for row in found if row["more_gap"] > SAME]
    more = "; ".join(f"{row['pair']} {row['more_gap']:+.1%}" for row in slower) or "none"
    return [Table.of(found, columns)], [
        _planned(rows),
        Figure("default search", f"{len(found)} pairs, worse than a wide one", aim, said, held),
        Figure("default search", f"{len(found)} pairs, a host more", "none slower by over 0.1 %", more, not slower),
    ]


def _said(shape: Row) -> str:
    if "step_s" not in shape:
        return str(shape.get("error", "none"))
    return f"{shape['layers']} l, {shape['micro_batches']} mb, {shape['stages']} st, {shape['hosts']} h"


def _planned(rows: Sequence[Row]) -> Figure:
    failed = [f"{row['pair']}: {row['error']}" for row in rows if "error" in row]
    return Figure("planner", f"{len(rows)} pairs", "all are planned", "; ".join(failed) or "all", not failed)


def _strategies_figures(rows: Sequence[Row]) -> Shown:
    found = [row for row in rows if "error" not in row]
    figures = []
    for name in STRATEGIES:
        others = [(row, row["others"][name]) for row in found if "step_s" in row["others"][name]]
        faster = [
            f"{row['pair']}: {seconds(other['step_s'])} ({_said(other)}), ours {seconds(row['default']['step_s'])}"
            for row, other in others
            if other["step_s"] < row["default"]["step_s"] * (1 - SAME)
        ]
        said = "; ".join(faster) or "never"
        figures.append(Figure(name, f"{len(others)} pairs", "never 0.1 % faster", said, not faster))
    return [], figures


def _slicers_figures(rows: Sequence[Row]) -> Shown:
    found = [row for row in rows if "error" not in row]
    lines = []
    for scenario in ("alike", "unlike links", "uneven layers", "tight memory"):
        chosen = [row for row in found if scenario in row["scenarios"]]
        if chosen:
            wins = {f"{name} wins": _slicers.wins(chosen, f"{name}_s", SAME) for name in _NAMES}
            over = {f"{name} over best": _mean_over(chosen, f"{name}_s") for name in _NAMES}
            lines.append({"scenario": scenario, "pairs": len(chosen), **wins, **over})
    return [Table.of(lines, {name: f"{{{name}}}" for name in lines[0]})] if lines else [], []


_NAMES = ("dynamic", "mcmc", "gradient")


def _mean_over(rows: Sequence[Row], name: str) -> str:
    """The geometric mean, and the most, of a slicer's step over the best one's."""
    over = [row[name] / min(row[f"{other}_s"] for other in _NAMES) for row in rows]
    return f"{statistics.geometric_mean(over) - 1:.2%}, at most {max(over) - 1:.2%}"


def _published_figures(rows: Sequence[Row]) -> Shown:
    columns = {
        "model": "{pair}",
        "old s": "{old_s:.4g}",
        "memory": "{old_memory_share:.0%}",
        "new s": "{new_s:.4g}",
        "new over old": lambda row: f"{row['new_s'] / row['old_s'] - 1:+.2%}" if row["old_fits"] else "old doesn't fit",
    }
    fits = [row for row in rows if row.get("old_fits")]
    worse = [row["pair"] for row in rows if math.isinf(row["new_s"])]
    worse += [row["pair"] for row in fits if row["new_s"] > row["old_s"] * (1 + SAME)]
    what = f"{len(fits)} of {len(rows)} published cases, where the old plan fits"
    said = ", ".join(worse) or "all"
    figure = Figure("default search", what, "as good as the old plan or better", said, not worse)
    return [Table.of(rows, columns)], [figure]


PAIR_PARTS: dict[str, tuple[Callable[[Pair, Row, _Known], Row], Callable[[Sequence[Row]], Shown]]] = {
    "gap": (_gap_row, _gap_figures),
    "strategies": (_strategies_row, _strategies_figures),
    "slicers": (_slicers_row, _slicers_figures),
}


if __name__ == "__main__":
    raise SystemExit(main())
