"""Predicted against measured: the playground's exchanges in virtual time, and by real worker processes.

    python benchmarks/playground_real.py [--json FILE] [--conditions NAME ...] [--exchanges NAME ...] [--workers N ...]
                                         [--minutes N]

Four and eight workers train a network of 64-32-10 on digits by synchronous and asynchronous exchanges. Each is a
process that Ray starts, on a host of its own: a network namespace, with shaped links between each two, and a share of a
core by the CPU quota of a cgroup. That needs root and Linux; without, it says so, and nothing counts as shown. A
gradient is computed so often that it takes the seconds that it should, and messages are padded to the size of a larger
model.

The simulation is told the seconds of a gradient of each worker, and latency and rate of one transfer between each two
hosts, measured before anything else is run, on equal workers with equal links. It isn't told how any run went. Then one
worker takes 1.8 times as long for a gradient each second (late), or for all (slow), or each worker does now and then
(jittering); or a link gets a tenth of its rate, or a worker is killed (SIGKILL) while others train. Where an exchange
stalls without a worker that is lost, that is what is predicted, and measured.

A seed decides initial parameters and batches; learning rate, steps and the loss to reach were chosen by simulations
with another one. Runs that a file has are not run again: the command goes on where it was ended. Exit status 1 if a
figure is missed, 2 if nothing could be shown.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import statistics
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

os.environ |= {"JAX_PLATFORMS": "cpu"}

import optax
from scipy.stats import spearmanr
from tqdm import tqdm

from alpa_dejavu.playground import Fault, History, Job, Until, problem, simulate
from alpa_dejavu.playground.fault import Crash, DrawnSlowDowns, LinkRate, SlowDown
from alpa_dejavu.problem import Cluster, Link
from alpa_dejavu.testing import example_cluster
from harness import Figure, Results, Table, at_least, options, wrong_input_told
from real_hosts import NotShownError
from real_hosts.workers import real_workers

GRADIENT_S, NUM_BYTES, BYTES_PER_S, LATENCY_S = 0.2, 1e6, 2e7, 1e-4
RATE, STEPS, LOSS, LOOKS, SEED = 0.3, 24, 1.3, 96, 1
SLOW = 1.8
"""More, and eight workers that share two cores would have less than a quota can be."""
KILLED_S = 0.7
"""While all compute: the third gradient, or the fourth where nothing is waited for."""
POLICIES = ("all-reduce", "server", "async-server", "stale-server", "local-sgd", "gossip", "push-sum", "ad-psgd",
            "partial-reduce")  # fmt: skip
SYNCHRONOUS = ("all-reduce", "server", "local-sgd", "gossip", "push-sum")
CONDITIONS: dict[str, tuple[Fault, ...]] = {
    "equal": (),
    "one late at times": tuple(SlowDown(1, SLOW, at_s, at_s + 0.35) for at_s in range(12)),
    "one slow": (SlowDown(1, SLOW),),
    "all slow at times": (DrawnSlowDowns(0.5, SLOW, 0.5, 60.0),),
    "one link at a tenth": (LinkRate((0, 1), 0.1),),
    "one killed": (Crash(3, KILLED_S),),
}
OFF, RANKS, SAME_LOSS = 0.15, 0.9, 1e-6
_STOPPING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM
Row = dict[str, Any]


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; exit status 1 if a figure is missed, 2 if there can't be such hosts."""
    parser = options(__doc__)
    parser.add_argument("--conditions", nargs="+", choices=list(CONDITIONS), default=list(CONDITIONS))
    parser.add_argument("--exchanges", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--workers", nargs="+", type=at_least(4), default=(4, 8), help="(default: 4 8)")
    parser.add_argument("--minutes", type=at_least(1), default=60, help="at most (default: %(default)s)")
    given = parser.parse_args(arguments)
    settings = {"steps": STEPS, "seed": SEED, "rate": RATE, "gradient_s": GRADIENT_S, "num_bytes": NUM_BYTES}
    results = Results(given.json, settings, runs={})
    for number in _STOPPING:
        signal.signal(number, _stop)
    signal.alarm(60 * given.minutes)
    wanted = [*itertools.product(given.workers, given.conditions, given.exchanges)]
    missing = [each for each in wanted if _name(*each) not in results["runs"]]
    try:
        for workers in sorted({each[0] for each in missing}):
            _measure(workers, [each[1:] for each in missing if each[0] == workers], results)
    except NotShownError as error:
        print(f"Not shown: {error}")
        return 2
    rows = [results["runs"][_name(*each)] for each in wanted]
    columns = {
        "exchange": "{policy}", "condition": "{condition}", "workers": "{workers}",
        "predicted": "{predicted_s:seconds}", "measured": "{measured_s:seconds}", "off": "{off:+.0%}",
        "to the loss, predicted": _to_loss("predicted"), "measured ": _to_loss("measured"),
        "ended by": lambda row: " and ".join(dict.fromkeys((row["predicted_end"], row["measured_end"]))),
        "losses apart": "{apart:.0e}",
    }  # fmt: skip
    return results.shown(Table.of(rows, columns), figures=_figures(rows))


def _measure(count: int, missing: Sequence[tuple[str, str]], results: Results) -> None:
    job = Job(problem("digits-mlp"), GRADIENT_S, optimizer=optax.sgd(RATE), num_bytes=NUM_BYTES)
    with real_workers(job, _cluster(count)) as workers:
        measured_job, cluster = workers.measured()
        assert isinstance(measured_job.compute_s, tuple)
        rates, latencies = (
            [[getattr(link, name) for link in row] for row in cluster.links] for name in ("bytes_per_s", "latency_s")
        )
        told = {"compute_s": measured_job.compute_s, "bytes_per_s": rates, "latency_s": latencies}

        def row(condition: str, policy: str) -> Row:
            run: Any = {"faults": CONDITIONS[condition], "until": Until(steps=STEPS), "looks": LOOKS, "seed": SEED}
            found = {"predicted": simulate(measured_job, cluster, policy, **run)}
            found["measured"] = workers.run(policy, **run)
            return {"policy": policy, "condition": condition, "workers": count, "told": told, **_row(**found)}

        for condition, policy in tqdm(missing, "runs"):
            results.known("runs", _name(count, condition, policy), row, condition, policy)


def _row(predicted: History, measured: History) -> Row:
    apart = abs(float(predicted.loss[-1] - measured.loss[-1]))
    row: Row = {"off": predicted.end_s / measured.end_s - 1, "apart": apart}
    for which, run in (("predicted", predicted), ("measured", measured)):
        row |= {
            f"{which}_s": run.end_s, f"{which}_loss_s": _or_none(run.seconds_to(LOSS)),
            f"{which}_end": run.end.partition(":")[0], f"{which}_loss": float(run.loss[-1]),
            f"{which}_looks": [run.time_s.tolist(), run.loss.tolist()],
        }  # fmt: skip
    return row


def _figures(rows: Sequence[Row]) -> list[Figure]:
    off = statistics.median(abs(row["off"]) for row in rows)
    to_loss = [[row[f"{which}_loss_s"] or math.inf for row in rows] for which in ("predicted", "measured")]
    ranks = float(spearmanr(*to_loss).statistic)
    alike = [row for row in rows if row["policy"] in SYNCHRONOUS and row["condition"] != "one killed"]
    apart = max((row["apart"] for row in alike), default=math.nan)
    ends = sum(row["predicted_end"] == row["measured_end"] for row in rows)
    pairs = f"{len(rows)} pairs of exchange and condition"
    return [
        Figure("virtual seconds", f"off the measured ones, median of {pairs}", f"at most {OFF:.0%}", f"{off:.1%}",
               off <= OFF),
        Figure("time to the loss", f"Spearman's rank correlation, {pairs}", f"at least {RANKS}", f"{ranks:.3f}",
               ranks >= RANKS),
        Figure("losses", f"of {len(alike)} synchronous runs, predicted from measured", f"at most {SAME_LOSS:g} apart",
               f"{apart:.1g}", apart <= SAME_LOSS),
        Figure("ends", f"as predicted, of {pairs}", "all", f"{ends}", ends == len(rows)),
    ]  # fmt: skip


def _name(workers: int, condition: str, policy: str) -> str:
    return f"{policy}, {condition}, {workers} workers"


def _to_loss(which: str) -> Any:
    from alpa_dejavu._util import units

    return lambda row: "never" if row[f"{which}_loss_s"] is None else units.seconds(row[f"{which}_loss_s"])


def _or_none(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _cluster(workers: int) -> Cluster:
    """A host for each worker, and a link of its own between each two."""
    plain = example_cluster(workers, 1)
    names = [host.name for host in plain.hosts]
    return Cluster.uniform("hosts", names, plain.hosts[0].device, 1, Link(1e-5, 1e10), Link(LATENCY_S, BYTES_PER_S))


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    """Leaves by an exception, so that everything is cleaned up, which nothing more interrupts."""
    for other in _STOPPING:
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGALRM:
        print("Not done in time: the same command goes on with the runs that are left.", flush=True)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main())
