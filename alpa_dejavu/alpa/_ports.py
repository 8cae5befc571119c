"""Bytes from one host to another by TCP, and how long they took: an actor on each of Ray's nodes sends them.

It listens on Ray's address of its host, and hangs up on whoever doesn't begin with the token.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from alpa_dejavu._util import units
from alpa_dejavu.alpa._nodes import on_node
from alpa_dejavu.calibration.bench import Flows, MeasurementError, Probe

_SIZE = struct.Struct("!Q")
_CHUNK = 1 << 20
_GOT = b"\x01"
_SMALL_BYTES, _SMALL_RUNS = 1 << 10, 15
_QUICK_S, _QUICK_RUNS = 0.02, 3


@final
class Port:
    """A TCP port on a host's IP address, which sends messages to other such ports, times them, and answers those that
    begin with the token; one that doesn't answer within `patience_s` is given up.
    """

    def __init__(
        self, address: str, token: bytes, patience_s: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._token, self._patience_s, self._clock = token, patience_s, clock
        self._server = socket.create_server((address, 0), backlog=128)
        self._lines: dict[tuple[str, int], socket.socket] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def address(self) -> tuple[str, int]:
        """Returns the host's address and the number of the TCP port that listens there."""
        host, port = self._server.getsockname()[:2]
        return str(host), int(port)

    def send(self, target: tuple[str, int], num_bytes: int) -> float:
        """Sends messages of so many bytes to another port (IP address and number); returns the seconds until the
        answer.

        Of small messages it is the least, as whatever else runs can only make them slower; of larger ones the median,
        as they share links. Raises OSError if the port can't be reached, or doesn't answer in time.
        """
        first = self._message(target, num_bytes)
        if num_bytes <= _SMALL_BYTES:
            return min(self._message(target, num_bytes) for _ in range(_SMALL_RUNS))
        more = _QUICK_RUNS - 1 if first < _QUICK_S else 0
        return statistics.median([first, *(self._message(target, num_bytes) for _ in range(more))])

    def close(self) -> None:
        """Closes the port: it hangs up on others, and listens no longer."""
        for line in (self._server, *self._lines.values()):
            # Wakes whoever waits at it.
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        self._lines.clear()

    def _message(self, target: tuple[str, int], num_bytes: int) -> float:
        line = self._lines.get(target) or self._connect(target)
        started = self._clock()
        try:
            line.sendall(_SIZE.pack(num_bytes))
            block, left = memoryview(bytes(min(num_bytes, _CHUNK))), num_bytes
            while left:
                line.sendall(block[:left])
                left -= min(left, _CHUNK)
            if not line.recv(1):
                raise ConnectionResetError("the other end hung up")
        except OSError:
            line.close()
            del self._lines[target]
            raise
        return self._clock() - started

    def _connect(self, target: tuple[str, int]) -> socket.socket:
        line = socket.create_connection(target, timeout=self._patience_s)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sendall(self._token)
        self._lines[target] = line
        return line

    def _listen(self) -> None:
        # It ends when the server is closed.
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._server.accept()
                threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError), line:
            line.settimeout(self._patience_s)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _received(line, len(self._token)) != self._token:
                return
            # Between messages it may be quiet for long.
            line.settimeout(None)
            block = memoryview(bytearray(_CHUNK))
            while True:
                size = _received(line, _SIZE.size)
                if len(size) < _SIZE.size:
                    return
                (left,) = _SIZE.unpack(size)
                while left:
                    got = line.recv_into(block[: min(left, _CHUNK)])
                    if not got:
                        return
                    left -= got
                line.sendall(_GOT)


def _received(line: socket.socket, count: int) -> bytes:
    """Receives so many bytes, or fewer if the other end hangs up."""
    got = b""
    while len(got) < count:
        part = line.recv(count - len(got))
        if not part:
            break
        got += part
    return got


_PATIENCE_S = 10.0
_START_S = 60.0
"""Actors start slowly where Ray has to start a process for each."""
_TOKEN_BYTES = 16
_ABREAST = 8
"""Messages that one host sends at a time, at most."""
_LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def ray_ports(nodes: Sequence[str], names: Sequence[str]) -> Iterator[RayPorts]:
    """Opens a TCP port on each of some nodes of Ray's for a `with` block, and yields what times messages between them.
    Raises MeasurementError, with the host's name, if one has left the cluster, or can't open a port.
    """
    import ray

    addresses = _addresses(nodes, names)
    actor = ray.remote(num_cpus=0, max_concurrency=_ABREAST)(Port)
    token, ports = secrets.token_bytes(_TOKEN_BYTES), []
    try:
        for node, address in zip(nodes, addresses, strict=True):
            ports.append(actor.options(scheduling_strategy=on_node(node)).remote(address, token, _PATIENCE_S))
        asked = {port.address.remote(): f"host {name!r}" for port, name in zip(ports, names, strict=True)}
        yield RayPorts(ports, _answers(asked, _START_S), names)
    finally:
        for port in ports:
            ray.kill(port)


def _addresses(nodes: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns the nodes' addresses; on a cluster of one machine the loopback, so that no port is open to others."""
    import ray

    addresses = {str(node["NodeID"]): str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]}
    for node, name in zip(nodes, names, strict=True):
        if node not in addresses:
            raise MeasurementError(f"host {name!r} has left the cluster")
    node_addresses = [addresses[node] for node in nodes]
    on_one_machine = set(node_addresses) == {ray.util.get_node_ip_address()}
    return [_LOOPBACK] * len(node_addresses) if on_one_machine else node_addresses


@final
class RayPorts:
    """TCP ports in Ray's actors, one on each host, at IP addresses and ports, by which messages are timed."""

    def __init__(self, ports: Sequence[Any], addresses: Sequence[tuple[str, int]], names: Sequence[str]) -> None:
        self._ports, self._addresses, self._names = ports, addresses, names

    def __call__(self, probe: Probe) -> dict[str, float]:
        """Returns the seconds of each flow of a probe, all started at once. Raises MeasurementError if one fails."""
        assert isinstance(probe, Flows), "flows go over links"
        asked = {
            self._ports[a].send.remote(self._addresses[b], probe.num_bytes): (
                f"{units.exact_bytes(probe.num_bytes)} from {self._names[a]!r} to {self._names[b]!r}"
            )
            for a, b in probe.pairs
        }
        return dict(zip(probe.names, _answers(asked, 2 * _PATIENCE_S), strict=True))


def _answers(asked: Mapping[Any, str], patience_s: float) -> list[Any]:
    """Returns what some remote calls give; an error names a call by what it is about."""
    import ray

    _, late = ray.wait(list(asked), num_returns=len(asked), timeout=patience_s)
    if late:
        raise MeasurementError(f"{asked[late[0]]}: no answer in {units.seconds(patience_s)}")
    answers = []
    for call, about in asked.items():
        try:
            answers.append(ray.get(call))
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            # Of an actor that didn't start, the last line says why.
            reason = str(cause).strip().splitlines()[-1]
            raise MeasurementError(f"{about}: {type(cause).__name__}: {reason}") from error
    return answers
