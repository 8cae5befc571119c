"""Hosts of a small cluster that stand on this machine: network namespaces, shaped links, CPU quotas, and Ray nodes;
`real_hosts.workers` runs the playground's exchanges on them.

It takes root and Linux. Hosts, with all that runs on them, are gone when the blocks of their context managers end.
"""

from __future__ import annotations

from real_hosts._namespaces import HostNetwork, NotShownError, end_host, enter, network, shape
from real_hosts._nodes import Nodes, nodes
from real_hosts._quotas import Quotas, quotas

__all__ = [
    "HostNetwork", "Nodes", "NotShownError", "Quotas", "end_host", "enter", "network", "nodes", "quotas", "shape",
]  # fmt: skip
