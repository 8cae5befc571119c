"""How far slicers are from the optimum and how long they take, next to Alpa's programs and the first sketch's.

    python benchmarks/test_slicer_gap.py [--json OUT] [--only PART ...] [--quick]

All get the same problems in the same process, and everything is compiled beforehand; first calls in fresh processes
stand beside. Alpa's `training_dp` and the sketch's program run in a process of their own, since they are stopped after
10 and 2 minutes. The seconds are wall time of this machine, and medians of five runs where they are short. The parts:
`alpa` (`dynamic` against Alpa's programs), `same` (its optimum against all slicings and Alpa's), `alone` (large
problems), `gradient` (on the DP's objective), `makespan` (on simulated steps with transfers) and `sketch`. All of it
takes about 35 minutes; `--quick` takes small problems, whose figures say nothing.

Exit status 1 if a figure is missed.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from _timing import machine
from alpa_dejavu._util.json_file import write_whole
from slicers import _against_alpa, _alone, _makespans, _relaxed, _same_optimum, _sketch
from slicers._figure import QUICK, Figure, Part, Scale

PARTS: dict[str, Callable[[Scale], Part]] = {
    "alone": _alone.measured,
    "same": _same_optimum.measured,
    "alpa": _against_alpa.measured,
    "gradient": _relaxed.measured,
    "makespan": _makespans.measured,
    "sketch": _sketch.measured,
}
VERSION = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the parts and shows every figure; exit status 1 if one is missed."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    given = _parsed(arguments)
    scale, parts, seconds = QUICK if given.quick else Scale(), {}, {}
    for name in given.only or PARTS:
        started = time.perf_counter()
        parts[name] = PARTS[name](scale)
        seconds[name] = time.perf_counter() - started
        if given.json is not None:
            write_whole(given.json, json.dumps(_result(parts, seconds), indent=1) + "\n")
    figures = [figure for part in parts.values() for figure in part.figures]
    _show(figures)
    return 0 if all(figure.held for figure in figures) else 1


def _result(parts: dict[str, Part], seconds: dict[str, float]) -> dict[str, Any]:
    figures = [vars(figure) for part in parts.values() for figure in part.figures]
    details = {name: {"seconds": seconds[name], **part.details} for name, part in parts.items()}
    return {"version": VERSION, **machine(), "figures": figures, "parts": details}


def _show(figures: Sequence[Figure]) -> None:
    table = Table("slicer", "on", "aim", "measured", "")
    for figure in figures:
        said = "[green]held[/]" if figure.held else "[red]missed[/]"
        table.add_row(figure.of, figure.what, figure.aim, figure.measured, said)
    console = Console(width=160)
    console.print(table)
    console.print(f"{sum(figure.held for figure in figures)} of {len(figures)} figures are held")


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results here, too, part by part")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="small problems, to see that all of it runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
