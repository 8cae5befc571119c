"""Hosts of a small cluster that stand on this machine: network namespaces, shaped links, CPU quotas, and Ray nodes.

In: how many hosts there are, the rates of their links, and shares of a core; root and Linux.
Out: context managers whose hosts, with all that runs on them, are gone when their blocks end.
"""

from __future__ import annotations

from alpa_dejavu.playground.hosts._namespaces import HostNetwork, NotShownError, end_host, enter, network, shape
from alpa_dejavu.playground.hosts._nodes import Nodes, nodes
from alpa_dejavu.playground.hosts._quotas import LEAST_SHARE, Quotas, quotas

__all__ = [
    "LEAST_SHARE",
    "HostNetwork",
    "Nodes",
    "NotShownError",
    "Quotas",
    "end_host",
    "enter",
    "network",
    "nodes",
    "quotas",
    "shape",
]
