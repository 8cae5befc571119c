"""The auto-sharding engine: how each operator of a program is cut over a logical mesh, and what that costs."""

from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._module import ShardedModule, shard_module
from alpa_dejavu.sharding._operator import Operator
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._profile import CollectiveProfile
from alpa_dejavu.sharding._solve import Solution, solve

__all__ = [
    "CollectiveProfile", "LogicalMesh", "Operator", "ShardedModule", "ShardingOptions", "Solution", "shard_module",
    "solve",
]
