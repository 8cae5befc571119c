"""Unlike workers in the playground: leaving units out against waiting for slow workers, and against leaving them out.

    python benchmarks/playground_unlike.py [--network NAME] [--data NAME ...] [--local-steps N] [--seeds N]
                                           [--json FILE]

A network is trained on digits by eight workers to a held-out accuracy of 80 %, by all-reduce, or by local steps between
two means of the parameters: one of two convolutions with 8 and 16 filters, one with 32 and 64, and a residual one of
three blocks. The second one was added after the first had missed figures, as DISTREAL's networks are large; that it is
worth a try was seen with seeds 100 to 102. Four devices compute three times as fast as
the other four; seconds of a gradient are those that the planner's latency model predicts for the network that a worker
trains. Of a batch of 128 all workers have as much, but where it says otherwise.

- waiting: all train the whole network.
- leaving out: the fast four alone do.
- dropping: the slow four leave units out, by the vector of least loss among those of a Pareto front (NSGA-II, 40 trials
  of 60 steps, judged by training samples) with which they take no longer than the fast ones (DISTREAL).
- by speed: all train the whole network, and the slow ones have a third of the others' samples.
- dropping units, dropping blocks: as dropping, but only inner units, or only whole blocks, are left out of a residual
  network, by searches of their own; dropping does both.

Data are divided in four ways: each worker draws from all samples, or from its own: the fast ones have the digits 0 to
4, the slow ones 5 to 9; or from mostly its own: it has a fifth of the samples of the other digits, too. The third way
was added after the first two had missed figures. Or each label is spread over the workers by a Dirichlet distribution
of parameter 0.3, drawn by the run's seed.

Learning rates are chosen for each way of the same three (lower ones for the residual network, where these diverge), by
the virtual seconds with a seed that isn't judged. A run that doesn't reach the accuracy in 150 steps (300 of the small
network) counts as one that does at the end. The ratio is of seconds to those of dropping, its mean a geometric one,
with the 90 % interval by Student's t over seeds. Exit status 1 if a figure is missed: dropping is ahead of both.

References:
    Rapp, Khalili, Pfeiffer and Henkel, DISTREAL: Distributed Resource-Aware Learning in Heterogeneous Systems, AAAI
    2022.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

os.environ |= {"JAX_PLATFORMS": "cpu"}

import numpy as np
import optax
from tqdm import tqdm

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground import Job, Problem, Until, problem, simulate
from alpa_dejavu.playground.data import split
from alpa_dejavu.playground.dropping import affordable, pareto_front
from alpa_dejavu.playground.exchanges import LocalSteps
from alpa_dejavu.playground.job import local_batches
from alpa_dejavu.problem import Cluster, Device, Host, Link
from harness import Figure, Results, Table, at_least, options, wrong_input_told

FAST, SLOW, SLOWER, BATCH, ACCURACY, CONFIDENCE = 4, 4, 3.0, 16, 0.8, 0.9
TRIALS, TRIAL_STEPS = 40, 60


class Network(NamedTuple):
    """After how many steps a run ends, how often the accuracy is looked at, the rates tried, and the search's own."""

    steps: int
    looks: int
    rates: tuple[float, ...]
    trial_rate: float


NETWORKS = {
    "digits-wide-cnn": Network(150, 30, (0.2, 0.4, 0.8), 0.3),
    "digits-cnn": Network(300, 150, (0.2, 0.4, 0.8), 0.3),
    "digits-residual": Network(150, 30, (0.05, 0.1, 0.2), 0.1),
}
WAYS = ("dropping", "waiting", "leaving out", "by speed")
PARTS = {"dropping": "both", "dropping units": "units", "dropping blocks": "blocks"}
"""The parts that a way leaves out."""
SETTINGS = ("samples of all", "own digits", "mostly own digits", "dirichlet 0.3")
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
    parser.add_argument("--local-steps", type=at_least(1), default=1, help="between two means (default: %(default)s)")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"seeds": given.seeds, "local steps": given.local_steps})
    trained = problem(given.network)
    parts = PARTS if trained.blocks else {"dropping": "units"}
    vectors = {
        way: results.known("vector", f"{given.network}, {part}", _vector, trained, part) for way, part in parts.items()
    }
    ways = (*WAYS, *(way for way in vectors if way not in WAYS))
    rows = [
        _row(results, trained, vectors.get(way), setting, way, given.seeds, given.local_steps)
        for setting in given.data for way in tqdm(ways, setting)
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
    kept = {way: ", ".join(f"{1 - rate:.0%}" for rate in vector["rates"]) for way, vector in vectors.items()}
    said = " ".join(f"{way.capitalize()}: the slow workers keep {kept[way]} of the units of the layers, for "
                    f"{vector['share']:.0%} of the seconds." for way, vector in vectors.items())  # fmt: skip
    figures = [*_figures(rows, given.data)]
    return results.shown(said, Table.of(rows, columns), figures=figures)


def _figures(rows: Sequence[Row], settings: Sequence[str]) -> Iterator[Figure]:
    """Yields whether dropping is ahead, and writes into rows by how much."""
    for setting in settings:
        own = {row["way"]: row for row in rows if row["setting"] == setting}
        for way in (way for way in own if way != WAYS[0]):
            ratios = np.divide(own[way]["seconds"], own["dropping"]["seconds"])
            found = Interval.of(np.log(ratios).tolist(), CONFIDENCE).exp()
            own[way] |= {"ratio": found.mean, "low": found.low, "high": found.high}
            if way in ("waiting", "leaving out"):
                measured = f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"
                yield Figure(f"dropping against {way}", setting, "times faster: above 1", measured, found.low > 1)


def _row(results: Results, trained: Problem, vector: Row | None, setting: str, way: str, seeds: int, local: int) -> Row:
    def known(rate: float, seed: int) -> Row:
        name = f"{trained.name}, {setting}, {way}, rate {rate:g}, seed {seed}"
        return results.known("runs", name, _run, trained, vector, setting, way, rate, seed, local)

    rate = min(NETWORKS[trained.name].rates, key=lambda rate: float(known(rate, 0)["s"]))
    every = [known(rate, seed) for seed in range(1, seeds + 1)]
    seconds = [float(one["s"]) for one in every]
    reached = sum(bool(one["reached"]) for one in every)
    return {"setting": setting, "way": way, "rate": rate, "seconds": seconds, "mean_s": float(np.mean(seconds)),
            "reached": reached, "count": seeds, "step_s": every[0]["step_s"]}  # fmt: skip


def _run(trained: Problem, vector: Row | None, setting: str, way: str, rate: float, seed: int, local: int) -> Row:
    """Virtual seconds to the accuracy, or to the end."""
    slow = 0 if way == "leaving out" else SLOW
    cluster = _cluster(slow)
    batch: tuple[int, ...] = (BATCH,) * (FAST + slow)
    if way == "by speed":
        batch = local_batches(BATCH * (FAST + SLOW), (1.0,) * FAST + (SLOWER,) * SLOW)
    drop = None
    if vector is not None:
        drop = ((0.0,) * len(vector["rates"]),) * FAST + (tuple(vector["rates"]),) * SLOW
    job = Job.predicted(trained, cluster, batch, optimizer=_descent(rate), shards=_shards(trained, setting, slow, seed),
                        drop=drop)  # fmt: skip
    step_s = float(np.max(job.compute_s))
    network = NETWORKS[trained.name]
    exchange = "all-reduce" if local == 1 else LocalSteps(local)
    run = simulate(job, cluster, exchange, until=Until(steps=network.steps), looks=network.looks,
                   seed=seed)  # fmt: skip
    reached = np.flatnonzero(run.accuracy >= ACCURACY)
    return {"s": float(run.time_s[reached[0]] if len(reached) else run.end_s), "reached": bool(len(reached)),
            "step_s": step_s}  # fmt: skip


def _shards(trained: Problem, setting: str, slow: int, seed: int) -> Any:
    """The samples of each worker; the fast ones have theirs whether the slow ones are there or not."""
    if setting == "dirichlet 0.3":
        whole = Job(trained, 1.0, shards=split("dirichlet", alpha=0.3)).split(_cluster(SLOW), seed)
        assert whole is not None, "it is split"
        return whole.rows[: FAST + slow]
    if setting != "samples of all":
        low, high = (np.flatnonzero(which).tolist() for which in (trained.train[1] < 5, trained.train[1] >= 5))
        fast_more, slow_more = ([], []) if setting == "own digits" else (high[::OTHERS], low[::OTHERS])
        return [[*low, *fast_more]] * FAST + [[*high, *slow_more]] * slow
    return None


@functools.cache
def _descent(rate: float) -> Any:
    """The same object for a rate each time: what is compiled for it is compiled once."""
    return optax.sgd(rate)


def _vector(trained: Problem, parts: str) -> Row:
    """The vector of the slow workers."""
    descent = optax.sgd(NETWORKS[trained.name].trial_rate)
    front = pareto_front(trained, _device(False), BATCH, optimizer=descent, trials=TRIALS, steps=TRIAL_STEPS,
                         parts=parts)  # fmt: skip
    whole_s = float(Job.predicted(trained, _cluster(SLOW), BATCH).compute_s[-1])  # type: ignore[index]
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
