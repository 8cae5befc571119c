"""Whether `dynamic` finds the optimum, by all slicings there are, and where Alpa's programs don't."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from tqdm import tqdm

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.layers import most_layers, trace
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.problem import Cluster, Model, Run, Slicing, SlicingProblem
from alpa_dejavu.sharding import model_of_step
from alpa_dejavu.slicing import Exhaustive, slicer
from alpa_dejavu.testing import random_problem
from harness import Figure
from slicers._alpa import PEERS, solve
from slicers._figure import Part, Scale
from slicers._problems import by_work, powers

SAME = 1e-9
"""Relative."""
_UP = 2.0**20
"""Multiplying by it changes no float32 but its exponent, and makes steps of 1e-6 s as fine as 1e-12 s."""
_LISTED = 10


def measured(scale: Scale) -> Part:
    """Equal to `exhaustive` on small tables, never costlier than Alpa's programs on random and real ones."""
    figures, details = _against_all(scale.random)
    for kind, count, problems in (
        ("random", scale.random, random_tables(scale.random)),
        ("real", scale.real, real_problems(scale.real)),
    ):
        rows = [row for name, problem in tqdm(problems, kind, count) for row in _against_peers(name, problem)]
        figures += [_never_costlier(kind, peer, [row for row in rows if row["peer"] == peer]) for peer in PEERS]
        missed = sorted((row for row in rows if row["excess"] > SAME), key=lambda row: -row["excess"])
        details[f"alpa_misses_{kind}"] = missed[:_LISTED]
        details[f"alpa_missed_{kind}"] = {peer: _causes(missed, peer) for peer in PEERS}
    return Part(tuple(figures), details)


def random_tables(count: int) -> Iterator[tuple[str, SlicingProblem]]:
    """Small ones, whose layers take between 0.2 and 20 ms on a device."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        num_layers, num_devices = int(rng.integers(2, 9)), int(2 ** rng.integers(1, 4))
        size = int(2 ** rng.integers(0, 8))
        problem = by_work(rng, num_layers, num_devices, powers(8), size, num_configs=2, noise=0.3)
        scaled = problem.costs_s * 10 ** rng.uniform(-2, 0)
        yield f"random table {seed}", dataclasses.replace(problem, costs_s=scaled)


def _against_all(count: int) -> tuple[list[Figure], dict[str, Any]]:
    rng, dynamic, worst = np.random.default_rng(0), slicer("dynamic"), 0.0
    for n in tqdm(range(count), "all slicings"):
        problem = random_problem(rng, num_layers=int(rng.integers(1, 5)), limited=bool(n % 2))
        problem = dataclasses.replace(
            problem,
            devices="at most" if n % 3 == 0 else "exactly",
            num_stages=int(rng.integers(1, 4)) if n % 5 == 0 else None,
        )
        worst = max(worst, _apart(dynamic.slice(problem), Exhaustive().slice(problem)))
    said = f"largest difference {worst:.1g}"
    figure = Figure("dynamic", f"{count} small tables", f"exhaustive's optimum to {SAME:g}", said, worst <= SAME)
    return [figure], {"exhaustive_worst": worst}


def _apart(ours: Slicing, truth: Slicing) -> float:
    if ours.cost_s == truth.cost_s:
        return 0.0
    return abs(ours.cost_s / truth.cost_s - 1) if truth.found and ours.found else np.inf


def _against_peers(name: str, problem: SlicingProblem) -> Iterator[dict[str, Any]]:
    """For each of Alpa's programs by how much its cost is above ours, and why."""
    ours = slicer("dynamic").slice(problem)
    for peer in PEERS:
        excess = _excess(peer, problem, ours.cost_s)
        row = {"problem": name, "peer": peer, "optimum_s": ours.cost_s, "excess": excess, "cause": ""}
        if excess > SAME:
            finer = dataclasses.replace(problem, costs_s=problem.costs_s * _UP)
            row["cause"] = "float32" if _excess(peer, finer, ours.cost_s * _UP) > SAME else "steps of 1e-6 s"
        yield row


def _excess(peer: str, problem: SlicingProblem, optimum_s: float) -> float:
    """How far Alpa's is above ours; below zero if it is better, infinite if it alone finds none."""
    found = solve(peer, problem).cost_s
    return 0.0 if found == optimum_s else found / optimum_s - 1 if np.isfinite(optimum_s) else -np.inf


def _never_costlier(kind: str, peer: str, rows: list[dict[str, Any]]) -> Figure:
    costlier = sum(row["excess"] < -SAME for row in rows)
    missed = [row for row in rows if row["excess"] > SAME]
    most = max((row["excess"] for row in missed), default=0.0)
    said = f"costlier on {costlier}; alpa's costlier on {len(missed)}, by {100 * most:.2g} % at most"
    return Figure("dynamic", f"{len(rows)} {kind} tables", f"never costlier than {peer}", said, not costlier)


def _causes(missed: list[dict[str, Any]], peer: str) -> dict[str, int]:
    causes = [row["cause"] for row in missed if row["peer"] == peer]
    return {cause: causes.count(cause) for cause in sorted(set(causes))}


MODELS = ("gpt-760m", "gpt-1.3b", "moe-690m", "wresnet-500m", "wresnet-1b")
MICRO_BATCHES = (32, 64, 128, 256)
HOSTS = (1, 2)
LAYERS = 8
CLUSTER, BATCH, _TRACED = "p3.16xlarge", 1024, 8


def real_problems(count: int) -> Iterator[tuple[str, SlicingProblem]]:
    """The first so many, each with a name; as Alpa's table has it, so without what comes once a step."""
    for name, hosts, micro_batches in itertools.islice(itertools.product(MODELS, HOSTS, MICRO_BATCHES), count):
        problem = table_of(_model(name), named_cluster(CLUSTER, hosts), micro_batches)
        yield f"{name} on {hosts} x {CLUSTER}, {micro_batches} micro-batches", problem


def table_of(model: Model, cluster: Cluster, micro_batches: int) -> SlicingProblem:
    """The problem of a model, traced with `_TRACED` samples, on a cluster; by data sheets."""
    micro_batch, run = BATCH // micro_batches, Run(micro_batches, "1f1b")
    sized = with_micro_batch(model, micro_batch / _TRACED)
    space = search_space(cluster, micro_batch, remat=("none", "layer"))
    if sized.sharding is not None:
        sized.sharding.prepare(config for row in space.configs for config in row if config is not None)
    table = cost_table(sized, cluster, space, run, CostModels.named())
    problem = table.slicing_problem(cluster, space, run)
    return SlicingProblem(
        np.ascontiguousarray(table.compute_costs_s), problem.submesh_sizes, problem.num_devices, micro_batches,
        np.ascontiguousarray(problem.room),
    )  # fmt: skip


@functools.cache
def _model(name: str) -> Model:
    """A model in layers."""
    step = trace(name, batch=_TRACED)
    return model_of_step(step, most_layers(step, LAYERS))
