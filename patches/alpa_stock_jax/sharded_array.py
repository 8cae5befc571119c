"""Arrays that lie in pieces on the devices of a local mesh, with what Alpa asks of jax 0.3.22's ShardedDeviceArray.

The array is a plain `jax.Array`, so jax's own functions take it; what Alpa asks for beyond (`sharding_spec`, `indices`,
`device_buffers`) is read from its sharding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax._src.array import ArrayImpl
from jax._src.sharding_impls import GSPMDSharding
from jax._src.sharding_specs import ShardingSpec, spec_to_indices

from alpa_stock_jax._patch import Patch
from alpa_stock_jax.sharding_specs import hashable_index, sharding_proto

__all__ = ["MeshSharding", "ShardedDeviceArray", "make_sharded_array"]


class MeshSharding(GSPMDSharding):
    """A sharding on devices, numbered row by row over Alpa's logical mesh, that remembers Alpa's specification."""

    def __init__(self, devices: Sequence[Any], sharding_spec: ShardingSpec) -> None:
        super().__init__(tuple(devices), sharding_proto(sharding_spec))
        self.sharding_spec = sharding_spec

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._devices, self.sharding_spec)


class _HasMeshSharding(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, ArrayImpl) and isinstance(instance.sharding, MeshSharding)


class ShardedDeviceArray(metaclass=_HasMeshSharding):
    """The type of arrays on a local mesh, for `isinstance` only: they are `jax.Array`s with a `MeshSharding`."""


def make_sharded_array(
    aval: Any, sharding_spec: ShardingSpec, buffers: Sequence[Any], indices: Sequence[Any] | None = None
) -> jax.Array:
    """An array from its pieces, one single-device array on each device of the mesh.

    Args:
        aval: shape and dtype of the whole array.
        sharding_spec: which piece is on which device.
        buffers: the pieces, in the order of the mesh's devices.
        indices: not needed; the specification says them.
    """
    devices = [next(iter(buffer.devices())) for buffer in buffers]
    return ArrayImpl(aval, MeshSharding(devices, sharding_spec), list(buffers), committed=True, _skip_checks=True)


def _sharding_spec(array: Any) -> ShardingSpec:
    if not isinstance(array.sharding, MeshSharding):
        raise AttributeError(f"an array on {array.sharding} has no sharding_spec; only arrays on a mesh of Alpa have")
    return array.sharding.sharding_spec


def _indices(array: Any) -> tuple[Any, ...]:
    return spec_to_indices(array.shape, _sharding_spec(array))


def _one_replica_buffers(array: Any) -> list[Any]:
    """A piece for each distinct index, in the order of the devices."""
    pieces: Mapping[Any, Any] = {}
    for index, buffer in zip(_indices(array), array._arrays, strict=True):
        pieces.setdefault(hashable_index(index), buffer)  # type: ignore[attr-defined]
    return list(pieces.values())


def _add_attributes(array_class: Any) -> None:
    array_class.sharding_spec = property(_sharding_spec)
    array_class.indices = property(_indices)
    array_class.device_buffers = property(lambda array: list(array._arrays))
    array_class.device_buffer = property(lambda array: array._arrays[0])
    array_class.one_replica_buffers = property(_one_replica_buffers)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="jax._src.array",
        reason="arrays tell the pieces and the specification of their sharding, as ShardedDeviceArray did",
        apply=lambda module: _add_attributes(module.ArrayImpl),
        expects={"ArrayImpl": None, "ArrayImpl.sharding": None, "ArrayImpl._arrays": None},
        before=True,
    ),
)
