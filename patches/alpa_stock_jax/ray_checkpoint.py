"""Distributed checkpoints: written when the call returns, read by any plan, and only metadata are unpickled."""

from __future__ import annotations

import contextvars
import functools
import io
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import ray

from alpa_stock_jax import _restricted_pickle
from alpa_stock_jax._patch import Patch
from alpa_stock_jax._restricted_pickle import NUMPY_CLASSES

__all__ = ["load_sharded_array"]

_METADATA = "metadata_"
_CLASSES = NUMPY_CLASSES | {
    ("builtins", "slice"),
    *(("numpy.dtypes", type(np.dtype(code)).__name__) for code in f"?{np.typecodes['AllInteger']}efdFD"),
    *(("ml_dtypes", name) for name in ml_dtypes.__all__ if name.startswith(("bfloat", "float", "int", "uint"))),
}

# What a running save_checkpoint or restore_checkpoint still has to wait for; None outside of them.
_pending: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("pending", default=None)


def _read_metadata(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return _restricted_pickle.read(file, _CLASSES)


def _read_shard(path: Path, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    # numpy's format has no bfloat16 and the like: they come back as bytes; what it calls "<f1" doesn't at all.
    unreadable = np.dtype(dtype).str == "<f1"
    file = io.BytesIO(path.read_bytes().replace(b"'<f1'", b"'|V1'", 1)) if unreadable else path
    shard = np.load(file, allow_pickle=False)
    return shard.view(dtype) if shard.dtype.kind == "V" else shard


def load_sharded_array(ckpt_dir: str, metadatas: Sequence[str]) -> np.ndarray[Any, Any]:
    """The whole array that was saved in a folder.

    Args:
        ckpt_dir: the folder.
        metadatas: the names of its metadata files, one for each host that saved a part.

    Raises:
        FileNotFoundError: there are none.
    """
    if not metadatas:
        raise FileNotFoundError(f"{ckpt_dir} has no metadata files: no array was saved there")
    folder = Path(ckpt_dir)
    parts = [_read_metadata(folder / name) for name in metadatas]
    for part in parts:
        if part["shard_indices"] is None:
            return _read_shard(folder / part["shard_names"][0], np.dtype(part["dtype"]))
    whole = np.empty(parts[0]["global_shape"], parts[0]["dtype"])
    for part in parts:
        for name, index in zip(part["shard_names"], part["shard_indices"], strict=True):
            whole[index] = _read_shard(folder / name, whole.dtype)
    return whole


def _forget_older_hosts(folder: str, hosts: set[int]) -> None:
    """Removes what hosts that don't save this time have saved here before: it would be read with the new parts."""
    for path in Path(folder).glob(f"{_METADATA}*"):
        if path.name.removeprefix(_METADATA) not in map(str, hosts):
            path.unlink(missing_ok=True)


def _wait(refs: list[Any]) -> None:
    pending = _pending.get()
    if pending is None:
        ray.get(refs)
    else:
        pending.extend(refs)


def _save(array: Any, ckpt_dir: str, local_cache_dir: str | None = None) -> None:
    shards: dict[int, list[tuple[int, Any]]] = {}
    for buffer, (host, device) in zip(
        array.one_replica_buffer_ids, array.one_replica_host_local_ids, strict=True
    ):
        shards.setdefault(host, []).append((device, array.indices[buffer]))
    _forget_older_hosts(ckpt_dir, set(shards))
    _wait(
        [
            array.device_mesh.workers[host].save_array.remote(
                ckpt_dir,
                local_cache_dir,
                array.remote_ref.uuid,
                np.array([device for device, _ in parts]),
                [index for _, index in parts],
                array.shape,
            )
            for host, parts in shards.items()
        ]
    )


def _load(cls: Any, path: str, aval: Any, device_mesh: Any, sharding_spec: Any) -> Any:
    from alpa.device_mesh import RemoteArrayRef
    from jax.interpreters import pxla

    reference = RemoteArrayRef(device_mesh)
    indices = pxla.spec_to_indices(aval.shape, sharding_spec)
    per_host = device_mesh.num_devices_per_host
    _wait(
        [
            worker.load_array.remote(
                path, reference.uuid, list(range(per_host)), list(indices[host * per_host : (host + 1) * per_host])
            )
            for host, worker in enumerate(device_mesh.workers)
        ]
    )
    return cls(device_mesh, aval, sharding_spec, reference, indices)


def _replace_in_arrays(module: Any) -> None:
    module.DistributedArray.save = _save
    module.DistributedArray.load = classmethod(_load)


def _waiting(function: Any) -> Any:
    """The function, which returns when all that it has started on workers is done."""

    @functools.wraps(function)
    def waiting(*args: Any, **kwargs: Any) -> Any:
        token = _pending.set([])
        try:
            result = function(*args, **kwargs)
            ray.get(_pending.get() or [])
        finally:
            _pending.reset(token)
        return result

    return waiting


def _replace_in_serialization(module: ModuleType) -> None:
    original: Any = module._save_unsharded_array

    @functools.wraps(original)
    def save_unsharded_array(ckpt_dir: str | os.PathLike[str], arr: Any) -> None:
        _forget_older_hosts(os.fspath(ckpt_dir), {0})
        original(ckpt_dir, arr)

    names: dict[str, Any] = {
        "_save_unsharded_array": save_unsharded_array,
        "load_sharded_array": load_sharded_array,
        "save_checkpoint": _waiting(module.save_checkpoint),
        "restore_checkpoint": _waiting(module.restore_checkpoint),
    }
    for name, function in names.items():
        setattr(module, name, function)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.device_mesh",
        reason="saving and loading wait for the workers, so that another plan can read the files and errors are told",
        apply=_replace_in_arrays,
        expects={
            "DistributedArray.save": ("self", "ckpt_dir", "local_cache_dir"),
            "DistributedArray.load": ("path", "aval", "device_mesh", "sharding_spec"),
        },
    ),
    Patch(
        module="alpa.serialization",
        reason="checkpoints keep every dtype, forget an older plan's files, and unpickle no code",
        apply=_replace_in_serialization,
        expects={
            "_save_unsharded_array": ("ckpt_dir", "arr"),
            "load_sharded_array": ("ckpt_dir", "metadatas"),
            "save_checkpoint": ("ckpt_dir", "target", "step", "local_cache_dir"),
            "restore_checkpoint": ("ckpt_dir", "step", "placement_specs"),
        },
    ),
)
