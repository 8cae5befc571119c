"""How large a training the playground simulates in how many seconds of this machine, and that its figures hold.

    python benchmarks/playground_scale.py [--workers N] [--rounds N] [--json FILE]

Gossip on a ring, of a network of 64-32-10 on digits with batches of 16, gradients and all, and time alone; how seconds
for each worker's round grow with the number of workers; and how long all exchanges take to a loss, in virtual seconds,
with workers of unlike speeds. Each is run in a process of its own, whose memory is counted. Exit status 1 if an aim is
missed.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Sequence
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu"}

from alpa_dejavu._util import units
from alpa_dejavu.playground import EXCHANGES, Job, Until, problem, simulate
from alpa_dejavu.testing import example_cluster
from harness import Figure, Results, Table, at_least, options, peak_bytes, wrong_input_told

TRAINED_S, TRAINED_BYTES, GROWTH = 300.0, 4 * 2**30, 1.5
"""The aims: seconds and bytes with gradients, and how much dearer a round may become."""
LOSS, UNLIKE_S = 1.0, (0.01,) * 7 + (0.03,)
"""The held-out loss that exchanges are timed to, and seconds of a gradient of each of eight workers."""
Row = dict[str, Any]


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; exit status 1 if a figure is missed."""
    parser = options(__doc__)
    for name, default in (("workers", 1000), ("rounds", 100)):
        parser.add_argument(f"--{name}", type=at_least(8), default=default, help="(default: %(default)s)")
    given = parser.parse_args(arguments)
    settings = {key: value for key, value in vars(given).items() if key != "json"}
    results = Results(given.json, settings)
    asked = {
        "gradients": (True, given.workers, given.rounds),
        "time alone": (False, given.workers, given.rounds),
        "time alone, a quarter of the workers": (False, given.workers // 4, given.rounds),
        "gradients, a quarter of the workers": (True, given.workers // 4, given.rounds),
    }
    rows = [results.known("runs", name, _apart, _gossip, name, *each)
            for name, each in asked.items()]  # fmt: skip
    raced = [results.known("races", name, _apart, _raced, name) for name in EXCHANGES]
    runs = {"run": "{run}", "workers": "{workers}", "rounds": "{rounds}", "seconds": "{wall_s:seconds}",
            "CPU for a worker's round": "{round_s:seconds}", "memory": "{memory_bytes:size}"}  # fmt: skip
    races = {"exchange": "{exchange}", f"to a loss of {LOSS}": "{to_s:seconds}", "accuracy": "{accuracy:.3f}",
             "sent": "{num_bytes:size}", "staleness, most": "{staleness}", "idle": "{idle:.0%}"}  # fmt: skip
    said = (
        "Below, eight workers, of which one takes three times as long, for 300 times the seconds of a gradient. All "
        "have the same learning rate, which nobody tuned: asynchronous ones take more and noisier steps at it."
    )
    return results.shown(Table.of(rows, runs), said, Table.of(raced, races), figures=_figures(rows))


def _figures(rows: list[Row]) -> list[Figure]:
    trained, timed, fewer_timed, fewer_trained = rows
    found = [
        Figure("gradients", "seconds", f"at most {units.seconds(TRAINED_S)}", units.seconds(trained["wall_s"]),
               trained["wall_s"] <= TRAINED_S),
        Figure("gradients", "memory", f"at most {units.size(TRAINED_BYTES)}", units.size(trained["memory_bytes"]),
               trained["memory_bytes"] <= TRAINED_BYTES),
    ]  # fmt: skip
    for name, many, few in (("gradients", trained, fewer_trained), ("time alone", timed, fewer_timed)):
        growth = many["round_s"] / few["round_s"]
        found.append(Figure(name, "a round's CPU seconds over those of a quarter of the workers", f"at most {GROWTH}",
                            f"{growth:.2f}", growth <= GROWTH))  # fmt: skip
    return found


def _apart(work: Any, *given: Any) -> Row:
    """The result of a function in a process of its own."""
    pool = multiprocessing.get_context("spawn").Pool(1)
    found: Row = pool.apply(work, given)
    pool.close()
    pool.join()
    return found


def _gossip(name: str, gradients: bool, workers: int, rounds: int) -> Row:
    """Gossip on a ring, with workers whose seconds are drawn anew for each step."""
    cluster = example_cluster(math.ceil(workers / 8), 8)
    hosts = [n // 8 for n in range(workers)]
    trained = problem("digits-mlp") if gradients else None
    job = Job(trained, 0.01, batch=16, spread=0.3, hosts=hosts, num_bytes=9640)
    simulate(job, cluster, "gossip", until=Until(steps=1))  # what is compiled isn't counted
    started, cpu_s = time.perf_counter(), time.process_time()
    run = simulate(job, cluster, "gossip", until=Until(steps=rounds), looks=10, progress=True)
    wall_s = time.perf_counter() - started
    round_s = (time.process_time() - cpu_s) / workers / rounds
    return {"run": name, "workers": workers, "rounds": rounds, "wall_s": wall_s, "round_s": round_s,
            "memory_bytes": peak_bytes(), "virtual_s": run.end_s, "loss": float(run.loss[-1])}  # fmt: skip


def _raced(name: str) -> Row:
    """An exchange's virtual seconds to a loss."""
    job = Job(problem("digits-mlp"), UNLIKE_S, spread=0.1)
    run = simulate(job, example_cluster(2, 4), name, until=Until(seconds=3.0), looks=100)
    return {"exchange": name, "to_s": run.seconds_to(LOSS), "accuracy": float(run.accuracy[-1]),
            "num_bytes": run.num_bytes, "staleness": len(run.staleness) - 1,
            "idle": float(run.idle_s.sum() / run.end_s / len(run.idle_s))}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
