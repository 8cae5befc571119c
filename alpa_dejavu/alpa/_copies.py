"""Copies each stage's training state to the memory of its host and of a neighbour's, so that no disk is needed."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.causes import with_causes
from alpa_dejavu.alpa import _keepers
from alpa_dejavu.alpa._keepers import Keeper, Piece, Place, Sent
from alpa_dejavu.alpa._nodes import on_node

_log = logging.getLogger("alpa_dejavu")

_Holder = tuple[int, int]
"""The number of a host in a mesh of Alpa's, and that of its device."""


@final
@dataclasses.dataclass(frozen=True)
class _Whole:
    """A copy that is whole: its step, what it consists of, and the leaves that aren't arrays on devices."""

    step: int
    pieces: frozenset[Piece]
    others: Mapping[int, Any]


@final
class Copies:
    """Copies of the training state in the memory of hosts: each piece in that of two of them.

    A stage's own host keeps it, and the neighbour's (`neighbours` by names, else the next host). Where several hosts of
    a stage have the same piece, two of these keep it, and nothing goes over the network. The copy before is kept until
    the next is whole.
    """

    def __init__(self, neighbours: Mapping[str, str]) -> None:
        self._neighbours = neighbours
        self._keepers: dict[str, Any] = {}  # Ray's id of a node -> its keeper
        self._whole: _Whole | None = None
        self._kept_on = 0

    def check_neighbours(self, hosts: Collection[str]) -> None:
        """Checks that each given neighbour is another host of a training. Raises ValueError if one isn't."""
        for host, neighbour in self._neighbours.items():
            if host == neighbour or not {host, neighbour} <= set(hosts):
                raise ValueError(f"neighbours has {neighbour!r} for {host!r}, but must have another of the hosts "
                                 f"{', '.join(hosts)}; give one of these")  # fmt: skip

    def copy(self, state: Any, step: int, nodes: Mapping[str, str]) -> None:
        """Copies the state after so many steps; the copy is whole when this returns. `nodes` are Ray's ids of the
        living hosts' nodes, in their order; the only one left keeps its own alone. Raises RuntimeError if a host has
        too little free memory; nothing was copied.
        """
        import jax
        import ray

        if len(nodes) == 1 and self._kept_on != 1:
            _log.warning("%s is the only host: it keeps the copy, which is lost with it", next(iter(nodes)))
        self._kept_on = len(nodes)
        leaves = jax.tree_util.tree_leaves(state)
        to_send: dict[Any, list[Sent]] = {}
        sizes: dict[str, int] = {}
        pieces: set[Piece] = set()
        others: dict[int, Any] = {}
        for number, leaf in enumerate(leaves):
            array = getattr(leaf, "replica", leaf)
            if not hasattr(array, "device_mesh"):
                others[number] = np.asarray(leaf)
                continue
            for piece, holders in _pieces(number, array):
                pieces.add(piece)
                for (host, device), keeping in self._kept_by(holders, nodes):
                    for node in keeping:
                        sizes[node] = sizes.get(node, 0) + _size(piece, array.dtype)
                    sent = Sent(piece, array.remote_ref.uuid, device, tuple(map(self._keeper, keeping)))
                    to_send.setdefault(array.device_mesh.workers[host], []).append(sent)
        self._check_room(sizes, {node: host for host, node in nodes.items()})
        whole = None if self._whole is None else self._whole.step
        ray.get([
            worker.__ray_call__.remote(_keepers.send, step, whole, sent) for worker, sent in to_send.items()
        ])  # fmt: skip
        self._whole = _Whole(step, frozenset(pieces), others)

    def newest(self) -> int | None:
        """Returns the step of the copy, if there is one and living hosts have all of it as it was sent; else None."""
        if self._whole is None or self._sources(self._whole) is None:
            return None
        return self._whole.step

    def restored(self, placements: Any, meshes: Sequence[Any]) -> Any:
        """Returns the state of the copy as Alpa's arrays, by the placements and meshes of a new plan. Raises
        RuntimeError if the copy is gone, or torn.
        """
        import jax
        import ray
        from alpa.device_mesh import ReplicatedDistributedArray

        sources = None if self._whole is None else self._sources(self._whole)
        if self._whole is None or sources is None:
            raise RuntimeError("the copy of the training state is gone or torn; start from a checkpoint")
        of_array: dict[int, dict[Piece, Any]] = {}
        for piece, keeper in sources.items():
            of_array.setdefault(piece.array, {})[piece] = keeper
        leaves, tree = jax.tree_util.tree_flatten(placements, is_leaf=lambda leaf: leaf is None)
        restored: list[Any] = []
        waiting: list[Any] = []
        for number, info in enumerate(leaves):
            if number in self._whole.others or info is None:
                restored.append(self._whole.others.get(number))
                continue
            arrays = []
            for mesh_id, spec in zip(info.mesh_ids, info.sharding_specs, strict=True):
                array = _array(meshes[mesh_id], info.aval, spec)
                waiting += _fetched(array, self._whole.step, of_array[number])
                arrays.append(array)
            on = [meshes[mesh_id] for mesh_id in info.mesh_ids]
            restored.append(arrays[0] if len(arrays) == 1 else ReplicatedDistributedArray(on, arrays))
        ray.get(waiting)
        return jax.tree_util.tree_unflatten(tree, restored)

    def release(self) -> None:
        """Forgets the copy, and ends the processes that keep it."""
        import ray

        for keeper in self._keepers.values():
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.kill(keeper)
        self._keepers.clear()
        self._whole = None

    def _kept_by(self, holders: Mapping[_Holder, str], nodes: Mapping[str, str]) -> list[tuple[_Holder, list[str]]]:
        """Returns which holders of a piece send it, and to the keepers of which nodes."""
        on: dict[str, _Holder] = {}
        for holder, node in holders.items():
            on.setdefault(node, holder)
        if len(on) > 1:
            return [(holder, [node]) for node, holder in list(on.items())[:2]]
        ((own, holder),) = on.items()
        names, ids = list(nodes), list(nodes.values())
        at = ids.index(own)
        chosen = nodes.get(self._neighbours.get(names[at], ""), ids[(at + 1) % len(ids)])
        return [(holder, list(dict.fromkeys([own, chosen])))]

    def _check_room(self, sizes: Mapping[str, int], names: Mapping[str, str]) -> None:
        import ray

        rooms = ray.get([self._keeper(node).room_bytes.remote() for node in sizes])
        for (node, num_bytes), room_bytes in zip(sizes.items(), rooms, strict=True):
            if 2 * num_bytes > room_bytes:
                raise RuntimeError(
                    f"{names[node]} has {units.size(room_bytes)} of memory free, but must have "
                    f"{units.size(2 * num_bytes)} for copies of its own stages and of its neighbours', this one and "
                    "the last; give neighbours={...} that have more, or write checkpoints instead"
                )

    def _keeper(self, node: str) -> Any:
        import ray

        if node not in self._keepers:
            self._keepers[node] = ray.remote(Keeper).options(num_cpus=0, scheduling_strategy=on_node(node)).remote()
        return self._keepers[node]

    def _sources(self, whole: _Whole) -> dict[Piece, Any] | None:
        """Returns a keeper for each piece of a copy that has it as it was sent; None: some piece is lost."""
        import ray

        asked = {node: keeper.intact.remote(whole.step) for node, keeper in self._keepers.items()}
        sources: dict[Piece, Any] = {}
        for node, answer in asked.items():
            try:
                sources |= dict.fromkeys(ray.get(answer), self._keepers[node])
            except ray.exceptions.RayError as error:
                _log.info("the copies on node %s are gone: %s", node, next(iter(with_causes(error))))
                self._keepers = {other: keeper for other, keeper in self._keepers.items() if other != node}
        lost = whole.pieces - sources.keys()
        if lost:
            _log.warning("the copy of step %d lacks %s of the training state", whole.step,
                         units.counted(len(lost), "part"))  # fmt: skip
        return None if lost else sources


def _pieces(number: int, array: Any) -> Iterator[tuple[Piece, dict[_Holder, str]]]:
    """Yields the different pieces of one of Alpa's arrays, with their holders and the nodes that these are on."""
    mesh = array.device_mesh
    parts: dict[Place, dict[_Holder, str]] = {}
    for n, index in enumerate(array.indices):
        host, device = divmod(n, mesh.num_devices_per_host)
        parts.setdefault(_place(index, array.shape), {})[host, device] = mesh.host_info[host]["NodeID"]
    for place, holders in parts.items():
        yield Piece(number, place), holders


def _place(index: Any, shape: Sequence[int]) -> Place:
    parts = index if isinstance(index, tuple) else (index,)
    bounds = [part.indices(size)[:2] if isinstance(part, slice) else (part, part + 1)
             for part, size in zip(parts, shape, strict=False)]  # fmt: skip
    return tuple((int(start), int(stop)) for start, stop in [*bounds, *((0, size) for size in shape[len(bounds) :])])


def _size(piece: Piece, dtype: Any) -> int:
    return int(np.prod([stop - start for start, stop in piece.place], dtype=np.int64)) * np.dtype(dtype).itemsize


def _array(mesh: Any, aval: Any, spec: Any) -> Any:
    """Returns an array of Alpa's whose buffers aren't there yet."""
    from alpa.device_mesh import DistributedArray, RemoteArrayRef

    return DistributedArray(mesh, aval, spec, RemoteArrayRef(mesh))


def _fetched(array: Any, step: int, sources: Mapping[Piece, Any]) -> list[Any]:
    """Has each worker of an array's mesh fetch its part; returns the calls to wait for."""
    per_host = array.device_mesh.num_devices_per_host
    places = [_place(index, array.shape) for index in array.indices]
    return [
        worker.__ray_call__.remote(
            _keepers.fetch, array.remote_ref.uuid, array.dtype, places[n * per_host : (n + 1) * per_host], step, sources
        )
        for n, worker in enumerate(array.device_mesh.workers)
    ]
