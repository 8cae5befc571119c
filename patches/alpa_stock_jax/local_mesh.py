"""Arguments and results of a local mesh: cut onto its devices, and put together as arrays, by today's jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax._src.array import ArrayImpl
from jax.interpreters import xla

from alpa_stock_jax._patch import Patch
from alpa_stock_jax.sharded_array import MeshSharding, ShardedDeviceArray
from alpa_stock_jax.sharding_specs import hashable_index

__all__ = ["shard_argument"]


def shard_argument(argument: Any, devices: Sequence[Any], indices: Sequence[Any], keep: bool = True) -> list[Any]:
    """The pieces of an argument on the devices of a mesh.

    Args:
        argument: a number, a numpy array or a jax array of any sharding.
        devices: the mesh's devices.
        indices: which piece each of them gets.
        keep: whether the argument may share its memory with the pieces (not if it is deleted or donated).

    Returns:
        A single-device array for each device.
    """
    if _lies_as_wanted(argument, devices, indices):
        return list(argument._arrays)
    host = np.asarray(xla.canonicalize_dtype(argument))
    pieces: dict[Any, np.ndarray[Any, Any]] = {}
    for index in indices:
        key = hashable_index(index)
        if key not in pieces:
            piece = host[index]
            pieces[key] = piece if keep else np.array(piece, copy=True)
    return [jax.device_put(pieces[hashable_index(i)], d) for i, d in zip(indices, devices, strict=True)]


def _lies_as_wanted(argument: Any, devices: Sequence[Any], indices: Sequence[Any]) -> bool:
    if not isinstance(argument, ShardedDeviceArray):
        return False
    array: Any = argument
    return tuple(array.sharding._devices) == tuple(devices) and _same(array.indices, indices)


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(
        hashable_index(a) == hashable_index(b) for a, b in zip(some, others, strict=True)
    )


def _shard_args_to_bufs(
    self: Any,
    shard_indices: Sequence[Sequence[Any]],
    donated_invars: Sequence[bool],
    batch_invars: Sequence[bool],
    num_micro_batches: int,
    args: Sequence[Any],
) -> list[Any]:
    """The pieces of each argument; of each micro-batch of it where it is a batch."""
    pieces: list[Any] = []
    # With gradient accumulation, `donated_invars` goes on with the gradients, which aren't arguments.
    for argument, indices, donated, is_batch in zip(args, shard_indices, donated_invars, batch_invars, strict=False):
        if is_batch:
            micro_batches = np.split(np.asarray(argument), num_micro_batches)
            pieces.append([shard_argument(part, self.devices, indices, not donated) for part in micro_batches])
        else:
            pieces.append(shard_argument(argument, self.devices, indices, not donated))
        if donated and isinstance(argument, ArrayImpl) and not _lies_as_wanted(argument, self.devices, indices):
            argument.delete()
    return pieces


def _get_outputs_handler(
    self: Any, avals: Sequence[Any], sharding_specs: Sequence[Any]
) -> Callable[[Sequence[Sequence[Any]]], list[Any]]:
    """A function from the pieces of the results to the results, as arrays that lie on the mesh."""
    if any(device is None for device in self.devices):  # a mesh that is only compiled for
        return list
    shardings = [MeshSharding(self.devices, spec) for spec in sharding_specs]

    def assemble(buffers: Sequence[Sequence[Any]]) -> list[Any]:
        return [
            ArrayImpl(aval, sharding, list(pieces), committed=True, _skip_checks=True)
            for aval, sharding, pieces in zip(avals, shardings, buffers, strict=True)
        ]

    return assemble


def _replace_methods(module: ModuleType) -> None:
    mesh: Any = module.LocalPhysicalDeviceMesh
    mesh.shard_args_to_bufs = _shard_args_to_bufs
    mesh.get_outputs_handler = _get_outputs_handler


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.device_mesh",
        reason="a local mesh cuts arguments and puts results together by jax.Array",
        apply=_replace_methods,
        expects={
            "LocalPhysicalDeviceMesh.shard_args_to_bufs": (
                "self", "shard_indices", "donated_invars", "batch_invars", "num_micro_batches", "args",
            ),
            "LocalPhysicalDeviceMesh.get_outputs_handler": ("self", "avals", "sharding_specs"),
        },
    ),
)  # fmt: skip
