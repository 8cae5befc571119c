"""The bytes that a collective sends over each link: those of a ring, or of an exchange among all."""

from __future__ import annotations

from collections import defaultdict

from alpa_dejavu.costs.communication._base import RING_PASSES, Group

__all__ = ["link_bytes"]


def link_bytes(collective: str, num_bytes: float, group: Group) -> dict[tuple[int, int], float]:
    """Returns the bytes that one collective of a group sends, by the pair of the indices of the hosts that send and
    receive; a host with itself are its devices among themselves.

    A ring goes through the devices of a host one after the other, and through the hosts in the order of their numbers:
    each device sends (n - 1) / n of the bytes to the next one, and twice that in an all-reduce. In an all-to-all each
    device sends 1 / n of them to each other one. The models of seconds may take another order of hosts, or two levels
    of rings, which send about as much.

    Args:
        collective: its name, one of `COLLECTIVES` but "send".
        num_bytes: as `CommunicationModel.seconds` takes them.
        group: the devices.

    >>> from alpa_dejavu.testing import example_cluster
    >>> link_bytes("all_reduce", 4.0, Group(example_cluster(2), (0, 0, 1, 1)))
    {(0, 0): 6.0, (0, 1): 6.0, (1, 1): 6.0, (1, 0): 6.0}
    """
    hosts, found = sorted(group.hosts), defaultdict[tuple[int, int], float](float)
    size = len(hosts)
    if collective == "all_to_all":
        share = num_bytes / size
        for n, sender in enumerate(hosts):
            for receiver in hosts[:n] + hosts[n + 1 :]:
                found[sender, receiver] += share
    elif size > 1:
        share = RING_PASSES[collective] * (size - 1) / size * num_bytes
        for hop in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
            found[hop] += share
    return dict(found)
