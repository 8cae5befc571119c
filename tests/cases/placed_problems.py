"""Made-up slicing problems over several kinds of hosts, of which each computes at a rate of its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import Sites, SlicingProblem, StageChoice
from alpa_dejavu.slicing._graph import StageGraph
from alpa_dejavu.slicing._stages import Stages, stages_of

PER_HOST = 8
"""Devices of a host."""
CONFIG_COSTS = (1.0, 1.06, 1.15)
"""What a stage's configs cost, next to the first's; the dearer ones leave more room in memory."""


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


def graph_of(problem: SlicingProblem) -> tuple[StageGraph, Stages]:
    """The graph of a problem's stages on hosts that are alike, and the stages."""
    stages, layers = stages_of(problem), np.arange(problem.num_layers + 1)
    arcs = np.arange(len(stages.first))
    graph = StageGraph(layers, problem.num_layers, stages.first, stages.last + 1, stages.size, stages.weight, arcs)
    return graph, stages


def all_plans(problem: SlicingProblem) -> list[tuple[StageChoice, ...]]:
    """All slicings of finite costs that a problem allows."""
    entries = np.argwhere(np.isfinite(problem.costs_s)).tolist()

    def after(first: int) -> Iterator[tuple[StageChoice, ...]]:
        if first == problem.num_layers:
            yield ()
        for i, j, s, c in entries:
            if i == first <= j:
                yield from ((StageChoice(i, j, s, c), *rest) for rest in after(j + 1))

    plain = dataclasses.replace(problem, objective="work")
    return [stages for stages in after(0) if math.isfinite(plain.total_s(stages))]
