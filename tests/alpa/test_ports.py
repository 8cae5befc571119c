"""Ports of hosts send bytes to each other, and what has no answer is named."""

import contextlib
import socket
import threading
from types import SimpleNamespace

import pytest
import ray

from alpa_dejavu.alpa._ports import Port, RayPorts, ray_ports
from alpa_dejavu.calibration.bench import Flows, MeasurementError


@pytest.fixture
def ports():
    made = [Port("127.0.0.1", b"t" * 16, 600.0) for _ in range(3)]
    yield made
    for port in made:
        port.close()


def test_ports_send_bytes_to_each_other(ports):
    found = []
    threads = [
        threading.Thread(target=lambda port=port: found.append(port.send(ports[2].address(), 1 << 20)))
        for port in ports[:2]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2


def test_ports_hang_up_on_strangers_and_say_who_is_not_there(ports):
    with socket.create_connection(ports[0].address(), timeout=600.0) as stranger:
        stranger.sendall(b"x" * 16 + b"\0" * 8)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    other = Port("127.0.0.1", b"u" * 16, 600.0)
    with pytest.raises(OSError, match=r"hung up|reset|[Pp]ipe"):
        other.send(ports[0].address(), 1 << 20)
    gone = other.address()
    other.close()
    with pytest.raises(OSError, match=r"refused|reset"):
        ports[0].send(gone, 1)


class Call:
    """Stands for a method of an actor: its calls are named by where they go."""

    def remote(self, target, num_bytes):
        return target


@pytest.mark.parametrize(
    ("late", "failed", "said"),
    [
        ([2], {}, "64 bytes from 'b' to 'c': no answer in 20 s"),
        ([], {0: OSError("unreachable")}, "64 bytes from 'c' to 'a': OSError: unreachable"),
    ],
)
def test_what_has_no_answer_is_named_with_the_pair(monkeypatch, late, failed, said):
    def answer(call):
        if call in failed:
            error = ray.exceptions.RaySystemError("in an actor")
            error.cause = failed[call]
            raise error
        return 1.0

    monkeypatch.setattr(ray, "wait", lambda calls, **_: ([call for call in calls if call not in late], late))
    monkeypatch.setattr(ray, "get", answer)
    ports = RayPorts([SimpleNamespace(send=Call())] * 3, [0, 1, 2], ["a", "b", "c"])
    with pytest.raises(MeasurementError, match=said):
        ports(Flows(((1, 2), (2, 0)), 64))


def test_a_host_that_has_left_is_named(monkeypatch):
    nodes = [{"NodeID": str(n), "NodeManagerAddress": f"10.0.0.{n}", "Alive": n == 1} for n in (1, 2)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with pytest.raises(MeasurementError, match="host 'b' has left the cluster"), ray_ports(["1", "2"], ["a", "b"]):
        pass


def sent_s(seconds, num_bytes):
    """How long a message is said to take, if those that are sent take such seconds; and how many are sent."""
    ends = iter([end for one in seconds for end in (10.0, 10.0 + one)])
    sender = Port("127.0.0.1", b"t" * 16, 600.0, lambda: next(ends))
    receiver = Port("127.0.0.1", b"t" * 16, 600.0)
    try:
        found = sender.send(receiver.address(), num_bytes)
    finally:
        sender.close()
        receiver.close()
    return found, len(seconds) - len(list(ends)) // 2


def test_of_small_messages_the_quickest_counts_and_of_large_ones_the_middle():
    quickest = [0.5, *(0.25 + n / 16 for n in range(15, 0, -1)), 9.0]
    assert sent_s(quickest, 1) == (pytest.approx(0.3125), 16)
    assert sent_s([0.015625, 0.0078125, 0.25, 9.0], 1 << 21) == (0.015625, 3)
    assert sent_s([0.5, 9.0], 1 << 21) == (0.5, 1)


def test_an_end_that_does_not_answer_in_time_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hasty = Port("127.0.0.1", b"t" * 16, 0.1)
        with pytest.raises(TimeoutError):
            hasty.send(silent.getsockname(), 1)
        hasty.close()
