"""What a matrix product and each collective take on a mesh, measured by programs that jax compiles.

Alpa builds these loops by XlaBuilder, with channel handles of its fork. Here each is a loop of `number` steps under
`shard_map`, whose steps depend on each other, so that none is hoisted or dropped. How many steps follows from the size
alone, so that all hosts of a mesh run the same program.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO

import jax
import numpy as np
from jax import lax
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_stock_jax._patch import Patch
from alpa_stock_jax._restricted_pickle import NUMPY_CLASSES, read

__all__ = ["measure_operator"]

Groups = Sequence[Sequence[int]]
_GROUP, _MEMBER = "group", "member"
_DTYPES: dict[str, type[np.floating[Any]]] = {"f16": np.float16, "f32": np.float32}
_WORK_BYTES, _WORK_FLOP = 1 << 26, 4 << 30
_FEWEST, _MOST = 2, 256
_ALLOWED = NUMPY_CLASSES | {
    ("alpa.mesh_profiling", "MeshProfilingResult"),
    ("collections", "defaultdict"),
    ("builtins", "list"),
}


def measure_operator(
    backend: Any, local_devices: Sequence[Any], host_id: int, num_devices: int, op_info: tuple[Any, ...]
) -> float:
    """Seconds that one operator takes, as the mean over a loop of it.

    Args:
        backend: the XLA client of this process.
        local_devices: the devices of the mesh in this process.
        host_id: this process's number among the mesh's.
        num_devices: devices of the mesh in all processes.
        op_info: ("dot", (n, m, k, dtype)), (a collective, (groups, dtype, elements)),
            ("create-communicator", (groups,)) or ("barrier",); dtype is "f32" or "f16". The last two are run and not
            measured: 0 is returned.

    Raises:
        NotImplementedError: another operator.
    """
    kind = op_info[0]
    if kind == "dot":
        rows, columns, inner, dtype = op_info[1]
        return _measure_dot(local_devices[:1], (rows, columns, inner), _DTYPES[dtype])
    devices = sorted(backend.devices(), key=lambda device: (device.process_index, device.id))
    if kind in ("barrier", "create-communicator"):
        groups = op_info[1][0] if kind == "create-communicator" else (tuple(range(num_devices)),)
        _measure_collective(devices, groups, "all-reduce", 1, np.float32)
        return 0.0
    if kind not in _COLLECTIVES:
        raise NotImplementedError(f"an operator of the kind {kind!r} can't be measured")
    groups, dtype, elements = op_info[1]
    return _measure_collective(devices, groups, kind, elements, _DTYPES[dtype])


def _all_reduce(piece: jax.Array) -> jax.Array:
    return lax.psum(piece, _MEMBER)


def _all_gather(piece: jax.Array) -> jax.Array:
    return lax.all_gather(piece, _MEMBER, tiled=True)


def _reduce_scatter(piece: jax.Array) -> jax.Array:
    return lax.psum_scatter(piece, _MEMBER, tiled=True)


def _all_to_all(piece: jax.Array) -> jax.Array:
    return lax.all_to_all(piece, _MEMBER, split_axis=0, concat_axis=0, tiled=True)


# How it is done, and by which power of the group's size the whole is divided to get what a device starts with.
_COLLECTIVES: dict[str, tuple[Callable[[jax.Array], jax.Array], int]] = {
    "all-reduce": (_all_reduce, 0),
    "all-gather": (_all_gather, 1),
    "reduce-scatter": (_reduce_scatter, 0),
    "all-to-all": (_all_to_all, 1),
}


def _measure_collective(
    devices: Sequence[Any], groups: Groups, kind: str, elements: int, dtype: type[np.floating[Any]]
) -> float:
    operator, power = _COLLECTIVES[kind]
    members = len(groups[0])
    grid = np.array([[devices[rank] for rank in group] for group in groups])
    mesh = Mesh(grid, (_GROUP, _MEMBER))
    step = members**2 if kind == "all-to-all" else 1 if kind == "all-reduce" else members
    piece_elements = elements // step * step // members**power
    spec = PartitionSpec((_GROUP, _MEMBER))
    piece = jax.make_array_from_callback(
        (piece_elements * grid.size,), NamedSharding(mesh, spec), functools.partial(_ones, piece_elements, dtype)
    )
    number = _bounded(_WORK_BYTES / max(piece_elements * np.dtype(dtype).itemsize, 1))
    program = functools.partial(_repeat, operator, number)
    loop = jax.jit(shard_map(program, mesh=mesh, in_specs=(spec,), out_specs=spec, check_rep=False))
    return _seconds(loop, piece) / number


def _measure_dot(devices: Sequence[Any], sizes: tuple[int, int, int], dtype: type[np.floating[Any]]) -> float:
    rows, columns, inner = sizes
    left = jax.device_put(np.ones((rows, inner), dtype), devices[0])
    right = jax.device_put(np.ones((inner, columns), dtype), devices[0])
    number = _bounded(_WORK_FLOP / max(2 * rows * columns * inner, 1))
    product = jax.jit(lambda left, right: _repeat(lambda piece: piece @ right, number, left))
    return _seconds(product, left, right) / number


def _repeat(operator: Callable[[jax.Array], jax.Array], number: int, piece: jax.Array) -> jax.Array:
    """Does an operator many times; each time one element of what it takes is of what it gave before."""

    def once(_: Any, piece: jax.Array) -> jax.Array:
        if not piece.size:
            return piece
        given = operator(piece)
        return piece.at[(0,) * piece.ndim].set(given[(0,) * given.ndim])

    return lax.fori_loop(0, number, once, piece)


def _ones(elements: int, dtype: type[np.floating[Any]], index: Any) -> np.ndarray[Any, Any]:
    return np.ones((elements,), dtype)


def _bounded(steps: float) -> int:
    return int(min(max(steps, _FEWEST), _MOST))


def _seconds(run: Callable[..., jax.Array], *arguments: jax.Array) -> float:
    jax.block_until_ready(run(*arguments))
    begin = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return time.perf_counter() - begin


def _load(file: BinaryIO) -> Any:
    return read(file, _ALLOWED)


def _replace_measurement(module: ModuleType) -> None:
    module.profile_one_hlo_op = measure_operator  # type: ignore[attr-defined]


def _read_by_allow_list(module: ModuleType) -> None:
    module.pickle = SimpleNamespace(load=_load, dump=module.pickle.dump)  # type: ignore[attr-defined]


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.mesh_profiling",
        reason="operators are measured by programs that jax compiles, sized for CPUs too",
        apply=_replace_measurement,
        expects={
            "profile_one_hlo_op": ("backend", "local_devices", "host_id", "num_devices", "op_info"),
            "run_with_timeout": None,
        },
        uses=("jax.experimental.shard_map.shard_map",),
    ),
    Patch(
        module="alpa.mesh_profiling",
        reason="the database of measurements is read by an allow-list of classes",
        apply=_read_by_allow_list,
        expects={"pickle.load": None, "pickle.dump": None, "MeshProfilingResult": ()},
    ),
)
