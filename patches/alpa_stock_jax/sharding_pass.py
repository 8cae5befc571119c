"""The auto-sharding pass: the engine of `alpa_dejavu.sharding`, with the options that Alpa set for its own."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from alpa_dejavu.sharding import CollectiveProfile, LogicalMesh, ShardedModule, ShardingOptions, shard_module
from alpa_dejavu.sharding.hlo import HloModuleProto
from alpa_stock_jax.partition import propagate
from alpa_stock_jax.pass_context import option

__all__ = ["shard", "solution_vector", "without_shardings"]

_logger = logging.getLogger(__name__)
_PREFIX = "auto_sharding::"
# Alpa's names of options that the engine calls the same.
_SAME_NAME = (
    "enable", "memory_budget_per_device", "allow_replicated_parameters", "prefer_reduce_scatter",
    "reduce_scatter_grad_acc_friendly", "reduce_scatter_aggressive_partition", "batch_matmul_always_split_batch",
    "allow_recompute_heavy_op", "allow_mixed_mesh_shape", "grad_acc_num_micro_batches", "force_batch_dim_to_mesh_dim",
    "force_simple_heuristic",
)  # fmt: skip


def shard(module: HloModuleProto, num_partitions: int, free_output: bool) -> ShardedModule:
    """Annotates a flat, simplified module by the options in the pass context.

    Args:
        module: may carry shardings of parameters and results.
        num_partitions: of how many partitions.
        free_output: whether given shardings of results may be changed where the engine isn't used.

    Raises:
        RuntimeError: if nothing meets the memory budget.
    """
    mesh = _mesh(num_partitions)
    try:
        sharded = shard_module(module, mesh, _options())
    except ValueError as error:
        if "budget" not in str(error):
            raise
        raise RuntimeError(str(error)) from error
    if sharded.solution is None:
        return ShardedModule(propagate(sharded.module, num_partitions, free_output), sharded.objective, None)
    return sharded


def solution_vector(sharded: ShardedModule) -> np.ndarray | None:
    """What the solver chose, as the vector that Alpa keeps of its solver."""
    if sharded.solution is None:
        return None
    choices: Any = getattr(sharded.solution, "choices", ())
    return np.array(choices, np.int32)


def _mesh(num_partitions: int) -> LogicalMesh:
    shape = option(_PREFIX + "device_mesh_shape")
    if shape is None:
        return LogicalMesh((1, num_partitions))
    profile = option(_PREFIX + "device_mesh_prof_result")
    return LogicalMesh(
        tuple(int(length) for length in shape),
        tuple(option(_PREFIX + "device_mesh_alpha")),
        tuple(option(_PREFIX + "device_mesh_beta")),
        tuple(int(i) for i in option(_PREFIX + "device_mesh_ids")),
        None if profile is None else _profile(profile),
    )


def _profile(result: Any) -> CollectiveProfile | None:
    return CollectiveProfile.from_dicts(result.all_reduce_cost_dict, result.all_gather_cost_dict)


def _options() -> ShardingOptions:
    given: dict[str, Any] = {}
    for name in _SAME_NAME:
        value = option(_PREFIX + name)
        if value is not None:
            given[name] = value
    for kind in ("all_gather", "all_to_all"):
        if option(f"{_PREFIX}force_{kind}_cost", False):
            given[f"{kind}_cost"] = option(f"{_PREFIX}{kind}_cost")
    return ShardingOptions(**given)


def without_shardings(module: HloModuleProto) -> HloModuleProto:
    """A copy of the module without any sharding, for one device."""
    module = HloModuleProto.FromString(module.SerializeToString())
    for part in module.computations:
        for node in part.instructions:
            node.ClearField("sharding")
    module.ClearField("spmd_parameters_shardings")
    module.ClearField("spmd_output_sharding")
    return module
