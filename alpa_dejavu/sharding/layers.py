"""Sharding of layers straight from their jaxprs: nothing is lowered or compiled.

Not among the names of `alpa_dejavu.sharding`, since reading jaxprs takes jax.
"""

from __future__ import annotations

from collections.abc import Sequence

from alpa_dejavu.sharding._layer_jaxprs import LayerJaxprs, layers_of
from alpa_dejavu.sharding._layer_sharding import (
    COLLECTIVE_KINDS,
    MEMORY,
    PHASES,
    Collective,
    LayerSharding,
    ShardingTable,
)
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._options import ShardingOptions

__all__ = [
    "COLLECTIVE_KINDS",
    "MEMORY",
    "PHASES",
    "Collective",
    "LayerJaxprs",
    "LayerSharding",
    "ShardingTable",
    "layers_of",
    "shard_layer",
    "sharded_layers",
]


def shard_layer(layer: LayerJaxprs, mesh: LogicalMesh, options: ShardingOptions, zero: int = 0) -> LayerSharding:
    """How a layer is cut over a mesh when it stands alone."""
    raise NotImplementedError


def sharded_layers(
    layers: Sequence[LayerJaxprs],
    meshes: Sequence[LogicalMesh],
    options: Sequence[ShardingOptions],
    zero: Sequence[int] = (),
) -> ShardingTable:
    """All layers on all meshes."""
    raise NotImplementedError
