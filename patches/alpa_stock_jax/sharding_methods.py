"""What a ShardingSpec could do in jax 0.3.22: say its OpSharding, which cross-mesh resharding reads the tiles from."""

from __future__ import annotations

from types import ModuleType

from alpa_stock_jax._patch import Patch
from alpa_stock_jax.sharding_specs import sharding_proto


def _add_method(module: ModuleType) -> None:
    module.ShardingSpec.sharding_proto = sharding_proto


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="jax._src.sharding_specs",
        reason="a sharding specification says its OpSharding",
        apply=_add_method,
        expects={"ShardingSpec": None},
        before=True,
    ),
)
