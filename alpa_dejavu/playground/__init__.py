"""Distributed training simulated on one machine: virtual time on the cluster's links, gradients really computed.

In: a job, a cluster, an exchange (how workers train together), faults, and when to end.
Out: a `History`: loss against virtual seconds, bytes of links, staleness, idle time. See docs/concepts/playground.md.
An exchange has one method, a program that each worker runs: it yields what it waits for. Patterns of fixed rounds are
exchanges over a `Topology`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.playground._simulate import simulate
    from alpa_dejavu.playground._world import Exchange, Worker
    from alpa_dejavu.playground.exchanges import EXCHANGES, exchange
    from alpa_dejavu.playground.fault import Fault
    from alpa_dejavu.playground.history import History
    from alpa_dejavu.playground.job import Job, Problem, Until
    from alpa_dejavu.playground.problems import problem
    from alpa_dejavu.playground.topology import Topology

__all__ = [
    "EXCHANGES", "Exchange", "Fault", "History", "Job", "Problem", "Topology", "Until", "Worker", "exchange", "problem",
    "simulate",
]  # fmt: skip

_HOME = {
    "Exchange": "_world",
    **dict.fromkeys(("EXCHANGES", "exchange"), "exchanges"),
    "Fault": "fault",
    "History": "history",
    **dict.fromkeys(("Job", "Problem", "Until"), "job"),
    "problem": "problems",
    "simulate": "_simulate",
    "Topology": "topology",
    "Worker": "_world",
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
