"""The cluster that cases are measured on, one after the other: its links and shares change, its nodes stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, final

from _measured_jobs import Job
from alpa_dejavu.calibration import HostLinks
from alpa_dejavu.problem import Plan
from harness import Remote
from hetero._cases import FAST, Case
from hetero._layouts import label
from hetero._runs import Place, driver, needed
from real_hosts import HostNetwork, Quotas, network, nodes, quotas, shape


@final
class Bench:
    """Hosts that compile at full speed, and run plans at the shares and rates of a case."""

    def __init__(self, net: HostNetwork, limits: Quotas, driver: Remote) -> None:
        self._net, self._limits, self._driver = net, limits, driver
        self._launched: tuple[Place, ...] = ()
        self._compiled: dict[tuple[str, str], int] = {}
        self._unshaped = [[FAST] * net.num_hosts for _ in range(net.num_hosts)]
        self.names: list[str] = driver("hosts")

    def compile(self, job: Job, plan: Plan) -> float:
        """Seconds that it took; none where it was done already, and nobody has started other workers since."""
        self._launch(self.group(plan))
        key = job.name, label(plan, self.names)
        if key in self._compiled:
            return 0.0
        self._full_speed()
        seconds: float = self._driver("compile", job, plan)
        self._compiled[key] = len(self._compiled)
        return seconds

    def steps(self, job: Job, plan: Plan, count: int) -> list[float]:
        """Seconds of so many steps by a plan that was compiled, while the cluster is as `set` has left it."""
        steps: list[float] = self._driver("steps", self._compiled[job.name, label(plan, self.names)], count)
        return steps

    def calibrated(self, case: Case) -> HostLinks:
        """The links of a case as they are measured."""
        self._full_speed()
        shape(self._net, case.bytes_per_s)
        self._launched = ()
        self._compiled.clear()
        links: HostLinks = self._driver("links")
        return links

    def set(self, case: Case) -> None:
        """Links and shares as the case has them."""
        shape(self._net, case.bytes_per_s)
        self._limits.limit(case.shares)

    def auto(self, job: Job, count: int) -> dict[str, Any]:
        """AutoStageOption's plan, on equal hosts with equal links."""
        self._full_speed()
        self._launched = ()
        self._compiled.clear()
        plan: dict[str, Any] = self._driver("auto", job, count)
        return plan

    def group(self, plan: Plan) -> tuple[Place, ...]:
        """The meshes that a plan's workers are started with: plans of the same group take turns."""
        several = sorted(place for place in needed(plan, self.names) if len(place) > 1)
        taken = {host for place in several for host in place}
        return (*several, *((host,) for host in range(self._net.num_hosts) if host not in taken))

    def _launch(self, places: tuple[Place, ...]) -> None:
        if places == self._launched:
            return
        self._full_speed()
        self._compiled.clear()
        processes = self._driver("launch", list(places))
        self._launched = places
        for place, pids in zip(places, processes, strict=True):
            for host, pid in zip(place, pids, strict=True):
                self._limits.put(host, [pid])

    def _full_speed(self) -> None:
        self._limits.limit(None)
        shape(self._net, self._unshaped)


@contextlib.contextmanager
def bench(num_hosts: int, environment: Mapping[str, str]) -> Iterator[Bench]:
    """A network with its nodes; all of it is gone when the block ends.

    Raises:
        NotShownError: this machine can't hold one.
    """
    with (
        network(num_hosts) as net,
        quotas(num_hosts) as limits,
        nodes(net, environment) as started,
        driver(net, started) as connected,
    ):
        yield Bench(net, limits, connected)
