"""Problems of models and clusters that the project ships: tables as a plan is made from."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.layers import most_layers, trace
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.problem import Cluster, Model, Run, SlicingProblem
from alpa_dejavu.sharding import model_of_step

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
