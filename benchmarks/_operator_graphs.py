"""Whole train steps as cost graphs: what the sharding engine has to choose for each operator, and what that costs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, final

from _measured_models import language_model, perceptron, unet
from alpa_dejavu.layers import cut_into_layers, trace
from alpa_dejavu.layers.models import model_function
from alpa_dejavu.sharding import LogicalMesh, ShardingOptions
from alpa_dejavu.sharding._blocks import Blocks
from alpa_dejavu.sharding._build_program import layer_program
from alpa_dejavu.sharding._graph import CostGraph, build_graph, merge_followers
from alpa_dejavu.sharding._ilp import MemoryRow, memory_rows
from alpa_dejavu.sharding._layer_program import LayerProgram
from alpa_dejavu.sharding._strategies import operator_tables
from alpa_dejavu.sharding.layers import layers_of

MODELS: dict[str, tuple[Callable[[int], Any], int]] = {
    "mlp": (lambda batch: perceptron(batch, [512, 2048, 2048, 2048, 512, 512, 64]), 256),
    "gpt-125m": (model_function("gpt-125m"), 16),
    "bert": (lambda batch: language_model(batch, 12, 768, 512, 30522, causal=False), 16),
    "moe-380m": (model_function("moe-380m"), 16),
    "wresnet-250m": (model_function("wresnet-250m"), 32),
    "unet": (lambda batch: unet(batch, 64, (64, 128, 256)), 16),
}
"""Model functions, and the samples of a micro-batch."""
MESHES = ((1, 4), (2, 2), (2, 4))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A graph in which nothing that costs INFINITY_COST may be chosen, and the memory limits of a budget in bytes."""

    graph: CostGraph
    limits: Callable[[float], tuple[MemoryRow, ...]]


def case_of(name: str, mesh_shape: tuple[int, int]) -> Case:
    """The whole step of a model on a mesh as the planner assumes meshes to be."""
    program, mesh, options = program_of(name), LogicalMesh(mesh_shape, (1.0, 1.0), (1.0, 0.1)), ShardingOptions()
    tables = operator_tables(program.facts, mesh, options)
    blocks = Blocks()
    followers = merge_followers(program.operators, tables, blocks)
    graph = build_graph(program.operators, tables, followers, blocks)
    return Case(graph.affordable(blocks), lambda budget: memory_rows(program.operators, tables, followers, budget))


@functools.cache
def program_of(name: str) -> LayerProgram:
    """All operators of a model's step."""
    function, batch = MODELS[name]
    layered = cut_into_layers(trace(function, batch=batch), 1)
    passes = layered.forward, layered.backward, layered.updates, layered.accumulators
    return layer_program(layers_of(*passes, layered.data, batch, layered.gradients))
