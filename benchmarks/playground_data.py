"""Where the data go, in the playground: how samples are split over workers, and which are moved while a run goes.

    python benchmarks/playground_data.py [--seeds N] [--json FILE]

A network of 64-32-10 is trained on digits by ten workers, each on a host of its own, for 180 gradients each, 20 epochs.
A seed decides initial parameters, batches, splits, and what policies draw. Accuracy is that of the mean of all workers'
parameters on held-out digits. Learning rates are chosen of the same four for each exchange by the accuracy of full
shuffling with a seed that isn't judged, and hold for all policies.

- Splits: independent, dirichlet (labels over workers, alpha 0.1), and one label for each worker.
- Policies move 7 of a worker's 144 samples each epoch (5 %), of 260 bytes.
- Samples that came rest for 10 epochs before policies choose them, unless "no rest" is said.
- "Full" hands on all samples each epoch; "stay" hands on none.
- Equal bytes: the accuracy of both sides at the bytes at which the one that sends fewer ends.

Differences are of pairs with the same seed, with the 90 % interval by Student's t. Exit status 1 if a random share of
5 % is more than 0.01 behind full shuffling at equal steps.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu"}

import numpy as np
import optax
from tqdm import tqdm

from alpa_dejavu._util import units
from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground import Exchange, Job, Problem, Until, problem, simulate
from alpa_dejavu.playground.data import DataMove, Split, move, split
from alpa_dejavu.playground.exchanges import AllReduce, Gossip, LocalSteps
from alpa_dejavu.playground.topology import Graph
from alpa_dejavu.testing import example_cluster
from harness import Figure, Results, Table, at_least, options, wrong_input_told

WORKERS, STEPS, BATCH, GRADIENT_S, LOOKS, CONFIDENCE = 10, 180, 16, 0.01, 60, 0.9
RATES = (0.03, 0.1, 0.3, 1.0)
NEAR = 0.01
"""A share is near to full shuffling if its accuracy is at most so much below."""
SHARE = 7 / 143.7
EXCHANGES: Mapping[str, Exchange] = {"local-sgd, 16 steps": LocalSteps(16), "gossip on a ring": Gossip("ring")}
SPREAD: Mapping[str, Split] = {
    "independent": split("independent"),
    "dirichlet 0.1": split("dirichlet", alpha=0.1),
    "one label": split("by-label"),
}
MOVED: Mapping[str, DataMove | None] = {
    "stay": None,
    "full": move("random-share", share=1.0),
    "random, 7": move("random-share", share=SHARE),
    "highest loss": move("by-loss", share=SHARE),
    "highest loss, no rest": move("by-loss", share=SHARE, rest=0),
}
SAME = {"highest loss": "random, 7", "highest loss, no rest": "random, 7"}
"""The random exchange of the same bytes."""
STILL: Mapping[str, Split] = {
    **SPREAD,
    "dirichlet 0.1, workers over labels": split("dirichlet", alpha=0.1, definition="workers-over-labels"),
    "clusters": split("clusters"),
    "sorted": split("sorted"),
    "one label, 20 % moved to nearest samples": split("moved-points", base=split("by-label"), share=0.2),
}
CLIQUES = Graph(((4, 5), *((a + start, b + start) for start in (0, 5) for b in range(5) for a in range(b))))
GROUPED = {f"groups {groups}": split("by-label", groups=groups, group=5) for groups in ("similar", "different")}
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Bench:
    """Runs that are known, and how many seeds are judged."""

    results: Results
    seeds: int

    def run(self, exchange: str, way: Exchange, spread: str, cut: Split, moved: str, seed: int, rate: float) -> Row:
        """A run of a seed: steps, bytes and accuracy at each look."""

        def made() -> Row:
            job = Job(_problem("digits-mlp"), GRADIENT_S, BATCH, _sgd(rate), shards=cut, moves=MOVED[moved])
            history = simulate(job, example_cluster(WORKERS, 1), way, until=Until(steps=STEPS), seed=seed, looks=LOOKS)
            different = re.search(r"(\d+) different ones", " ".join(history.notes))
            return {"bytes": history.sent_bytes.tolist(), "accuracy": history.accuracy.tolist(),
                    "different": int(different[1]) if different else 0}  # fmt: skip

        name = f"{exchange}, {spread}, {moved}, rate {rate:g}, seed {seed}"
        return self.results.known("runs", name, made)

    def judged(self, exchange: str, way: Exchange, spread: str, cut: Split, moved: str) -> list[Row]:
        """The runs of all judged seeds."""
        rate = self.rate(exchange, way)
        return [self.run(exchange, way, spread, cut, moved, seed, rate) for seed in range(1, self.seeds + 1)]

    def rate(self, exchange: str, way: Exchange) -> float:
        """The learning rate of an exchange, by a seed that isn't judged."""

        def accuracy(rate: float) -> float:
            row = self.run(exchange, way, "independent", SPREAD["independent"], "full", 0, rate)
            return float(np.mean(row["accuracy"]))

        return max(RATES, key=accuracy)


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; exit status 1 if a small share isn't near to full shuffling."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=at_least(2), default=5, help="judged of each (default: %(default)s)")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"seeds": given.seeds})
    bench = Bench(results, given.seeds)
    cells = [(exchange, spread) for exchange in EXCHANGES for spread in SPREAD]
    rows, figures = list[Row](), list[Figure]()
    for exchange, spread in tqdm(cells, "moves"):
        runs = {name: bench.judged(exchange, EXCHANGES[exchange], spread, SPREAD[spread], name) for name in MOVED}
        rows += [_row(exchange, spread, name, runs) for name in MOVED]
        figures.append(_near(exchange, spread, runs))
    columns = {
        "split: moved": "{split}: {moved}", "different ones": "{different:.0f}",
        "sent": lambda row: units.traffic(row["bytes"]), "accuracy": "{accuracy}",
        "over full shuffling": "{full_steps}", "at equal bytes": "{full_bytes}",
        "over random of the same bytes": "{same_steps}",
    }  # fmt: skip
    tables = [Table.of([row for row in rows if row["exchange"] == exchange], columns,
                       f"{exchange}, at a rate of {bench.rate(exchange, EXCHANGES[exchange]):g}")
              for exchange in EXCHANGES]  # fmt: skip
    return results.shown(*tables, _still(bench), _grouped(bench), figures=figures)


def _row(exchange: str, spread: str, name: str, runs: Mapping[str, list[Row]]) -> Row:
    row = {"exchange": exchange, "split": spread, "moved": name,
           "bytes": float(np.mean([run["bytes"][-1] for run in runs[name]])),
           "different": float(np.mean([run["different"] for run in runs[name]])),
           "accuracy": _text([run["accuracy"][-1] for run in runs[name]])}  # fmt: skip
    if name != "full":
        row |= {"full_steps": _difference(runs[name], runs["full"]),
                "full_bytes": _difference(runs[name], runs["full"], at_bytes=True)}  # fmt: skip
    return row | ({"same_steps": _difference(runs[name], runs[SAME[name]])} if name in SAME else {})


def _near(exchange: str, spread: str, runs: Mapping[str, list[Row]]) -> Figure:
    behind = -np.mean(_differences(runs["random, 7"], runs["full"]))
    measured = _difference(runs["random, 7"], runs["full"])
    return Figure(f"{exchange}, {spread}", "accuracy of a random 5 % over full shuffling, equal steps",
                  f"at least -{NEAR:g}", measured, bool(behind <= NEAR))  # fmt: skip


def _still(bench: Bench) -> Table:
    rows = []
    for exchange in ("all-reduce", "local-sgd, 16 steps"):
        way = EXCHANGES.get(exchange, AllReduce())
        plain = bench.judged(exchange, way, "independent", SPREAD["independent"], "stay")
        for name, cut in STILL.items():
            runs = bench.judged(exchange, way, name, cut, "stay")
            rows.append({"exchange": exchange, "split": name, "accuracy": _text([run["accuracy"][-1] for run in runs]),
                         **({} if name == "independent" else {"over": _difference(runs, plain)})})  # fmt: skip
    columns = {"split": "{split}", "exchange": "{exchange}", "accuracy": "{accuracy}", "over independent": "{over}"}
    return Table.of(sorted(rows, key=lambda row: [*STILL].index(row["split"])), columns, "Splits, nothing is moved")


def _grouped(bench: Bench) -> Table:
    ways = {"gossip in two cliques with one link": Gossip(CLIQUES), "gossip on a ring": Gossip("ring")}
    rows = []
    for exchange, way in ways.items():
        similar, different = (bench.judged(exchange, way, name, cut, "stay") for name, cut in GROUPED.items())
        rows.append({"exchange": exchange, "similar": _text([run["accuracy"][-1] for run in similar]),
                     "different": _text([run["accuracy"][-1] for run in different]),
                     "over": _difference(similar, different)})  # fmt: skip
    columns = {"exchange": "{exchange}", "similar labels in a group": "{similar}", "different ones": "{different}",
               "similar over different": "{over}"}  # fmt: skip
    return Table.of(rows, columns, "One label for each worker, in two groups of five")


def _differences(runs: Sequence[Row], others: Sequence[Row], at_bytes: bool = False) -> list[float]:
    """Accuracies over those of others, by seed, at the end, or at the bytes at which one of both ends first."""
    if not at_bytes:
        return [run["accuracy"][-1] - other["accuracy"][-1] for run, other in zip(runs, others, strict=True)]
    found = []
    for run, other in zip(runs, others, strict=True):
        end = min(run["bytes"][-1], other["bytes"][-1])
        mine, theirs = (float(np.interp(end, one["bytes"], one["accuracy"])) for one in (run, other))
        found.append(mine - theirs)
    return found


def _difference(runs: Sequence[Row], others: Sequence[Row], at_bytes: bool = False) -> str:
    return _text(_differences(runs, others, at_bytes), "+.3f")


def _text(values: Sequence[float], form: str = ".3f") -> str:
    found = Interval.of([*values], CONFIDENCE)
    return f"{found.mean:{form}} ({found.low:{form}} to {found.high:{form}})"


@functools.cache
def _problem(name: str) -> Problem:
    return problem(name)


@functools.cache
def _sgd(rate: float) -> Any:
    return optax.sgd(rate)


if __name__ == "__main__":
    raise SystemExit(main())
