"""The resharding tasks of a CPU worker: Alpa's task tables, carried out by exchanging tiles."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from alpa.device_mesh import ReshardingBroadcastTask, ReshardingRecvTask, ReshardingSendTask

from alpa_stock_jax._ray_mailbox import peer_timeout_s
from alpa_stock_jax._ray_tiles import Canvas, TileExchange, without_repeats

__all__ = ["Resharding", "instruction_name"]


def instruction_name(instructions: Sequence[Any], task_uuid: int, ary_uuid: int) -> str:
    """Returns what errors call the instruction of a pipeline that receives an array by a task."""
    for number, instruction in enumerate(instructions):
        arrays = instruction.output_uuids if instruction.opcode.name in ("RECV", "BROADCAST") else None
        if arrays is not None and instruction.task_uuid == task_uuid and ary_uuid in arrays:
            later = (one.info for one in instructions[number:] if one.info.startswith("stage"))
            return f"instruction {number + 1} of {len(instructions)}, which receives for {next(later, 'later steps')}"
    return f"receiving array {ary_uuid}"


class Resharding:
    """Mixed into a worker that has `buffers`, `num_devices` and `put`, and says whose `instructions` it carries out."""

    buffers: dict[int, list[Any]]
    num_devices: int

    def __init__(self) -> None:
        self.tiles = TileExchange(peer_timeout_s(os.environ))
        self.instructions: Sequence[Any] = ()
        self.send_tasks: dict[int, ReshardingSendTask] = {}
        self.recv_tasks: dict[int, ReshardingRecvTask] = {}
        self.broadcast_tasks: dict[int, ReshardingBroadcastTask] = {}

    def put_resharding_send_task(self, uuid: int, tasks: Sequence[Any], group_name: str) -> None:
        """Keeps the list of tiles to send."""
        self.send_tasks[uuid] = ReshardingSendTask(tile_specs=without_repeats(tasks), group_name=group_name)

    def put_resharding_recv_task(self, uuid: int, tasks: Sequence[Any], group_name: str) -> None:
        """Keeps the list of tiles to receive."""
        self.recv_tasks[uuid] = ReshardingRecvTask(recv_specs=without_repeats(tasks), group_name=group_name)

    def put_resharding_broadcast_task(self, uuid: int, tasks: Mapping[Any, Any], group_name: str) -> None:
        """Keeps the table of tiles to send or receive, each of which several devices get."""
        self.broadcast_tasks[uuid] = ReshardingBroadcastTask(broadcast_specs=tasks, group_name=group_name)

    def run_resharding_send_task(self, uuid: int, ary_uuid: int) -> None:
        """Sends the tiles of an array."""
        task = self.send_tasks[uuid]
        self.tiles.send(task.group_name, self.buffers[ary_uuid], task.tile_specs)

    def run_resharding_recv_task(self, uuid: int, ary_uuid: int, set_empty_buffer: bool = True) -> None:
        """Receives the tiles of an array; keeps the rest of it if `set_empty_buffer` is false."""
        task = self.recv_tasks[uuid]
        buffers = self.buffers.setdefault(ary_uuid, [None] * self.num_devices)
        what = instruction_name(self.instructions, uuid, ary_uuid)
        for spec in task.recv_specs:
            existing = None if set_empty_buffer else buffers[spec.device_id]
            tile = self.tiles.receive(task.group_name, spec, existing, what)
            buffers[spec.device_id] = self.put(tile, spec.device_id)

    def run_resharding_broadcast_task(self, uuid: int, ary_uuid: int, set_empty_buffer: bool = True) -> None:
        """Sends and receives the tiles of an array."""
        task = self.broadcast_tasks[uuid]
        canvases: dict[int, Canvas] = {}
        for spec in task.broadcast_specs.values():
            if spec.devices_global_rank[0] == 0:
                tile = np.asarray(self.buffers[ary_uuid][spec.devices_ids[0]])[tuple(spec.tensor_slices[0])]
                self.tiles.broadcast(task.group_name, spec.comm_key, tile)
                continue
            what = instruction_name(self.instructions, uuid, ary_uuid)
            tile = self.tiles.receive_broadcast(task.group_name, spec.comm_key, what)
            for device, index in zip(spec.devices_ids, spec.tensor_slices, strict=True):
                if device not in canvases:
                    existing = self.buffers.get(ary_uuid, [None] * self.num_devices)[device]
                    canvases[device] = Canvas(spec.recv_tile_shape, spec.dtype, existing)
                canvases[device].paint(index, tile)
        for device, canvas in canvases.items():
            buffers = self.buffers.setdefault(ary_uuid, [None] * self.num_devices)
            buffers[device] = self.put(canvas.finished(), device)

    def put(self, value: np.ndarray, device_id: int) -> Any:
        """A buffer on a device."""
        raise NotImplementedError
