"""Plans that run on the hosts of a network, by a process in the driver's namespace, on workers that stay while plans
come and go: a plan's stages are put on those that run already, in the plan's order.

Alpa keeps the submeshes that it has launched first. Starting workers takes longer than measuring a plan, so plans
whose stages are on the same sets of hosts share them.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, final

from _measured_jobs import Job
from alpa_dejavu.problem import Plan
from harness import Remote, answer_all
from real_hosts import HostNetwork, Nodes, enter

_PATIENCE_S = 10.0


def driver(net: HostNetwork, nodes: Nodes) -> contextlib.AbstractContextManager[Remote]:
    """A process in the driver's namespace, connected to the nodes; gone when the block ends."""
    arguments = net, nodes.address, nodes.environment
    return Remote.started(_serve, *arguments, name="driver", patience_s=_PATIENCE_S)


def _serve(connection: Connection, net: HostNetwork, address: str, environment: Mapping[str, str]) -> None:
    enter(net.namespace(net.driver))
    os.environ.update(environment)
    os.environ.pop("RAY_ADDRESS", None)
    import ray

    # AutoStageOption leaves its profile in the working directory.
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        own = net.address(net.driver)
        ray.init(address=address, _node_ip_address=own, log_to_driver=False, logging_level="warning")
        server = _Server()
        answer_all(connection, server)
        server.close()


@final
@dataclasses.dataclass
class _Server:
    """The methods that a `driver` has."""

    meshes: Any = None
    runs: list[Any] = dataclasses.field(default_factory=list)

    def hosts(self) -> list[str]:
        """The names that the planner knows the hosts by, in their order."""
        from alpa.device_mesh import get_global_virtual_physical_mesh

        from alpa_dejavu.alpa.ray_cluster import host_names

        self._connect_anew()
        return host_names(get_global_virtual_physical_mesh())

    def links(self) -> Any:
        """The links of the cluster as it is, as `alpa-dejavu calibrate --links` measures them."""
        from alpa_dejavu.calibration import read_calibration
        from alpa_dejavu.cli.calibrate import calibrate

        self.close()
        with tempfile.TemporaryDirectory() as directory:
            file = os.path.join(directory, "links.json")
            calibrate.main(["--links", "--every-pair", "--output", file], standalone_mode=False)
            return read_calibration(file).host_links

    def launch(self, places: list[Place]) -> list[list[int]]:
        """Starts the workers of these meshes in place of those that were there; the processes of each."""
        import ray

        from hetero._runs import Meshes

        self._connect_anew()
        self.meshes = Meshes(places)
        # A lambda, since workers can't import what is beside a script.
        process = lambda _worker: os.getpid()  # noqa: E731
        calls = [[worker.__ray_call__.remote(process) for worker in mesh.workers] for mesh in self.meshes.launched]
        return [ray.get(called) for called in calls]

    def compile(self, job: Job, plan: Plan) -> float:
        """Compiles a plan whose stages are on meshes that were launched; its number is one more than the last one's."""
        from alpa_dejavu.alpa import PlanRun
        from hetero._runs import needed

        self.meshes.use(needed(plan, self.meshes.names))
        start = time.perf_counter()
        self.runs.append(PlanRun(plan, job.model))
        return time.perf_counter() - start

    def steps(self, number: int, count: int) -> list[float]:
        """Seconds of so many steps by a plan."""
        run = self.runs[number]
        return [run.step().step_s for _ in range(count)]

    def auto(self, job: Job, count: int) -> dict[str, Any]:
        """AutoStageOption's plan of a job for so many micro-batches, and the seconds that it took."""
        from _measured_runs import auto_plan

        self._connect_anew()
        return auto_plan(job, count)

    def close(self) -> None:
        import alpa

        self.runs.clear()
        if self.meshes is not None:
            self.meshes.close()
            self.meshes = None
        if alpa.api.is_initialized:
            alpa.shutdown()

    def _connect_anew(self) -> None:
        import alpa
        from alpa.api import clear_executable_cache

        self.close()
        clear_executable_cache()
        alpa.init("ray")


Place = tuple[int, ...]
"""The hosts of a mesh, in its order."""


def needed(plan: Plan, names: Sequence[str]) -> list[Place]:
    """The hosts of each stage."""
    numbers = {name: number for number, name in enumerate(names)}
    return [tuple(numbers[host] for host in stage.hosts) for stage in plan.stages]


@final
class Meshes:
    """The meshes of the cluster that Alpa is connected to, one device on each host."""

    def __init__(self, places: Sequence[Place]) -> None:
        from alpa.device_mesh import get_global_virtual_physical_mesh
        from alpa.pipeline_parallel import stage_construction

        from alpa_dejavu.alpa import install
        from alpa_dejavu.alpa._places import on_hosts
        from alpa_dejavu.alpa.ray_cluster import host_names

        install()
        self._virtual: Any = get_global_virtual_physical_mesh()
        with on_hosts(places):
            sliced = stage_construction.get_sliced_virtual_submeshes(self._virtual, [(len(p), 1) for p in places])
        self._all: Any = self._virtual.get_physical_mesh_group(sliced)
        self._by_place = dict(zip(places, self._all.meshes, strict=True))
        self.names = host_names(self._virtual)

    @property
    def launched(self) -> list[Any]:
        """All of them, in the order of their places."""
        return list(self._all.meshes)

    def use(self, places: Sequence[Place]) -> None:
        """Has the next plan that Alpa compiles run on these meshes, in this order."""
        chosen = []
        for number, place in enumerate(places):
            # Another view of the same workers: a mesh knows its number in the pipeline.
            mesh = copy.copy(self._by_place[place])
            mesh.mesh_id = number
            chosen.append(mesh)
        self._virtual.launched_physical_mesh_group = type(self._all)(chosen, self._virtual)

    def close(self) -> None:
        """All of them are there again, to be shut down."""
        self._virtual.launched_physical_mesh_group = self._all
