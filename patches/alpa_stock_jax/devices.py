"""What Alpa asks of a device of its fork: a barrier and how much memory is in use; a random seed has no effect.

Stock CPU devices keep no statistics, so these are counted: memory in use is what the device's live arrays take, the
peak is the most that was seen (at executions, with what they allocate), and what is available is the machine's free
memory, shared evenly by its devices.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from typing import Any

from alpa_stock_jax._patch import Patch

__all__ = ["note_execution"]


# Adding up the live arrays takes milliseconds, more than many an execution.
_SAMPLE_EVERY_S = 0.5


@dataclasses.dataclass
class _State:
    peak_bytes: int = 0
    sampled_at_s: float = -_SAMPLE_EVERY_S


_states: dict[tuple[str, int], _State] = {}
_lock = threading.Lock()


def _state(device: Any) -> _State:
    with _lock:
        return _states.setdefault((device.platform, device.id), _State())


def note_execution(device: Any, allocated_bytes: int) -> None:
    """Raises a device's recorded peak to what it holds now and what an execution allocates beyond; twice a second at
    most.
    """
    state, now_s = _state(device), time.monotonic()
    if now_s - state.sampled_at_s >= _SAMPLE_EVERY_S:
        _raise_peak(device, allocated_bytes)
        state.sampled_at_s = now_s


def _raise_peak(device: Any, allocated_bytes: int) -> None:
    state = _state(device)
    state.peak_bytes = max(state.peak_bytes, _memory_allocated(device) + allocated_bytes)


def _set_seed(device: Any, seed: int) -> None:
    """Does nothing: what is drawn follows from the keys alone, as in jax."""


def _pieces_on(device: Any) -> list[Any]:
    """The single-device arrays on a device, those within sharded arrays included; the same memory may come twice."""
    return [
        piece
        for array in device.client.live_arrays()
        if not array.is_deleted() and device in array.sharding.device_set
        for piece in array._arrays
        if device in piece.sharding.device_set
    ]


def _memory_allocated(device: Any) -> int:
    statistics = device.memory_stats()
    if statistics:
        return int(statistics["bytes_in_use"])
    sizes = {piece.unsafe_buffer_pointer(): piece.on_device_size_in_bytes() for piece in _pieces_on(device)}
    return sum(sizes.values())


def _max_memory_allocated(device: Any) -> int:
    statistics = device.memory_stats()
    if statistics:
        return int(statistics["peak_bytes_in_use"])
    _raise_peak(device, 0)
    return _state(device).peak_bytes


def _available_memory(device: Any) -> int:
    statistics = device.memory_stats()
    if statistics:
        return int(statistics["bytes_limit"] - statistics["bytes_in_use"])
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return free_bytes // device.client.local_device_count()


def _clear_memory_stats(device: Any) -> None:
    state = _state(device)
    state.peak_bytes, state.sampled_at_s = 0, -_SAMPLE_EVERY_S


def _synchronize_all_activity(device: Any) -> None:
    for piece in _pieces_on(device):
        piece.block_until_ready()


def _add_methods(device_class: Any) -> None:
    device_class.set_seed = _set_seed
    device_class.memory_allocated = _memory_allocated
    device_class.max_memory_allocated = _max_memory_allocated
    device_class.available_memory = _available_memory
    device_class.clear_memory_stats = _clear_memory_stats
    device_class.synchronize_all_activity = _synchronize_all_activity


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="jaxlib.xla_extension",
        reason="devices have a barrier, memory statistics, and a random seed that nothing follows",
        apply=lambda module: _add_methods(module.Device),
        expects={
            "Device.memory_stats": None,
            "Client.live_arrays": None,
            "ArrayImpl._arrays": None,
            "ArrayImpl.on_device_size_in_bytes": None,
            "ArrayImpl.block_until_ready": None,
        },
        before=True,
    ),
)
