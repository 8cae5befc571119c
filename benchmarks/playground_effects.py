"""Effects that were published of ways to exchange gradients, in the playground, at small size.

    python benchmarks/playground_effects.py [--seeds N] [--json FILE]

A network of 64-32-10 is trained on digits by eight workers, each on a host of its own, to a held-out loss of 0.3. Each
effect sets two exchanges beside each other with the same seeds. A seed decides initial parameters, batches and how
compute seconds vary. Learning rates are chosen for both sides alike, of the same four, by the virtual seconds to
that loss with seeds that aren't judged (100 to 102). The ratio is of the seconds of the second one over those of the
first, its mean a geometric one, with the 90 % interval by Student's t over seeds; that of a step is of the seconds in
which all workers have had all steps. Exit status 1 if an effect doesn't come out.

- Partial reduce (groups of four) is 1.2 to 2 times faster than all-reduce where one worker takes twice as long, and
  more than 1.2 times where it takes three times as long.
- Gossip is ahead of all-reduce at equal seconds where links are slow: a latency of 5 ms, half of a gradient's seconds.
- Random peers are ahead of a ring with as many messages, where each worker has the samples of few digits.
- Waves that may be stale by four (HetPipe) are ahead of those that may not on unlike workers: half take 1.5 times as
  long, and the seconds of all vary much from step to step; or each takes four times as long now and then, for 30
  gradients' seconds, on the mean 13 % of the time.

References:
    Miao and others, Heterogeneity-Aware Distributed Machine Learning Training via Partial Reduce, SIGMOD 2021.
    Lian and others, Can Decentralized Algorithms Outperform Centralized Algorithms?, NIPS 2017.
    De Vos and others, Epidemic Learning: Boosting Decentralized Learning with Randomized Communication, NeurIPS 2023.
    Park and others, HetPipe, USENIX ATC 2020.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu"}

import numpy as np
import optax
from tqdm import tqdm

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground import Exchange, Job, Until, problem, simulate
from alpa_dejavu.playground.exchanges import AllReduce, Gossip, HetPipeWaves, PartialReduce
from alpa_dejavu.playground.fault import DrawnSlowDowns, Fault
from alpa_dejavu.playground.topology import RandomPeers
from alpa_dejavu.problem import Cluster, Link
from alpa_dejavu.testing import example_cluster
from harness import Figure, Results, Table, at_least, options, wrong_input_told

WORKERS, LOSS, CONFIDENCE, TUNED = 8, 0.3, 0.9, (100, 101, 102)
RATES, WAVE_RATES = (0.1, 0.3, 1.0, 3.0), (0.1, 0.15, 0.2, 0.3)
GRADIENT_S, LATENCY_S = 0.01, 5e-3
SLOW = ((2.0, 1.2, 2.0), (3.0, 1.2, math.inf))
"""How much slower the slow worker is, and how many times as fast partial reduce should be at least and at most."""
UNLIKE_S = (GRADIENT_S,) * (WORKERS // 2) + (1.5 * GRADIENT_S,) * (WORKERS // 2)
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Effect:
    """Two exchanges of which the first should be faster, by a ratio of seconds within bounds."""

    name: str
    faster: Exchange
    slower: Exchange
    least: float = 1.0
    most: float = math.inf
    compute_s: tuple[float, ...] = (GRADIENT_S,) * WORKERS
    latency_s: float = 1e-4
    few_digits: bool = False
    spread: float = 0.1
    faults: tuple[Fault, ...] = ()
    rates: tuple[float, ...] = RATES
    steps: int = 150

    def run(self, which: str, rate: float, seed: int) -> dict[str, float]:
        """Virtual seconds of the "faster" or "slower" exchange to the loss (else infinity), and of all's step."""
        trained = problem("digits-mlp")
        shards = _few_digits(trained.train[1]) if self.few_digits else None
        job = Job(trained, self.compute_s, optimizer=optax.sgd(rate), spread=self.spread, shards=shards)
        run = simulate(job, _cluster(self.latency_s), getattr(self, which), until=Until(steps=self.steps),
                       looks=self.steps, seed=seed, faults=self.faults)  # fmt: skip
        return {"s": run.seconds_to(LOSS), "step_s": run.end_s / self.steps}

    def row(self, results: Results, seeds: int) -> Row:
        """The result: a row of a table."""
        seconds: dict[str, list[float]] = {}
        steps_s: dict[str, list[float]] = {}
        rates: dict[str, float] = {}
        for which in ("faster", "slower"):

            def known(rate: float, seed: int, which: str = which) -> Row:
                name = f"{self.name}, {which}, rate {rate:g}, seed {seed}"
                return results.known("runs", name, self.run, which, rate, seed)

            rates[which] = min(self.rates, key=lambda rate: sum(known(rate, seed)["s"] for seed in TUNED))
            every = [known(rates[which], seed) for seed in range(1, seeds + 1)]
            seconds[which], steps_s[which] = ([one[key] for one in every] for key in ("s", "step_s"))
        ratios = np.divide(seconds["slower"], seconds["faster"])
        found = Interval.of(np.log(ratios).tolist(), CONFIDENCE).exp()
        step = Interval.of(np.log(np.divide(steps_s["slower"], steps_s["faster"])).tolist(), CONFIDENCE).exp()
        return {"name": self.name, "faster": str(self.faster), "slower": str(self.slower), "rates": rates,
                "faster_s": float(np.mean(seconds["faster"])), "slower_s": float(np.mean(seconds["slower"])),
                "ratio": found.mean, "low": found.low, "high": found.high, "step": step.mean}  # fmt: skip

    def figure(self, row: Row) -> Figure:
        """Whether it comes out: the whole interval is above the least ratio, and the mean isn't over the most."""
        aim = f"above {self.least:g}" + (f", at most {self.most:g}" if math.isfinite(self.most) else "")
        measured = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        return Figure(self.name, "times faster", aim, measured, row["low"] > self.least and row["ratio"] <= self.most)


EFFECTS = (
    *(
        Effect(f"partial reduce, one worker {slow:g} times as slow", PartialReduce(WORKERS // 2), AllReduce(),
               least, most, (GRADIENT_S,) * (WORKERS - 1) + (slow * GRADIENT_S,))
        for slow, least, most in SLOW
    ),
    Effect("gossip on slow links", Gossip("ring"), AllReduce(), latency_s=LATENCY_S),
    Effect("random peers against a ring", Gossip(RandomPeers(2)), Gossip("ring"), few_digits=True,
           steps=400),
    Effect("stale waves, unlike workers", HetPipeWaves(distance=4), HetPipeWaves(distance=0), compute_s=UNLIKE_S,
           spread=0.5, rates=WAVE_RATES, steps=400),
    Effect("stale waves, workers slow at times", HetPipeWaves(distance=4), HetPipeWaves(distance=0), rates=WAVE_RATES,
           steps=400, faults=(DrawnSlowDowns(per_s=0.5, factor=4.0, for_s=30 * GRADIENT_S, until_s=60.0),)),
)  # fmt: skip


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; exit status 1 if an effect doesn't come out."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=at_least(2), default=12, help="judged of each effect (default: %(default)s)")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"seeds": given.seeds})
    rows = [effect.row(results, given.seeds) for effect in tqdm(EFFECTS, "effects")]
    columns = {
        "effect": "{name}",
        "exchange": "{faster}",
        "against": "{slower}",
        "rates": "{rates[faster]:g} and {rates[slower]:g}",
        "seconds": "{faster_s:seconds}",
        "against, seconds": "{slower_s:seconds}",
        "a step, times": "{step:.2f}",
    }
    figures = [effect.figure(row) for effect, row in zip(EFFECTS, rows, strict=True)]
    return results.shown(Table.of(rows, columns), figures=figures)


def _cluster(latency_s: float) -> Cluster:
    """A host for each worker, whose links have a latency."""
    plain = example_cluster(WORKERS, 1)
    names = [host.name for host in plain.hosts]
    return Cluster.uniform("hosts", names, plain.hosts[0].device, 1, Link(1e-5, 1e10), Link(latency_s, 1e9))


def _few_digits(targets: Any) -> list[list[int]]:
    """The samples of each worker: sorted by digit, and cut into equal parts."""
    return [part.tolist() for part in np.array_split(np.argsort(targets, kind="stable"), WORKERS)]


if __name__ == "__main__":
    raise SystemExit(main())
