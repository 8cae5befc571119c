"""Plans that run on the hosts of a network, by a process in the driver's namespace."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, final

from _measured_jobs import Job
from alpa_dejavu._util.child_process import child_process
from alpa_dejavu.alpa.resume import Trained
from alpa_dejavu.calibration._host_links import HostLinks
from alpa_dejavu.problem import Plan
from hetero._meshes import Place
from hetero._namespaces import Network, end_host, enter
from hetero._nodes import Nodes

__all__ = ["Driver", "driver"]

_PATIENCE_S = 10.0


@final
class Driver:
    """The process in the driver's namespace, as seen from outside."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def hosts(self) -> list[str]:
        """The names that the planner knows the hosts by, in their order."""
        return list(self._asked("hosts"))

    def links(self) -> HostLinks:
        """What `alpa-dejavu calibrate --links` measures of the cluster as it is."""
        measured = self._asked("links")
        assert isinstance(measured, HostLinks), "the command writes links"
        return measured

    def launch(self, places: Sequence[Place]) -> list[list[int]]:
        """Starts the workers of these meshes in place of those that were there; the processes of each."""
        return list(self._asked("launch", list(places)))

    def compile(self, job: Job, plan: Plan) -> float:
        """Compiles a plan whose stages are on meshes that were launched; its number is one more than the last one's."""
        return float(self._asked("compile", job, plan))

    def steps(self, number: int, count: int) -> list[float]:
        """Seconds of so many steps by a plan."""
        return list(self._asked("steps", number, count))

    def auto(self, job: Job, count: int) -> dict[str, Any]:
        """AutoStageOption's plan of a job for so many micro-batches, and the seconds that it took."""
        return dict(self._asked("auto", job, count))

    def train_and_kill(self, job: Job, plan: Plan, host: int) -> tuple[Trained, list[float]]:
        """Trains while a host is killed; what came out, and the losses of an undisturbed run."""
        trained, expected = self._asked("train_and_kill", job, plan, host)
        return trained, list(expected)

    def _asked(self, what: str, *arguments: Any) -> Any:
        """What the other process answers.

        Raises:
            RuntimeError: it has ended, or something failed there.
        """
        try:
            self._connection.send((what, *arguments))
            failed, answer = self._connection.recv()
        except (EOFError, OSError):
            raise RuntimeError("the driver's process ended without an answer: see its error above") from None
        if failed:
            raise RuntimeError(answer)
        return answer


@contextlib.contextmanager
def driver(net: Network, nodes: Nodes) -> Iterator[Driver]:
    """A process in the driver's namespace, connected to the nodes; gone when the block ends."""
    arguments = net, nodes.address, nodes.environment
    with child_process(_serve, *arguments, name="driver", patience_s=_PATIENCE_S) as connection:
        yield Driver(connection)


def _serve(connection: Connection, net: Network, address: str, environment: Mapping[str, str]) -> None:
    enter(net.namespace(net.driver))
    os.environ.update(environment)
    os.environ.pop("RAY_ADDRESS", None)
    import ray

    # AutoStageOption leaves its profile in the working directory.
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        own = net.address(net.driver)
        ray.init(address=address, _node_ip_address=own, log_to_driver=False, logging_level="warning")
        server = _Server(net)
        while True:
            try:
                what, *asked = connection.recv()
            except EOFError:
                server.close()
                return
            try:
                connection.send((False, getattr(server, what)(*asked)))
            except Exception:
                connection.send((True, traceback.format_exc()))


@final
@dataclasses.dataclass
class _Server:
    net: Network
    meshes: Any = None
    runs: list[Any] = dataclasses.field(default_factory=list)

    def hosts(self) -> list[str]:
        from alpa.device_mesh import get_global_virtual_physical_mesh

        from alpa_dejavu.alpa.ray_cluster import host_names

        self._connect_anew()
        return host_names(get_global_virtual_physical_mesh())

    def links(self) -> Any:
        from alpa_dejavu.calibration import read_calibration
        from alpa_dejavu.cli.calibrate import calibrate

        self.close()
        with tempfile.TemporaryDirectory() as directory:
            file = os.path.join(directory, "links.json")
            calibrate.main(["--links", "--every-pair", "--output", file], standalone_mode=False)
            return read_calibration(file).host_links

    def launch(self, places: list[Place]) -> list[list[int]]:
        import ray

        from hetero._meshes import Meshes

        self._connect_anew()
        self.meshes = Meshes(places)
        # A lambda, since workers can't import what is beside a script.
        process = lambda _worker: os.getpid()  # noqa: E731
        calls = [[worker.__ray_call__.remote(process) for worker in mesh.workers] for mesh in self.meshes.launched]
        return [ray.get(called) for called in calls]

    def compile(self, job: Job, plan: Plan) -> float:
        from alpa_dejavu.alpa import PlanRun
        from hetero._meshes import needed

        self.meshes.use(needed(plan, self.meshes.names))
        start = time.perf_counter()
        self.runs.append(PlanRun(plan, job.model))
        return time.perf_counter() - start

    def steps(self, number: int, count: int) -> list[float]:
        run = self.runs[number]
        return [run.step().step_s for _ in range(count)]

    def auto(self, job: Job, count: int) -> dict[str, Any]:
        from _measured_runs import auto_plan

        self._connect_anew()
        return auto_plan(job, count)

    def train_and_kill(self, job: Job, plan: Plan, host: int) -> tuple[Trained, list[float]]:
        from hetero._training import disturbed, undisturbed

        self.close()
        return disturbed(job, plan, lambda: end_host(self.net, host)), undisturbed(job)

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
