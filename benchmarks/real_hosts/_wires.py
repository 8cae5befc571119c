"""Connections of one process to others: TCP, with a secret that all of them know, and a thread for each.

A connection goes one way, from who made it. Where its other end is gone, so is the process there: the system closes
what a killed one had open.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, final

__all__ = ["Address", "Inbox", "Outbox"]

Address = tuple[str, int]


@final
class Inbox:
    """A port that other processes connect to, and what they send.

    Args:
        came: is called by a thread with the sender's number and each object that it has sent.
        gone: is called by a thread with the number of a sender whose connection has ended.
    """

    def __init__(self, host: str, key: bytes, came: Callable[[int, Any], None],
                 gone: Callable[[int], None]) -> None:  # fmt: skip
        self._listener = Listener((host, 0), backlog=64, authkey=key)
        self._came, self._gone = came, gone
        self._connections: list[Connection] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> Address:
        """Returns the address and the port."""
        host, port = self._listener.address
        return str(host), int(port)

    def close(self) -> None:
        """Closes the port and all connections."""
        with contextlib.suppress(OSError):
            # Whoever waits for a connection isn't woken by closing alone.
            socket.create_connection(self.address, 1.0).close()
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.close()

    def _accept(self) -> None:
        import multiprocessing

        while True:
            try:
                connection = self._listener.accept()
            except (multiprocessing.AuthenticationError, EOFError, ConnectionError):
                continue  # somebody who doesn't know the secret, or has left at once
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: Connection) -> None:
        sender = -1
        try:
            sender = connection.recv()
            while True:
                self._came(sender, connection.recv())
        except (EOFError, OSError, TypeError):  # a connection that is closed meanwhile has no handle any more
            if sender >= 0:
                self._gone(sender)


@final
class Outbox:
    """A connection to another process's `Inbox`, from a sender by its number; nobody waits for what is sent."""

    def __init__(self, address: Address, key: bytes, sender: int) -> None:
        self._connection = Client(address, authkey=key)
        with socket.socket(fileno=os.dup(self._connection.fileno())) as same:
            same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.send_bytes(pickle.dumps(sender))
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def put(self, sent: Any, num_bytes: int = 0) -> None:
        """Sends an object, pickled, once all before it are sent; at least `num_bytes` are sent."""
        text = pickle.dumps(sent, pickle.HIGHEST_PROTOCOL)
        self._waiting.put(text + bytes(max(num_bytes - len(text), 0)))

    def close(self) -> None:
        """Sends what waits, and closes the connection."""
        self._waiting.put(None)
        self._thread.join(10.0)
        self._connection.close()

    def _send(self) -> None:
        # Where the other end is gone, what is sent is lost.
        with contextlib.suppress(OSError):
            while (waiting := self._waiting.get()) is not None:
                self._connection.send_bytes(waiting)
