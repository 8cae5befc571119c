"""Hosts as network namespaces: each has an address of its own, and a link of its own to every other one.

Nothing of the machine's own network is touched: both ends of every link are in namespaces, and no port is open
outside. The driver is in a namespace, too, whose links nobody shapes: what it tells the hosts isn't what is measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import final

from alpa_dejavu._util.units import byte_rate
from real_hosts._leftovers import is_leftover, own_name

__all__ = ["HostNetwork", "NotShownError", "end_host", "end_processes", "enter", "network", "path", "ran", "shape"]


class NotShownError(RuntimeError):
    """This machine can't hold such hosts; the message says why."""


def ran(*command: str) -> str:
    """Runs a command, and returns its output.

    Raises:
        NotShownError: it isn't there, or it failed; with what it said.
    """
    try:
        # Where an ordinary user's PATH lacks it, root's tools are in /usr/sbin.
        path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    except FileNotFoundError:
        raise NotShownError(f"there is no {command[0]!r} here; install iproute2") from None
    if done.returncode:
        raise NotShownError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


_log = logging.getLogger(__name__)

_NAMED = "/run/netns"
_CLONE_NEWNET = 0x40000000
_END_S = 10.0


@final
@dataclasses.dataclass(frozen=True)
class HostNetwork:
    """Hosts, and the driver as one more; names of their namespaces begin with `prefix`, which says whose they are."""

    num_hosts: int
    prefix: str = dataclasses.field(default_factory=lambda: own_name(""))

    @property
    def driver(self) -> int:
        """Returns the driver's number."""
        return self.num_hosts

    @property
    def places(self) -> range:
        """Returns the numbers of the hosts and of the driver."""
        return range(self.num_hosts + 1)

    def namespace(self, place: int) -> str:
        """Returns the name of a host's namespace."""
        return f"{self.prefix}{place}"

    def address(self, place: int) -> str:
        """Returns a host's address in all namespaces."""
        return f"10.77.0.{place + 1}"

    def device(self, other: int) -> str:
        """Returns how every host calls its link to another one."""
        return f"to{other}"


@contextlib.contextmanager
def network(num_hosts: int) -> Iterator[HostNetwork]:
    """Makes namespaces for so many hosts and a driver, each joined with each; they and all processes in them go at the
    end.

    Raises:
        NotShownError: this isn't Linux with iproute2, or this process isn't root.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise NotShownError("network namespaces need root; run this as root on Linux")
    _remove(leftovers=True)
    net = HostNetwork(num_hosts)
    try:
        for place in net.places:
            ran("ip", "netns", "add", net.namespace(place))
            ran("ip", "-n", net.namespace(place), "address", "add", f"{net.address(place)}/32", "dev", "lo")
            ran("ip", "-n", net.namespace(place), "link", "set", "lo", "up")
        for a, b in itertools.combinations(net.places, 2):
            _join(net, a, b)
        yield net
    finally:
        _remove(leftovers=False)


def end_processes(net: HostNetwork) -> None:
    """Ends all that runs in the namespaces."""
    for place in net.places:
        end_host(net, place)


def end_host(net: HostNetwork, place: int) -> None:
    """Ends all that runs in a namespace, at once."""
    _end_all(net.namespace(place))


def _join(net: HostNetwork, a: int, b: int) -> None:
    ends = ((a, b), (b, a))
    link = ("type", "veth", "peer", "name", net.device(a), "netns", net.namespace(b))
    ran("ip", "-n", net.namespace(a), "link", "add", net.device(b), *link)
    for near, far in ends:
        ran("ip", "-n", net.namespace(near), "link", "set", net.device(far), "up")
    for near, far in ends:
        way = (f"{net.address(far)}/32", "dev", net.device(far), "src", net.address(near))
        ran("ip", "-n", net.namespace(near), "route", "add", *way)


def path(namespace: str) -> str:
    """Returns the file that stands for a namespace."""
    return f"{_NAMED}/{namespace}"


def enter(namespace: str) -> None:
    """Puts this thread, and threads and processes that it starts, into a namespace.

    Raises:
        OSError: it can't be entered.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path(namespace), os.O_RDONLY)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns({namespace}): {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)


def _remove(leftovers: bool) -> None:
    """Ends all that runs in the namespaces of this process, or of processes that are gone, and removes them."""
    try:
        names = os.listdir(_NAMED)
    except OSError:
        return
    mine = own_name("")
    for name in names:
        if is_leftover(name) if leftovers else name.startswith(mine):
            try:
                _end_all(name)
                ran("ip", "netns", "delete", name)
            except NotShownError as error:
                # The others are removed all the same, and the next run tries again.
                _log.warning("%s", error)


def _end_all(namespace: str) -> None:
    deadline = time.monotonic() + _END_S
    while pids := [int(pid) for pid in ran("ip", "netns", "pids", namespace).split()]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            # Those that are this process's own children stay listed until somebody waits for them.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)


_BURST, _LIMIT = "32kb", "256kb"
_PACKET_BYTES = 16000
"""The bytes that the kernel hands over at once are kept below the bucket, which would be filled anew by each."""


def shape(net: HostNetwork, bytes_per_s: Sequence[Sequence[float]]) -> None:
    """Sets the rates of all links between hosts, in place of those that they had.

    Args:
        net: the hosts.
        bytes_per_s: `[a][b]` is from host a to host b; the diagonal isn't looked at.

    Raises:
        ValueError: a rate isn't positive.
    """
    for a, row in enumerate(bytes_per_s):
        for b, rate in enumerate(row):
            if a != b and not rate > 0:
                raise ValueError(f"the link from host {a} to host {b} has {byte_rate(rate)}; give a positive rate")
    for a, row in enumerate(bytes_per_s):
        for b, rate in enumerate(row):
            if a == b:
                continue
            namespace, device = net.namespace(a), net.device(b)
            ran("ip", "-n", namespace, "link", "set", device, "gso_max_size", str(_PACKET_BYTES))
            ran(
                "tc", "-n", namespace, "qdisc", "replace", "dev", device, "root",
                "tbf", "rate", f"{round(8 * rate)}bit", "burst", _BURST, "limit", _LIMIT,
            )  # fmt: skip
