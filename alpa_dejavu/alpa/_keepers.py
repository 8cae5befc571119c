"""Keeps parts of a training state in the memory of hosts, in processes of their own that outlive Alpa's workers."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

Place = tuple[tuple[int, int], ...]
"""The part of an array, from and to along each of its axes."""

_UNDER_WAY = 8


@final
@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of one array of the training state."""

    array: int  # the number of the array among the leaves of the state
    place: Place  # the part of it


@final
@dataclasses.dataclass(frozen=True)
class Sent:
    """A piece that a worker has on one of its devices, and the keepers that are to have it."""

    piece: Piece
    uuid: int  # Alpa's number of the array's buffers
    device: int  # the number of the worker's device
    keepers: tuple[Any, ...]  # Ray's handles of the keepers


class Keeper:
    """The pieces that one host keeps, of the step that all hosts have whole, and of the one that is being copied."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[Piece, tuple[Any, int]]] = {}

    def take(self, step: int, whole: int | None, piece: Piece, value: Any, checksum: int) -> None:
        """Keeps a piece of the state, dropping other steps' but the whole one's. Raises RuntimeError for another."""
        self._steps = {kept: pieces for kept, pieces in self._steps.items() if kept in (step, whole)}
        if _checksum(value) != checksum:
            raise RuntimeError(f"array {piece.array} of step {step} came with another checksum than it was sent with")
        # A copy: the array lies in Ray's object store, which would be kept from freeing it.
        self._steps.setdefault(step, {})[piece] = np.array(value), checksum

    def intact(self, step: int) -> list[Piece]:
        """Returns the pieces of a step that are here as they were sent."""
        return [piece for piece, (value, checksum) in self._steps.get(step, {}).items() if _checksum(value) == checksum]

    def give(self, step: int, piece: Piece) -> Any:
        """Returns a piece of a step."""
        return self._steps[step][piece][0]

    def room_bytes(self) -> int:
        """Returns the bytes that the host has free, with those that are kept here already."""
        kept = sum(value.nbytes for pieces in self._steps.values() for value, _ in pieces.values())
        return _free_bytes() + kept


def send(worker: Any, step: int, whole: int | None, pieces: Sequence[Sent]) -> None:
    """Sends pieces of the state after so many steps to keepers, from the process of one of Alpa's workers; they keep
    `whole`, another step's, until all of this one has been copied.
    """
    import ray

    waiting: list[Any] = []
    for sent in pieces:
        value = np.ascontiguousarray(worker.buffers[sent.uuid][sent.device])
        stored, checksum = ray.put(value), _checksum(value)
        waiting += [keeper.take.remote(step, whole, sent.piece, stored, checksum) for keeper in sent.keepers]
        while len(waiting) > _UNDER_WAY:
            done, waiting = ray.wait(waiting)
            ray.get(done)
    ray.get(waiting)


def fetch(worker: Any, uuid: int, dtype: Any, places: Sequence[Place], step: int, sources: Mapping[Piece, Any]) -> None:
    """Puts an array on the devices of one of Alpa's workers, in its process, from what keepers have of a step: `uuid`
    is Alpa's number of the buffers, `places` the part of each device, `sources` the keeper of each piece.
    """
    import ray

    needed = [piece for piece in sources if any(_overlap(piece.place, place) is not None for place in places)]
    pieces = dict(zip(needed, ray.get([sources[piece].give.remote(step, piece) for piece in needed]), strict=True))
    assembled: dict[Place, Any] = {}
    for place in places:
        if place not in assembled:
            assembled[place] = _assembled(place, dtype, pieces)
    worker.buffers[uuid] = [
        worker.backend.buffer_from_pyval(assembled[place], worker.local_devices[device])
        for device, place in enumerate(places)
    ]


def _assembled(place: Place, dtype: Any, pieces: Mapping[Piece, Any]) -> Any:
    """Returns the part of an array at a place, put together from the pieces that overlap it."""
    value = np.empty([stop - start for start, stop in place], dtype)
    for piece, part in pieces.items():
        common = _overlap(piece.place, place)
        if common is not None:
            value[_slices(common, place)] = part[_slices(common, piece.place)]
    return value


def _overlap(place: Place, other: Place) -> Place | None:
    """Returns the part of an array that two of its parts have in common; None: nothing."""
    common = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(place, other, strict=True))
    return common if all(start < stop for start, stop in common) else None


def _slices(place: Place, within: Place) -> tuple[slice, ...]:
    return tuple(slice(a[0] - b[0], a[1] - b[0]) for a, b in zip(place, within, strict=True))


def _checksum(value: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def _free_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, number = line.partition(":")
        if name == "MemAvailable":
            return int(number.split()[0]) * 1024
    raise RuntimeError("/proc/meminfo doesn't say how much memory is available; copy only on Linux")
