"""Workers whose speed changes while they train: what is left out is chosen anew for each gradient, in the playground.

    python benchmarks/playground_changing.py [--seeds N] [--json FILE]

The wide network of `playground_unlike.py` is trained by eight equal workers, by all-reduce, to a held-out accuracy of
80 %. Each has digits of its own: half of them 0 to 4, the others 5 to 9. Each worker is at random times slowed down to
a third of its speed, for as long as it then has its own speed, 3 s on the mean.

- anew: each worker takes for each gradient the vector of least loss, of the same Pareto front, with which it then takes
  no longer than the whole network takes at its own speed.
- always: all take the vector that they can afford while they are slow.
- waiting: all train the whole network.

Learning rates are chosen for each way of the same three, with a seed that isn't judged; a run that doesn't reach the
accuracy in 150 steps counts as one that does at the end. Ratios are of seconds to those of anew, their means geometric,
with 90 % intervals by Student's t over seeds. Exit status 1 if a figure is missed: anew is ahead of both.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu"}

import numpy as np
import optax
from tqdm import tqdm

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground import Job, Problem, Until, problem, simulate
from alpa_dejavu.playground.dropping import DropVector, affordable, afforded_vectors, pareto_front
from alpa_dejavu.playground.fault import DrawnSlowDowns
from alpa_dejavu.problem import Cluster, Device, Host, Link
from harness import Figure, Results, Table, at_least, options, wrong_input_told
from playground_unlike import ACCURACY, BATCH, CONFIDENCE, NETWORKS, SLOWER, TRIAL_STEPS, TRIALS

NAME, WORKERS, SLOW_S = "digits-wide-cnn", 8, 3.0
WAYS = ("anew", "always", "waiting")
DEVICE = Device("small", 2.0**30, {"float32": 3e8}, 3e8, 3e9)
Row = dict[str, Any]


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; exit status 1 if a figure is missed."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=at_least(2), default=8, help="judged (default: %(default)s)")
    given = parser.parse_args(arguments)
    results, trained = Results(given.json, {"seeds": given.seeds}), problem(NAME)
    found = results.known("front", NAME, functools.partial(_front, trained))["vectors"]
    front = [DropVector(**{**one, "rates": tuple(one["rates"])}) for one in found]

    def row(way: str) -> Row:
        def known(rate: float, seed: int) -> Row:
            return results.known("runs", f"{way}, rate {rate:g}, seed {seed}",
                                 functools.partial(_run, trained, front, way, rate, seed))  # fmt: skip

        rate = min(NETWORKS[NAME].rates, key=lambda rate: float(known(rate, 0)["s"]))
        every = [known(rate, seed) for seed in range(1, given.seeds + 1)]
        seconds = [float(one["s"]) for one in every]
        return {"way": way, "rate": rate, "seconds": seconds, "mean_s": float(np.mean(seconds)),
                "reached": sum(bool(one["reached"]) for one in every), "count": given.seeds}  # fmt: skip

    rows = [row(way) for way in tqdm(WAYS, "ways")]
    figures = []
    for other in rows[1:]:
        ratios = np.log(np.divide(other["seconds"], rows[0]["seconds"]))
        ratio = Interval.of(ratios.tolist(), CONFIDENCE).exp()
        other["ratio"] = f"{ratio.mean:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        figures.append(Figure("chosen anew", f"against {other['way']}", "times faster: above 1", other["ratio"],
                              ratio.low > 1))  # fmt: skip
    columns = {"way": "{way}", "rate": "{rate:g}", "seconds": "{mean_s:seconds}", "reached": "{reached} of {count}",
               "times that of anew": "{ratio}"}  # fmt: skip
    return results.shown(Table.of(rows, columns), figures=figures)


def _front(trained: Problem) -> Row:
    found = pareto_front(trained, DEVICE, BATCH, optimizer=optax.sgd(NETWORKS[NAME].trial_rate), trials=TRIALS,
                         steps=TRIAL_STEPS)  # fmt: skip
    return {"vectors": [dataclasses.asdict(one) for one in found]}


def _run(trained: Problem, front: Sequence[DropVector], way: str, rate: float, seed: int) -> Row:
    """Virtual seconds to the accuracy, or to the end."""
    link = Link(1e-5, 1e9)
    cluster = Cluster("changing", tuple(Host(f"host {n}", DEVICE, 1) for n in range(WORKERS)),
                      ((link,) * WORKERS,) * WORKERS)  # fmt: skip
    whole_s = float(Job.predicted(trained, cluster, BATCH).compute_s[0])  # type: ignore[index]
    drop: Any = None
    if way == "anew":
        drop = afforded_vectors(front, whole_s)
    elif way == "always":
        drop = (affordable(front, whole_s / SLOWER).rates,) * WORKERS
    low, high = (np.flatnonzero(which) for which in (trained.train[1] < 5, trained.train[1] >= 5))
    shards = [low] * (WORKERS // 2) + [high] * (WORKERS // 2)
    job = Job.predicted(trained, cluster, BATCH, optimizer=optax.sgd(rate), shards=shards, drop=drop)
    steps = NETWORKS[NAME].steps
    run = simulate(
        job, cluster, "all-reduce", seed=seed, looks=NETWORKS[NAME].looks,
        until=Until(steps * whole_s * SLOWER, steps), faults=[DrawnSlowDowns(1 / SLOW_S, SLOWER, SLOW_S)],
    )  # fmt: skip
    reached = np.flatnonzero(run.accuracy >= ACCURACY)
    return {"s": float(run.time_s[reached[0]] if len(reached) else run.end_s), "reached": bool(len(reached))}


if __name__ == "__main__":
    raise SystemExit(main())
