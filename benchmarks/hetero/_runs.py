"""Plans that run on the hosts of a network, by a process in the driver's namespace."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, final

from _measured_jobs import Job
from alpa_dejavu.problem import Plan
from harness import Remote, answer_all
from hetero._meshes import Place
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
        """What `alpa-dejavu calibrate --links` measures of the cluster as it is."""
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

        from hetero._meshes import Meshes

        self._connect_anew()
        self.meshes = Meshes(places)
        # A lambda, since workers can't import what is beside a script.
        process = lambda _worker: os.getpid()  # noqa: E731
        calls = [[worker.__ray_call__.remote(process) for worker in mesh.workers] for mesh in self.meshes.launched]
        return [ray.get(called) for called in calls]

    def compile(self, job: Job, plan: Plan) -> float:
        """Compiles a plan whose stages are on meshes that were launched; its number is one more than the last one's."""
        from alpa_dejavu.alpa import PlanRun
        from hetero._meshes import needed

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
