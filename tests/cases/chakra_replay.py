"""A small replayer of Chakra's execution traces, written from its documentation and not from our writer.

It reads the wire format of protocol buffers by itself. A node begins once those that it depends on have ended; a rank
computes one thing at a time. The n-th collective that each rank of a group begins is the same one: it starts when the
last rank is there. A send and a receive are a pair if source, destination, tag and size are equal. `rendezvous` has a
transfer start when both ends are there, as NCCL does; else it starts with the send, as in ASTRA-sim.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
_US_PER_S = 1e6


@dataclasses.dataclass
class Node:
    """A node of a rank's trace, with its attributes by their names."""

    rank: int
    number: int = 0
    name: str = ""
    kind: int = 0
    needs: tuple[int, ...] = ()
    micros: int = 0
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Replayed:
    """A replayed step: its seconds, and how many nodes of each kind and pairs of send and receive there were."""

    step_s: float
    nodes: Mapping[int, int]
    pairs: int


def read_traces(folder: Path) -> tuple[list[list[Node]], dict[str, list[int]]]:
    """The nodes of each rank, and the ranks of each group, from the files of a folder."""
    paths = sorted(folder.glob("*.et"), key=lambda path: int(path.name.split(".")[-2]))
    if [int(path.name.split(".")[-2]) for path in paths] != list(range(len(paths))):
        raise ValueError(f"{folder} must have a trace of each rank from 0 on")
    groups = json.loads((folder / "groups.json").read_text(encoding="utf-8"))
    return [list(_nodes(rank, path.read_bytes())) for rank, path in enumerate(paths)], groups


def replay(ranks: list[list[Node]], groups: Mapping[str, list[int]], rendezvous: bool = True) -> Replayed:
    """Replays traces until nothing is left.

    Raises:
        ValueError: something waits forever, collectives of a group differ, or an end of a transfer has no other end.
    """
    return _Replay(ranks, groups, rendezvous).run()


class _Replay:
    def __init__(self, ranks: list[list[Node]], groups: Mapping[str, list[int]], rendezvous: bool) -> None:
        self.groups, self.rendezvous = groups, rendezvous
        self.nodes = {(node.rank, node.number): node for nodes in ranks for node in nodes}
        self.left = {key: len(set(node.needs)) for key, node in self.nodes.items()}
        self.after = collections.defaultdict(list)
        for key, node in self.nodes.items():
            for need in set(node.needs):
                if (node.rank, need) not in self.nodes:
                    raise ValueError(f"rank {node.rank}: {node.name} needs node {need}, which isn't there")
                self.after[node.rank, need].append(key)
        self.events: list[tuple[float, int, tuple[int, int]]] = []
        self.free = [0.0] * len(ranks)
        self.ends: dict[tuple[Any, ...], tuple[int, tuple[int, int], float]] = {}
        self.begun: collections.Counter[tuple[int, str]] = collections.Counter()
        self.gathered: dict[tuple[str, int], list[tuple[tuple[int, int], float]]] = collections.defaultdict(list)
        self.pairs, self.done, self.now = 0, 0, 0.0

    def run(self) -> Replayed:
        for key, left in self.left.items():
            if not left:
                self.begin(key, 0.0)
        while self.events:
            self.now, _, key = heapq.heappop(self.events)
            self.done += 1
            for follower in self.after[key]:
                self.left[follower] -= 1
                if not self.left[follower]:
                    self.begin(follower, self.now)
        if self.done < len(self.nodes):
            waiting = [self.nodes[key].name for key, left in self.left.items() if not left and self.stuck(key)]
            raise ValueError(f"{len(self.nodes) - self.done} nodes never end; waiting: {'; '.join(waiting[:4])}")
        kinds = collections.Counter(node.kind for node in self.nodes.values())
        return Replayed(self.now / _US_PER_S, kinds, self.pairs)

    def stuck(self, key: tuple[int, int]) -> bool:
        return any(key == end[1] for end in self.ends.values()) or any(
            key == one for many in self.gathered.values() for one, _ in many
        )

    def end(self, key: tuple[int, int], time: float) -> None:
        heapq.heappush(self.events, (time, len(self.events), key))

    def begin(self, key: tuple[int, int], time: float) -> None:
        node = self.nodes[key]
        if node.kind == COMPUTE:
            start = max(time, self.free[node.rank])
            self.free[node.rank] = start + node.micros
            self.end(key, start + node.micros)
        elif node.kind == COLLECTIVE:
            self.meet(key, node, time)
        elif node.kind in (SEND, RECEIVE):
            self.pair(key, node, time)
        else:
            raise ValueError(f"rank {node.rank}: {node.name} has the unknown type {node.kind}")

    def meet(self, key: tuple[int, int], node: Node, time: float) -> None:
        group = node.attributes["pg_name"]
        turn = self.begun[node.rank, group]
        self.begun[node.rank, group] += 1
        here = self.gathered[group, turn]
        here.append((key, time))
        members = self.groups[group]
        if node.rank not in members:
            raise ValueError(f"rank {node.rank}: {node.name} is in group {group}, which has only {members}")
        if len(here) < len(members):
            return
        told = {tuple(self.nodes[one].attributes[name] for name in ("comm_type", "comm_size")) for one, _ in here}
        if len(told) > 1:
            raise ValueError(f"group {group} begins unlike collectives as its number {turn}: {told}")
        start = max(time for _, time in here)
        for one, _ in here:
            self.end(one, start + self.nodes[one].micros)
        del self.gathered[group, turn]

    def pair(self, key: tuple[int, int], node: Node, time: float) -> None:
        told = node.attributes
        own = told["comm_src"] if node.kind == SEND else told["comm_dst"]
        if own != node.rank:
            raise ValueError(f"rank {node.rank}: {node.name} is an end of rank {own}'s")
        ends = tuple(told[name] for name in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
        if not self.rendezvous and node.kind == SEND:
            self.end(key, time + node.micros)
        if ends not in self.ends:
            self.ends[ends] = node.kind, key, time
            return
        kind, other, before = self.ends.pop(ends)
        if kind == node.kind:
            raise ValueError(f"rank {node.rank}: {node.name} has another end of the same kind")
        self.pairs += 1
        if self.rendezvous:
            for one in (key, other):
                self.end(one, time + node.micros)
            return
        sent, receiver = (before, key) if node.kind == RECEIVE else (time, other)
        self.end(receiver, max(time, sent + node.micros))


def _nodes(rank: int, content: bytes) -> Iterator[Node]:
    at, first = 0, True
    while at < len(content):
        length, at = _varint(content, at)
        if not first:
            yield _node(rank, content[at : at + length])
        at, first = at + length, False


def _node(rank: int, message: bytes) -> Node:
    node = Node(rank)
    for field, value in _fields(message):
        if field == 1:
            node.number = value
        elif field == 2:
            node.name = value.decode("utf-8")
        elif field == 3:
            node.kind = value
        elif field in (4, 5):
            node.needs += tuple(_packed(value)) if isinstance(value, bytes) else (value,)
        elif field == 7:
            node.micros = value
        elif field == 10:
            told = dict(_fields(value))
            (name,) = (told.pop(1),)
            (held,) = told.values()
            node.attributes[name.decode("utf-8")] = held.decode("utf-8") if isinstance(held, bytes) else held
    return node


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
        elif key & 7 == 2:
            length, at = _varint(message, at)
            yield key >> 3, message[at : at + length]
            at += length
        else:
            raise ValueError(f"a field has the wire type {key & 7}, which no field of a node has")


def _packed(content: bytes) -> Iterator[int]:
    at = 0
    while at < len(content):
        value, at = _varint(content, at)
        yield value


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
