"""The auto-sharding engine: how each operator of a program is cut over a logical mesh, and what that costs.

What a model's kept shardings need is a small part of it, so names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.sharding._mesh import CollectiveProfile, LogicalMesh, interpolate
    from alpa_dejavu.sharding._module import ShardedModule, shard_module
    from alpa_dejavu.sharding._operator import ProgramOperator
    from alpa_dejavu.sharding._options import ShardingOptions
    from alpa_dejavu.sharding._solve import Solution, solve
    from alpa_dejavu.sharding.solved import model_of_step, solver_of_step

__all__ = [
    "CollectiveProfile", "LogicalMesh", "ProgramOperator", "ShardedModule", "ShardingOptions", "Solution",
    "interpolate", "model_of_step", "shard_module", "solve", "solver_of_step",
]  # fmt: skip

_NAMES = {
    "_mesh": ("CollectiveProfile", "LogicalMesh", "interpolate"),
    "_module": ("ShardedModule", "shard_module"),
    "_operator": ("ProgramOperator",),
    "_options": ("ShardingOptions",),
    "_solve": ("Solution", "solve"),
    "solved": ("model_of_step", "solver_of_step"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
