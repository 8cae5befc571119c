"""Cross-mesh resharding of CPU tensors, the worker's part: tiles are cut, posted, taken and put together on the host.

Alpa plans the tiles (which device sends which part of a tensor to which device); here the plan is carried out by
messages between the workers' mailboxes instead of NCCL. A tensor's tiles are gathered in host memory and put on the
device once.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from alpa_stock_jax._ray_mailbox import Counters, Group, Mailbox, MessageKey, PeerWatch

__all__ = ["TileExchange", "without_repeats"]


def _hashable(value: Any) -> Hashable:
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    if isinstance(value, (tuple, list)):
        return tuple(map(_hashable, value))
    return value if isinstance(value, Hashable) else repr(value)


def without_repeats(specs: Sequence[Any]) -> list[Any]:
    """The specifications in their order, each once.

    Alpa lists the tiles of a tensor once for each source tile, so a tile from n sources would be sent n times over.
    """
    first: dict[Hashable, Any] = {}
    for spec in specs:
        first.setdefault(_hashable(spec), spec)
    return list(first.values())


class Canvas:
    """A device's part of a tensor, in host memory, while tiles are put into it."""

    def __init__(self, shape: Sequence[int], dtype: Any, existing: Any = None) -> None:
        self._array = np.empty(shape, dtype)
        self._existing = existing
        self._missing = self._array.size

    def paint(self, index: Sequence[slice], tile: np.ndarray) -> None:
        """Puts a tile in its place."""
        if self._existing is not None and tile.size != self._array.size:
            self._array[...] = np.asarray(self._existing)
            self._missing = 0
        self._existing = None
        self._array[tuple(index)] = tile
        self._missing -= tile.size

    def finished(self) -> np.ndarray:
        """The whole array.

        Raises:
            RuntimeError: tiles are missing, and there was nothing before that they would be put into.
        """
        if self._missing > 0:
            raise RuntimeError(f"{self._missing} of {self._array.size} elements of a received tensor were not sent")
        return self._array


class TileExchange:
    """A worker's side of all its exchanges.

    Args:
        timeout_s: how long a peer that computes nothing is waited for.

    Attributes:
        timeout_s: as given.
        waits: the wait of each of this process's threads that waits for another worker.
    """

    def __init__(self, timeout_s: float) -> None:
        self.mailbox = Mailbox()
        self.waits: dict[int, PeerWatch] = {}
        self.timeout_s = timeout_s
        self._sent = Counters()
        self._taken = Counters()
        self._groups: dict[str, Group] = {}

    def join(self, group: Group) -> None:
        """Makes a group known."""
        self._groups[group.name] = group

    def leave(self, name: str) -> None:
        """Forgets a group."""
        self._groups.pop(name, None)

    def send(self, group_name: str, buffers: Sequence[Any], specs: Sequence[Any]) -> None:
        """Sends the tiles of a ReshardingSendTask: one call for each worker that gets some.

        Args:
            group_name: of a group that was joined.
            buffers: the tensor on each device of this worker.
            specs: its ReshardingSendSpecs.
        """
        group = self._groups[group_name]
        posts: dict[int, dict[MessageKey, np.ndarray]] = {}
        for spec in specs:
            target = spec.tile_spec
            key = self._sent.key(group_name, group.rank, spec.device_id, target.rank, target.gpu_idx)
            tile = _cut(buffers[spec.device_id], target.offset)
            posts.setdefault(target.rank, {})[key] = tile
        for rank, messages in posts.items():
            group.workers[rank].deliver.remote(messages)

    def receive(self, group_name: str, spec: Any, existing: Any, what: str = "a tile") -> np.ndarray:
        """What one device gets by a ReshardingRecvSpec.

        Args:
            group_name: of a group that was joined.
            spec: the ReshardingRecvSpec.
            existing: what the device has of the tensor so far, or None.
            what: names the tile in errors.
        """
        group = self._groups[group_name]
        canvas = Canvas(spec.shape, spec.dtype, existing)
        for source in spec.tile_specs:
            key = self._taken.key(group_name, source.rank, source.gpu_idx, group.rank, spec.device_id)
            canvas.paint(source.offset, self._take(group, source.rank, what, key))
        return canvas.finished()

    def broadcast(self, group_name: str, comm_key: str, tile: np.ndarray) -> None:
        """Sends a tile to the workers of all devices that a key names, the first of which is the sender."""
        group = self._groups[group_name]
        devices = comm_key.split("$")
        number = self._sent.key(group_name, comm_key)
        for rank in dict.fromkeys(group.device_ranks[device] for device in devices[1:]):
            group.workers[rank].deliver.remote({number: tile})

    def receive_broadcast(self, group_name: str, comm_key: str, what: str = "a tile") -> np.ndarray:
        """The tile that `broadcast` sent to this worker."""
        group = self._groups[group_name]
        sender = group.device_ranks[comm_key.split("$")[0]]
        return self._take(group, sender, what, self._taken.key(group_name, comm_key))

    def gather(self, group_name: str, channel: str, value: np.ndarray, what: str = "a gathering") -> list[np.ndarray]:
        """The values that all workers of a group give on a channel, by rank; each gives one each time."""
        group = self._groups[group_name]
        sent = self._sent.key(group_name, channel, group.rank)
        for rank, worker in enumerate(group.workers):
            if rank != group.rank:
                worker.deliver.remote({sent: value})
        return [
            value if rank == group.rank else self._take(group, rank, what, self._taken.key(group_name, channel, rank))
            for rank in range(len(group.workers))
        ]

    def _take(self, group: Group, rank: int, what: str, key: MessageKey) -> np.ndarray:
        watch = PeerWatch(group.workers[rank], rank, what, self.timeout_s)
        self.waits[threading.get_ident()] = watch
        try:
            tile: np.ndarray = self.mailbox.take(key, watch)
        finally:
            del self.waits[threading.get_ident()]
        return tile


def _cut(buffer: Any, index: Sequence[slice]) -> np.ndarray:
    return np.asarray(np.asarray(buffer)[tuple(index)], order="C")
