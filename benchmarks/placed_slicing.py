"""How long the placed search takes, and what it may have missed, on made-up clusters of unlike hosts.

    python benchmarks/placed_slicing.py [--json OUT] [--seeds N]

Four sets of problems, each drawn from its seed: layers of even and of uneven work on 8 kinds of hosts, 64 hosts of 8
devices (48 layers, 3 configs); `small` against all slicings there are; and `uniform` (one kind; the same answer is
asked for with sites and without). A stage costs its layers' work over its devices' rate, and what more devices lose on
collectives; the kinds' rates are between 1 and 4. `seconds` are wall time of this
machine, `cpu_s` what this process had of it; one core is used.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import Sites, SlicingProblem
from alpa_dejavu.slicing import Dynamic, Exhaustive, Uniform
from harness import Results, Table, at_least, options

PER_HOST = 8
"""Devices of a host."""
COLUMNS = {
    **{name: f"{{{name}}}" for name in ("case", "seed", "rounds", "stages", "same")},
    **{name: f"{{{name}:.4g}}" for name in ("seconds", "cpu_s", "other_seconds", "cost_s", "gap", "uniform_over_ours")},
}
CONFIG_COSTS = (1.0, 1.06, 1.15)
"""What a stage's configs cost, next to the first's; the dearer ones leave more room in memory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Solves all and shows them; exit status 1 if an answer that has to be the same isn't."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=at_least(1), default=3, help="problems of each set (default: %(default)s)")
    given = parser.parse_args(arguments)
    seeds = range(given.seeds)
    rows = [_row("even layers", seed, made_up(seed, 48, [8] * 8, 128, uneven=0.02), None) for seed in seeds]
    rows += [_row("uneven layers", seed, made_up(seed, 48, [8] * 8, 128), None) for seed in seeds]
    rows += [_row("small", seed, made_up(seed, 4, [1, 1], 8, per_host=2), "exhaustive") for seed in seeds]
    rows += [_row("uniform", seed, made_up(seed, 48, [8], 128), "no sites") for seed in seeds]
    Results(given.json, cases=rows).shown(Table.of(rows, COLUMNS))
    return 0 if all(row.get("same", True) for row in rows) else 1


def made_up(
    seed: int, num_layers: int, hosts: list[int], num_micro_batches: int, per_host: int = PER_HOST, uneven: float = 0.3
) -> SlicingProblem:
    """A problem with so many hosts of each kind; layers' works differ from the mean by `uneven` at most."""
    rng = np.random.default_rng(seed)
    num_kinds = len(hosts)
    rates = np.exp(rng.uniform(0.0, np.log(4.0), num_kinds))
    uses = np.array(_uses(hosts, per_host))
    sizes, home = uses.sum(axis=1), uses.argmax(axis=1)
    slowest = np.array([rates[row > 0].min() for row in uses])
    # Beyond a host every doubling loses more than within one.
    lost = 1 + 0.03 * np.log2(np.minimum(sizes, per_host)) + 0.12 * np.log2(np.maximum(sizes / per_host, 1))
    lost += 0.15 * ((uses > 0).sum(axis=1) > 1)
    works = rng.uniform(1 - uneven, 1 + uneven, num_layers)
    ends = np.concatenate([[0.0], np.cumsum(works)])
    work = np.maximum(ends[None, 1:] - ends[:-1, None], 0.0)
    costs = work[:, :, None] / (sizes * slowest) * lost
    table = costs[..., None] * np.array(CONFIG_COSTS)
    room = _room(num_layers, sizes, rng.uniform(2.0, 4.0, len(sizes)))
    links, num_links = _links(home, num_kinds, rng)
    per_layer = works.mean() / rates.mean() / per_host
    crossing = per_layer * rng.uniform(0.02, 0.05, (num_layers, 1)) * 2.0 ** np.arange(num_links)
    sites = Sites(uses, np.array(hosts) * per_host, links, crossing)
    return SlicingProblem(
        table, sizes, int(sites.available.sum()), num_micro_batches, room, table / 2, devices="at most", sites=sites
    )


def _uses(hosts: list[int], per_host: int) -> list[list[int]]:
    """Parts of a host, whole hosts of a kind, and a host of each of two neighbouring kinds."""
    uses = []
    for kind, count in enumerate(hosts):
        size = 1
        while size <= count * per_host:
            uses.append([size if k == kind else 0 for k in range(len(hosts))])
            size *= 2
    for kind in range(0, len(hosts) - 1, 2):
        uses.append([per_host if k in (kind, kind + 1) else 0 for k in range(len(hosts))])
    return uses


def _room(num_layers: int, sizes: NDArray[np.int64], memory: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many stages may follow: the fewer, the more layers a device holds; shape (L, L, S, configs)."""
    layers = np.maximum(np.arange(num_layers)[None, :] - np.arange(num_layers)[:, None] + 1, 1)
    held = layers[:, :, None, None] / sizes[:, None] / np.array([1.0, 2.0, 4.0])
    return np.maximum(np.floor(8 * memory[:, None] / held), -1).astype(np.int64)


def _links(home: NDArray[np.int64], num_kinds: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], int]:
    """Between stages on one kind of host the fastest links, between others one of three classes."""
    between = rng.integers(1, 4, (num_kinds, num_kinds))
    between = np.maximum(between, between.T)
    np.fill_diagonal(between, 0)
    return between[np.ix_(home, home)], 4


def _row(case: str, seed: int, problem: SlicingProblem, against: str | None) -> dict[str, object]:
    started = time.process_time()
    found = Dynamic().slice(problem)
    row: dict[str, object] = {
        "case": case, "seed": seed, "seconds": found.seconds, "cpu_s": time.process_time() - started,
        "rounds": found.iterations, "cost_s": found.cost_s, "gap": found.gap, "stages": len(found.stages),
    }  # fmt: skip
    if against is None:
        row["uniform_over_ours"] = Uniform().slice(problem).cost_s / found.cost_s
        return row
    if against == "exhaustive":
        other = Exhaustive().slice(problem)
    else:
        assert problem.sites is not None
        crossing = problem.sites.crossing_s[:, :1, None, None].copy()
        crossing[0] = 0.0
        other = Dynamic().slice(dataclasses.replace(problem, costs_s=problem.costs_s + crossing, sites=None))
    row |= {"other_seconds": other.seconds, "same": abs(other.cost_s - found.cost_s) <= 1e-9 * other.cost_s}
    return row


if __name__ == "__main__":
    raise SystemExit(main())
