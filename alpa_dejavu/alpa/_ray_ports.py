"""Opens a port in an actor on each of Ray's nodes, and sends messages between them at the same time."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from alpa_dejavu._util import units
from alpa_dejavu.alpa._ports import Port
from alpa_dejavu.calibration.bench import Flows, MeasurementError, Probe

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
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    addresses = _addresses(nodes, names)
    actor = ray.remote(num_cpus=0, max_concurrency=_ABREAST)(Port)
    token, ports = secrets.token_bytes(_TOKEN_BYTES), []
    try:
        for node, address in zip(nodes, addresses, strict=True):
            on_node = actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            ports.append(on_node.remote(address, token, _PATIENCE_S))
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
