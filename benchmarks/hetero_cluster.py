"""Plans measured on clusters of unlike hosts: Alpa's, ours, and the best of an enumeration, side by side.

    python benchmarks/hetero_cluster.py --json hetero.json

Four hosts of one device each are network namespaces on this machine, each with a Ray node of its own. Links between
them are shaped by `tc`, and each host's device has a share of a core by the CPU quota of a cgroup, once everything is
compiled. This needs root and Linux; without, it says so, and nothing counts as shown. The plans of the enumeration
are written to the JSON file before ours is known. All plans run in rounds; then ours, Alpa's and the two that were
fastest run again in turns, and these finals are what is compared: the fastest of many is so by luck, too. Cases that
the file has already are not measured again. Last, a host is killed while Alpa trains: training goes on without it, and
its losses are those of an undisturbed run.

Links within a host that are slower than between hosts can't be made on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

os.environ["JAX_PLATFORMS"] = "cpu"

from _measured_runs import ENVIRONMENT
from hetero._bench import bench
from hetero._cases import CASES, NUM_HOSTS
from hetero._commands import NotShownError
from hetero._killed import killed, killed_misses, killed_table
from hetero._report import figures, misses, table
from hetero._trial import Effort, trial

KILLED = "killed host"
"""The last case: the cluster has a host less afterwards."""
_COUNTS = "plans", "rounds", "steps", "warm_up", "finals"
_STOPPING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM


def main() -> int:
    """Measures, prints and writes; the exit status is 0 where everything is as it was to be."""
    arguments = _arguments()
    os.environ.update(ENVIRONMENT)
    for number in _STOPPING:
        signal.signal(number, _stop)
    signal.alarm(60 * arguments.minutes)
    result = _begun(arguments)
    names = [name for name in arguments.cases if name != KILLED]
    try:
        _measure([name for name in names if "figures" not in result["cases"].get(name, {})], result, arguments)
        if KILLED in arguments.cases and KILLED not in result:
            _kill(result, arguments)
    except NotShownError as error:
        print(f"Not shown: {error}")
        return 2
    said = [miss for name in names for miss in misses(result["cases"][name])]
    for name in names:
        print("\n" + table(result["cases"][name]))
    if KILLED in arguments.cases:
        said += killed_misses(result[KILLED])
        print("\n" + killed_table(result[KILLED]))
    print("\n".join(["", *said] if said else ["", "All figures are as they were to be."]))
    return 1 if said else 0


def _measure(names: list[str], result: dict[str, Any], arguments: argparse.Namespace) -> None:
    if not names:
        return
    cores, shares = len(os.sched_getaffinity(0)), max(sum(CASES[name].shares) for name in names)
    if shares >= cores:
        raise NotShownError(f"the devices take {shares:.2f} cores together, and the runtime some more; here is {cores}")
    effort = Effort(**{name: getattr(arguments, name) for name in (*_COUNTS, "seed")})

    def written(case: dict[str, Any]) -> None:
        result["cases"][case["name"]] = case
        _write(result, arguments.json)

    with bench(NUM_HOSTS, ENVIRONMENT) as cluster:
        for name in names:
            measured = trial(CASES[name], cluster, effort, result["autos"], written)
            written({**measured, "figures": figures(measured)})


def _kill(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    with bench(NUM_HOSTS, ENVIRONMENT) as cluster:
        result[KILLED] = killed(CASES["uniform"], cluster)
    _write(result, arguments.json)


def _write(result: dict[str, Any], file: Path) -> None:
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _begun(arguments: argparse.Namespace) -> dict[str, Any]:
    """What an earlier run with the same settings has left, or a new beginning."""
    settings = {name: value for name, value in vars(arguments).items() if name not in ("json", "cases", "minutes")}
    if arguments.json.exists():
        found: dict[str, Any] = json.loads(arguments.json.read_text(encoding="utf-8"))
        if found.get("settings") != settings:
            raise SystemExit(f"{arguments.json} was measured with {found.get('settings')}: name another file")
        return found
    machine = {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()}
    return {"settings": settings, "machine": machine, "environment": ENVIRONMENT, "autos": {}, "cases": {}}


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    """Leaves by an exception, so that everything is cleaned up, which nothing more interrupts."""
    for other in _STOPPING:
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGALRM:
        print("Not done in time: the same command goes on with the cases that are left.", flush=True)
    raise SystemExit(128 + number)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("hetero_cluster.json"), help="default: %(default)s")
    names = [*CASES, KILLED]
    parser.add_argument("--cases", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--plans", type=int, default=12, help="of an enumeration, at most (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of all plans (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="of a plan in a round (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=2, help="steps of each plan (default: %(default)s)")
    parser.add_argument("--finals", type=int, default=3, help="rounds of those compared (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=int, default=80, help="at most (default: %(default)s)")
    arguments = parser.parse_args()
    for name in (*_COUNTS, "minutes"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(arguments, name)}; give 1 or more")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
