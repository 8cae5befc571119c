"""Plans measured on clusters of unlike hosts: Alpa's, ours, and the best of an enumeration, side by side.

    python benchmarks/hetero_cluster.py --json hetero.json

Four hosts of one device each are network namespaces on this machine, each with a Ray node of its own. Links between
them are shaped by `tc`, and each host's device has a share of a core by the CPU quota of a cgroup, once everything is
compiled. This needs root and Linux; without, it says so, and nothing counts as shown. The plans of the enumeration
are written to the JSON file before ours is known. All plans run in rounds; then ours, Alpa's and the two that were
fastest run again in turns, and these finals are what is compared: the fastest of many is so by luck, too. Cases that
the file has already are not measured again.

Links within a host that are slower than between hosts can't be made on one machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

os.environ["JAX_PLATFORMS"] = "cpu"

from _measured_runs import ENVIRONMENT
from harness import Results, at_least, options
from hetero._bench import bench
from hetero._cases import CASES, NUM_HOSTS
from hetero._report import cases_table, figures, misses
from hetero._trial import Effort, trial
from real_hosts import NotShownError

_COUNTS = "plans", "rounds", "steps", "warm_up", "finals"
_STOPPING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM


def main(given: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; the exit status is 0 where everything is as it was to be."""
    arguments = _arguments(given)
    os.environ.update(ENVIRONMENT)
    for number in _STOPPING:
        signal.signal(number, _stop)
    signal.alarm(60 * arguments.minutes)
    left_out = "json", "cases", "minutes"
    settings = {name: value for name, value in vars(arguments).items() if name not in left_out}
    result = Results(arguments.json, settings, environment=ENVIRONMENT, autos={}, cases={})
    names = arguments.cases
    try:
        _measure([name for name in names if "figures" not in result["cases"].get(name, {})], result, arguments)
    except NotShownError as error:
        print(f"Not shown: {error}")
        return 2
    said = [miss for name in names for miss in misses(result["cases"][name])]
    result.shown(cases_table(result["cases"]), *(said or ["All figures are as they were to be."]))
    return 1 if said else 0


def _measure(names: list[str], result: Results, arguments: argparse.Namespace) -> None:
    if not names:
        return
    cores, shares = len(os.sched_getaffinity(0)), max(sum(CASES[name].shares) for name in names)
    if shares >= cores:
        raise NotShownError(f"the devices take {shares:.2f} cores together, and the runtime some more; here is {cores}")
    effort = Effort(**{name: getattr(arguments, name) for name in (*_COUNTS, "seed")})

    def written(case: dict[str, Any]) -> None:
        result["cases"][case["name"]] = case
        result.write()

    with bench(NUM_HOSTS, ENVIRONMENT) as cluster:
        for name in names:
            measured = trial(CASES[name], cluster, effort, result["autos"], written)
            written({**measured, "figures": figures(measured)})


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    """Leaves by an exception, so that everything is cleaned up, which nothing more interrupts."""
    for other in _STOPPING:
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGALRM:
        print("Not done in time: the same command goes on with the cases that are left.", flush=True)
    raise SystemExit(128 + number)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = options(__doc__, json="hetero_cluster.json")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    for option, default, said in (
        ("--plans", 12, "of an enumeration, at most"),
        ("--rounds", 2, "of all plans"),
        ("--steps", 2, "of a plan in a round"),
        ("--warm-up", 2, "steps of each plan"),
        ("--finals", 3, "rounds of those compared"),
        ("--minutes", 80, "at most"),
    ):
        parser.add_argument(option, type=at_least(1), default=default, help=f"{said} (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
