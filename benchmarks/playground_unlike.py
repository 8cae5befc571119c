"""Unlike workers in the playground: leaving units out against waiting for slow workers, and against leaving them out.

    python benchmarks/playground_unlike.py [--network NAME] [--data NAME ...] [--seeds N] [--json FILE]

A network of two convolutions is trained on digits by eight workers, by all-reduce, to a held-out accuracy of 80 %: one
of 8 and 16 filters, and one of 32 and 64. The second one was added after the first had missed figures, as DISTREAL's
networks are large; that it is worth a try was seen with seeds 100 to 102. Four devices compute three times as fast as
the other four; seconds of a gradient are those that the planner's latency model predicts for the network that a worker
trains. Of a batch of 128 all workers have as much, but where it says otherwise.

- waiting: all train the whole network.
- leaving out: the fast four alone do.
- dropping: the slow four leave units out, by the vector of least loss among those of a Pareto front (NSGA-II, 40 trials
  of 60 steps, judged by training samples) with which they take no longer than the fast ones (DISTREAL).
- by speed: all train the whole network, and the slow ones have a third of the others' samples.

Data are divided in three ways: each worker draws from all samples, or from its own: the fast ones have the digits 0 to
4, the slow ones 5 to 9; or from mostly its own: it has a fifth of the samples of the other digits, too. The third way
was added after the first two had missed figures.

Learning rates are chosen for each way of the same three, by the virtual seconds with a seed that isn't judged. A run
that doesn't reach the accuracy in 150 steps (300 of the small network) counts as one that does at the end. The ratio is
of seconds to those of dropping, its mean a geometric one, with the 90 % interval by Student's t over seeds. Exit status
1 if a figure is missed: dropping is ahead of both.

References:
    Rapp, Khalili, Pfeiffer and Henkel, DISTREAL: Distributed Resource-Aware Learning in Heterogeneous Systems, AAAI
    2022.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu"}

import numpy as np
import optax
from tqdm import tqdm

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground import Job, Problem, Until, problem, simulate
from alpa_dejavu.playground.dropping import affordable, pareto_front
from alpa_dejavu.playground.job import local_batches
from alpa_dejavu.problem import Cluster, Device, Host, Link
from harness import Figure, Results, Table, at_least, options, wrong_input_told

FAST, SLOW, SLOWER, BATCH, ACCURACY, CONFIDENCE = 4, 4, 3.0, 16, 0.8, 0.9
RATES = (0.2, 0.4, 0.8)
TRIALS, TRIAL_STEPS, TRIAL_RATE = 40, 60, 0.3
NETWORKS = {"digits-wide-cnn": (150, 30), "digits-cnn": (300, 150)}
"""After how many steps a run ends, and how often the accuracy is looked at."""
WAYS = ("dropping", "waiting", "leaving out", "by speed")
SETTINGS = ("samples of all", "own digits", "mostly own digits")
OTHERS = 5
"""One of so many samples of the other digits has a worker that has mostly its own."""
Row = dict[str, Any]


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; exit status 1 if a figure is missed."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=at_least(2), default=5, help="judged (default: %(default)s)")
    parser.add_argument("--network", choices=NETWORKS, default="digits-wide-cnn", help="(default: %(default)s)")
    parser.add_argument("--data", nargs="+", choices=SETTINGS, default=[*SETTINGS], help="how divided (default: all)")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"seeds": given.seeds})
    trained = problem(given.network)
    vector = results.known("vector", given.network, functools.partial(_vector, trained))
    rows = [
        _row(results, trained, vector, setting, way, given.seeds)
        for setting in given.data for way in tqdm(WAYS, setting)
    ]  # fmt: skip
    columns = {
        "data": "{setting}",
        "way": "{way}",
        "rate": "{rate:g}",
        "a step": "{step_s:seconds}",
        "seconds": "{mean_s:seconds}",
        "reached": "{reached} of {count}",
        "times that of dropping": "{ratio:.2f} ({low:.2f} to {high:.2f})",
    }
    kept = ", ".join(f"{1 - rate:.0%}" for rate in vector["rates"])
    said = f"The slow workers keep {kept} of the filters of both layers, for {vector['share']:.0%} of the seconds."
    figures = [*_figures(rows, given.data)]
    return results.shown(said, Table.of(rows, columns), figures=figures)


def _figures(rows: Sequence[Row], settings: Sequence[str]) -> Iterator[Figure]:
    """Yields whether dropping is ahead, and writes into rows by how much."""
    for setting in settings:
        own = {row["way"]: row for row in rows if row["setting"] == setting}
        for way in WAYS[1:]:
            ratios = np.divide(own[way]["seconds"], own["dropping"]["seconds"])
            found = Interval.of(np.log(ratios).tolist(), CONFIDENCE).exp()
            own[way] |= {"ratio": found.mean, "low": found.low, "high": found.high}
            if way != "by speed":
                measured = f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"
                yield Figure(f"dropping against {way}", setting, "times faster: above 1", measured, found.low > 1)


def _row(results: Results, trained: Problem, vector: Row, setting: str, way: str, seeds: int) -> Row:
    def known(rate: float, seed: int) -> Row:
        name = f"{trained.name}, {setting}, {way}, rate {rate:g}, seed {seed}"
        return results.known("runs", name, lambda: _run(trained, vector, setting, way, rate, seed))

    rate = min(RATES, key=lambda rate: float(known(rate, 0)["s"]))
    every = [known(rate, seed) for seed in range(1, seeds + 1)]
    seconds = [float(one["s"]) for one in every]
    reached = sum(bool(one["reached"]) for one in every)
    return {"setting": setting, "way": way, "rate": rate, "seconds": seconds, "mean_s": float(np.mean(seconds)),
            "reached": reached, "count": seeds, "step_s": every[0]["step_s"]}  # fmt: skip


def _run(trained: Problem, vector: Row, setting: str, way: str, rate: float, seed: int) -> Row:
    """Virtual seconds to the accuracy, or to the end."""
    slow = 0 if way == "leaving out" else SLOW
    cluster = _cluster(slow)
    batch: tuple[int, ...] = (BATCH,) * (FAST + slow)
    if way == "by speed":
        batch = local_batches(BATCH * (FAST + SLOW), (1.0,) * FAST + (SLOWER,) * SLOW)
    layers = len(vector["rates"])
    drop = ((0.0,) * layers,) * FAST + (tuple(vector["rates"]),) * SLOW if way == "dropping" else None
    shards = None
    if setting != "samples of all":
        low, high = (np.flatnonzero(which).tolist() for which in (trained.train[1] < 5, trained.train[1] >= 5))
        fast_more, slow_more = ([], []) if setting == "own digits" else (high[::OTHERS], low[::OTHERS])
        shards = [[*low, *fast_more]] * FAST + [[*high, *slow_more]] * slow
    job = Job.predicted(trained, cluster, batch, optimizer=_descent(rate), shards=shards, drop=drop)
    step_s = float(np.max(job.compute_s))
    steps, looks = NETWORKS[trained.name]
    run = simulate(job, cluster, "all-reduce", until=Until(steps=steps), looks=looks, seed=seed)
    reached = np.flatnonzero(run.accuracy >= ACCURACY)
    return {"s": float(run.time_s[reached[0]] if len(reached) else run.end_s), "reached": bool(len(reached)),
            "step_s": step_s}  # fmt: skip


@functools.cache
def _descent(rate: float) -> Any:
    """The same object for a rate each time: what is compiled for it is compiled once."""
    return optax.sgd(rate)


def _vector(trained: Problem) -> Row:
    """The vector of the slow workers."""
    front = pareto_front(trained, _device(False), BATCH, optimizer=optax.sgd(TRIAL_RATE), trials=TRIALS,
                         steps=TRIAL_STEPS)  # fmt: skip
    whole_s = max(one.seconds for one in front)
    chosen = affordable(front, whole_s / SLOWER)
    return {"rates": chosen.rates, "share": chosen.seconds / whole_s, "loss": chosen.loss, "front": len(front)}


def _device(fast: bool) -> Device:
    """A small processor; the fast one does all things as many times as fast."""
    factor = SLOWER if fast else 1.0
    return Device("fast" if fast else "slow", 2.0**30, {"float32": 1e8 * factor}, 1e8 * factor, 1e9 * factor)


def _cluster(slow: int) -> Cluster:
    """A host for each worker, the fast ones first, on fast links."""
    hosts = tuple(Host(f"host {n}", _device(n < FAST), 1) for n in range(FAST + slow))
    link = Link(1e-5, 1e9)
    return Cluster("unlike", hosts, ((link,) * len(hosts),) * len(hosts))


if __name__ == "__main__":
    raise SystemExit(main())
