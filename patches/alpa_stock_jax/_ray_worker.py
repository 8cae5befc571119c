"""Alpa's MeshHostWorker for CPU devices: the same calls from the driver, on stock jaxlib and without NCCL."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import ray
from alpa.device_mesh import MeshHostWorker
from alpa.monkey_patch import set_override_backend

from alpa_stock_jax._mesh_all_reduce import MeshAllReduce
from alpa_stock_jax._ray_backend import MeshSeat, make_backend
from alpa_stock_jax._ray_mailbox import Activity, Group, MessageKey
from alpa_stock_jax._ray_mover import Mover
from alpa_stock_jax._ray_resharding import Resharding

__all__ = ["CONCURRENCY_GROUPS", "CpuMeshHostWorker"]

# Calls that are answered while the worker computes: tiles from other workers, and the one call that waits for a fault.
CONCURRENCY_GROUPS = {"mail": 1, "fault": 1}


class CpuMeshHostWorker(Resharding, MeshHostWorker):
    """The devices of a mesh that one process holds, their buffers and executables."""

    def __init__(self, seat: MeshSeat, mesh_id: int | None, runtime_random_seed: int, device_bytes: int) -> None:
        super().__init__()
        self._fault: str | None = None
        self._ended = threading.Event()
        self._mover = Mover()
        self._device_bytes = device_bytes
        self.num_hosts = seat.processes
        self.host_id = seat.process
        self.mesh_id = mesh_id
        self.backend, self.distributed_client = make_backend(seat)
        set_override_backend(self.backend)
        self.local_devices = self.backend.local_devices()
        self.num_devices = len(self.local_devices)
        self.buffers: dict[int, list[Any]] = {}
        self.executables: dict[int, Any] = {}
        self.data_loaders: dict[int, Any] = {}
        self.data_loader_iters: dict[int, Any] = {}
        self.set_runtime_random_seed(runtime_random_seed)
        self._in_call = False
        MeshAllReduce(
            self.num_devices, self.host_id == 0, self.tiles.gather,
            functools.partial(self._fail, "an all-reduce between meshes"),
        ).install()  # fmt: skip

    # Buffers

    def put(self, value: np.ndarray, device_id: int) -> Any:
        """A buffer on a device of this worker."""
        # A copy: the array may lie in Ray's object store, which would be kept from freeing it.
        value = np.array(value, dtype=jax.dtypes.canonicalize_dtype(value.dtype))
        return self.backend.buffer_from_pyval(value, self.local_devices[device_id])

    def put_buffers(
        self, uuids: int | Sequence[int], datas: Sequence[np.ndarray], num_batch: int = 1, batch_dim: int = 0
    ) -> None:
        """Puts an array on each device, or, if `num_batch` > 1, its equal parts along `batch_dim` as several."""
        names = _names(uuids)
        if len(datas) != self.num_devices or len(names) != num_batch:
            raise ValueError(
                f"{len(datas)} arrays for {self.num_devices} devices, {len(names)} names for {num_batch} batches"
            )
        parts = [np.split(data, num_batch, batch_dim) if num_batch > 1 else [data] for data in datas]
        for batch, uuid in enumerate(names):
            self.buffers[uuid] = [self.put(part[batch], device) for device, part in enumerate(parts)]

    def shard_and_put_non_zero_buffer(
        self,
        uuids: int | Sequence[int],
        shape: Sequence[int],
        dtype: np.dtype,
        indices: Sequence[Sequence[slice]],
        num_batch: int,
    ) -> None:
        """Puts small values on each device, of the shape that its index takes of `shape`."""
        for batch, uuid in enumerate(_names(uuids)):
            shapes = [_index_shape(indices[device * num_batch + batch], shape) for device in range(self.num_devices)]
            self.buffers[uuid] = [
                self.put(np.full(shard_shape, 1e-8, dtype), device) for device, shard_shape in enumerate(shapes)
            ]

    def _get_buffers_with_local_ids(self, uuid: int, device_ids: int | Sequence[int] | None) -> Any:
        if uuid not in self.buffers and self._fault:
            raise RuntimeError(self._fault)
        buffers = self.buffers[uuid]
        if device_ids is None:
            device_ids = range(len(buffers))
        if isinstance(device_ids, Iterable):
            values: Any = [np.asarray(buffers[device]) for device in device_ids]
        else:
            values = np.asarray(buffers[device_ids])
        if self._fault:  # found meanwhile, by what computed these
            raise RuntimeError(self._fault)
        return values

    # Executables

    def put_executable(self, uuid: int, executable_class: Any, *args: Any) -> None:
        """Makes an executable; a failure is told to the driver, which doesn't wait for this call."""
        with self._telling("compiling an executable"):
            super().put_executable(uuid, executable_class, *args)

    def run_executable(self, uuid: int, *args: Any, **kwargs: Any) -> None:
        """Runs an executable; a failure is told to the driver, which doesn't wait for this call."""
        with self._telling("running an executable"):
            self.instructions = getattr(self.executables.get(uuid), "instructions", self.instructions)
            super().run_executable(uuid, *args, **kwargs)

    def data_loader_next(self, uuid: int) -> None:
        """Loads the next batch; a failure is told to the driver, which doesn't wait for this call."""
        with self._telling("loading a batch"):
            super().data_loader_next(uuid)

    # Checkpoints

    def save_array(
        self,
        ckpt_dir: str,
        local_cache_dir: str | None,
        uuid: int,
        device_ids: Sequence[int],
        shard_indices: Sequence[Any],
        global_shape: Sequence[int],
    ) -> None:
        """Writes this worker's shards of an array; from the cache, if there is one, they are moved later."""
        super().save_array(local_cache_dir or ckpt_dir, None, uuid, device_ids, shard_indices, global_shape)
        if local_cache_dir is not None:
            self._mover.move(local_cache_dir, ckpt_dir)

    def load_array(
        self, ckpt_dir: str, uuid: int, device_ids: Sequence[int], shard_indices: Sequence[Any]
    ) -> None:
        """Reads this worker's shards of an array."""
        from alpa.serialization import load_sharded_array

        whole = load_sharded_array(ckpt_dir, [name for name in os.listdir(ckpt_dir) if name.startswith("metadata")])
        shards = dict(zip(device_ids, shard_indices, strict=True))
        self.buffers[uuid] = [self.put(whole[shards[device]], device) for device in range(self.num_devices)]

    def sync_move_worker(self) -> None:
        """Waits until all that was saved to a cache is where it belongs."""
        self._mover.wait()

    def get_available_memory(self) -> int:
        """The bytes that a device may take: the same at any time, so that plans don't depend on what else runs."""
        return self._device_bytes

    def sync(self, sync_all_devices: bool = False) -> None:
        """Waits until the devices have finished what they were told."""
        if self._fault:
            raise RuntimeError(self._fault)
        super().sync(sync_all_devices)

    # Other workers and the driver

    @ray.method(concurrency_group="mail")
    def deliver(self, messages: Mapping[MessageKey, np.ndarray]) -> None:
        """Takes in tiles from another worker."""
        self.tiles.mailbox.put(messages)

    @ray.method(concurrency_group="mail")
    def answer(self) -> Activity:
        """Answers at once, whatever the worker is doing, what that is."""
        for wait in list(self.tiles.waits.values()):
            return Activity(self._place(), str(wait), wait.computes)
        computes = self._in_call or self._devices_compute()
        return Activity(self._place(), "computes" if computes else "is idle", computes)

    def _devices_compute(self) -> bool:
        buffers = [one for pieces in list(self.buffers.values()) for one in pieces if one is not None]
        return any(not one.is_deleted() and not one.is_ready() for one in buffers)

    @ray.method(concurrency_group="fault")
    def wait_for_fault(self) -> str | None:
        """Returns when something has failed, with what it was, or when the worker is shut down, with None."""
        self._ended.wait()
        return self._fault

    def join_group(self, name: str, rank: int, workers: Sequence[Any], device_ranks: Mapping[str, int]) -> None:
        """Makes the workers known that this one will exchange tiles with."""
        self.tiles.join(Group(name, rank, tuple(workers), dict(device_ranks)))

    def destroy_collective_group(self, group_name: str = "default") -> None:
        """Forgets a group of workers."""
        self.tiles.leave(group_name)

    @contextlib.contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        if self._fault:
            raise RuntimeError(self._fault)
        outermost, self._in_call = not self._in_call, True
        try:
            yield
        except (Exception, SystemExit) as error:
            # Alpa leaves the actor by SystemExit when an executable fails, which would hide why.
            cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error
            self._fail(what, cause)
            raise RuntimeError(self._fault) from cause
        finally:
            self._in_call = not outermost

    def _fail(self, what: str, cause: BaseException) -> None:
        self._fault = self._fault or f"{what} failed on {self._place()}: {type(cause).__name__}: {cause}"
        self._ended.set()

    def _place(self) -> str:
        return f"host {self.host_id} of mesh {self.mesh_id} (process {os.getpid()})"

    def shutdown(self) -> None:
        """Frees everything; the actor can be killed then."""
        self._ended.set()
        self._mover.wait()
        self.buffers.clear()
        self.executables.clear()
        if self.distributed_client is not None:
            self.distributed_client.shutdown()


def _names(uuids: int | Sequence[int]) -> list[int]:
    return list(uuids) if isinstance(uuids, Iterable) else [uuids]


def _index_shape(index: Sequence[slice], shape: Sequence[int]) -> list[int]:
    return [len(range(*part.indices(size))) for part, size in zip(index, shape, strict=True)]
