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

import logging
import time
from collections.abc import Callable, Sequence

from harness import Figure, Results, options
from slicers import _against_alpa, _alone, _makespans, _relaxed, _same_optimum, _sketch
from slicers._figure import QUICK, Part, Scale

PARTS: dict[str, Callable[[Scale], Part]] = {
    "alone": _alone.measured,
    "same": _same_optimum.measured,
    "alpa": _against_alpa.measured,
    "gradient": _relaxed.measured,
    "makespan": _makespans.measured,
    "sketch": _sketch.measured,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the parts and shows every figure; exit status 1 if one is missed."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="small problems, to see that all of it runs")
    given = parser.parse_args(arguments)
    results, figures = Results(given.json, parts={}), list[Figure]()
    for name in given.only or PARTS:
        started = time.perf_counter()
        part = PARTS[name](QUICK if given.quick else Scale())
        figures += part.figures
        results["parts"][name] = {"seconds": time.perf_counter() - started, **part.details}
        results.write()
    return results.shown(figures=figures)


if __name__ == "__main__":
    raise SystemExit(main())
