"""Bytes from one host to another by TCP, and how long they took: what an actor on each host does.

It listens on Ray's address of its host, and hangs up on whoever doesn't begin with the token.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from typing import final

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
