"""Runs the probes of a calibration by Alpa's workers, on the cluster that Ray has.

Copies of devices run at the same time, each in a worker; collectives by Alpa's own profiler; pipelines as plans do.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from alpa_dejavu.alpa._ports import ray_ports
from alpa_dejavu.alpa._relay import relay_seconds
from alpa_dejavu.alpa.ray_cluster import cluster_of, connected
from alpa_dejavu.calibration.bench import (
    HOST_MEMORY,
    WITHIN,
    CollectiveProbe,
    HostProbe,
    MeasurementError,
    PipelineProbe,
    Probe,
    ProbeBench,
    ProbePlace,
)
from alpa_dejavu.calibration.host_probes import copied, copier, host_figures
from alpa_dejavu.problem import Cluster

_PATIENCE_S = 60.0
_FAREWELL_S = 5.0
_AHEAD_S = 0.02
"""Until then all workers know when they begin."""
_COPIES = "_alpa_dejavu_copies"
_CPU = "cpu"
Runner = Callable[[Probe], Mapping[str, float]]


def ray_bench(machine: str | None = None) -> tuple[Cluster, ProbeBench]:
    """Returns the running Ray cluster, by the figures of a machine's name or file, else by Ray's name of the
    accelerator, and a bench that measures it. Raises RuntimeError if there is no cluster, ValueError if nothing is
    known of its devices.
    """
    with connected() as virtual:
        cluster = cluster_of(virtual, machine)
        nodes = [str(host.get("NodeID")) for host in virtual.host_info]
    return cluster, RayBench(cluster, nodes)


@final
class RayBench(ProbeBench):
    """A bench that measures probes in Alpa's workers on a Ray cluster, whose hosts have Ray's ids of nodes."""

    def __init__(self, cluster: Cluster, nodes: Sequence[str]) -> None:
        self._cluster, self._nodes = cluster, tuple(nodes)

    def open(self, place: ProbePlace) -> contextlib.AbstractContextManager[Runner]:
        """Starts the workers that measurements of "collectives", "pipelines", "links" or a host's memory need, for a
        `with` block; yields a function that measures a probe and returns seconds by name.
        """
        if place.what == HOST_MEMORY:
            return self._host_memory(place.where)
        if place.what == "links":
            return self._flows()
        if place.what == "collectives":
            return self._collectives(place.where)
        return self._pipelines(*((1, 2) if place.where == WITHIN else (2, 1)))

    @contextlib.contextmanager
    def _host_memory(self, device: str) -> Iterator[Runner]:
        number, host = next((n, host) for n, host in enumerate(self._cluster.hosts) if host.device.name == device)
        seats = range(host.num_devices)
        with connected() as virtual, _workers([virtual.slice_2d([number], [[seat]]) for seat in seats]) as workers:
            yield functools.partial(_run_host_probe, workers, device == _CPU)

    @contextlib.contextmanager
    def _collectives(self, where: str) -> Iterator[Runner]:
        devices = self._cluster.hosts[0].num_devices
        hosts = [0] if where == WITHIN else [0, 1]
        with connected() as virtual:
            whole = virtual.slice_2d(hosts, [list(range(devices))] * len(hosts))
            with _workers([whole]) as workers:
                yield functools.partial(_run_collective, workers, devices)

    @contextlib.contextmanager
    def _flows(self) -> Iterator[Runner]:
        names = [host.name for host in self._cluster.hosts]
        with connected(), ray_ports(self._nodes, names) as ports:
            yield ports

    @contextlib.contextmanager
    def _pipelines(self, hosts: int, devices: int) -> Iterator[Runner]:
        from alpa.api import clear_executable_cache

        device, link = self._cluster.hosts[0].device, self._cluster.links[0][0]
        names = [f"host-{n}" for n in range(hosts)]
        cluster = Cluster.uniform("a part", names, device, devices, link, self._cluster.links[0][-1])
        with connected(num_nodes=hosts, num_devices_per_node=devices), contextlib.ExitStack() as stack:
            stack.callback(clear_executable_cache)
            yield functools.partial(_run_pipeline, cluster)


@contextlib.contextmanager
def _workers(slices: Sequence[Any]) -> Iterator[list[Any]]:
    """Yields the workers of some meshes; they are gone when the block ends, even those that don't answer."""
    import ray

    meshes: list[Any] = []
    try:
        for n, part in enumerate(slices):
            meshes.append(part.get_physical_mesh(n))
        yield [worker for mesh in meshes for worker in mesh.workers]
    finally:
        leaving = [worker.shutdown.remote() for mesh in meshes for worker in mesh.workers]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=_FAREWELL_S)
        for mesh in meshes:
            mesh.shutdown(forced=True)


def _ask(workers: Sequence[Any], function: Callable[..., Any], *args: Any) -> list[Any]:
    """Returns a function's answers in each worker."""
    import ray

    calls = [worker.__ray_call__.remote(function, *args) for worker in workers]
    try:
        answers: list[Any] = ray.get(calls, timeout=_PATIENCE_S)
    except ray.exceptions.RayError as error:
        raise _told(error) from error
    return answers


def _told(error: Exception) -> MeasurementError:
    """Returns an error that says what failed in a line: Ray's errors have a whole traceback in their text."""
    cause = getattr(error, "cause", None) or error
    reason = str(cause).strip().partition("\n")[0]
    return MeasurementError(f"{type(cause).__name__}: {reason}")


def _run_host_probe(workers: Sequence[Any], stand_in: bool, probe: Probe) -> dict[str, float]:
    assert isinstance(probe, HostProbe), "a host's memory is probed"
    chosen = workers[: probe.num_devices]
    if probe.name != "copies":
        (measured,) = _ask(chosen, _probe_host, probe, stand_in)
        return dict(measured)
    _ask(chosen, _open_copies, probe.num_bytes, stand_in)
    try:
        every = _ask(chosen, _copy, time.time() + _AHEAD_S)
    finally:
        _ask(chosen, _close_copies)
    return {name: max(took[name] for took in every) for name in probe.names}


def _probe_host(worker: Any, probe: HostProbe, stand_in: bool) -> dict[str, float]:
    return host_figures(probe, None if stand_in else worker.local_devices[0])


def _open_copies(worker: Any, num_bytes: int, stand_in: bool) -> None:
    """Makes the arrays in a worker that are copied to its device and back."""
    stack = contextlib.ExitStack()
    begin = stack.enter_context(copier(num_bytes, None if stand_in else worker.local_devices[0]))
    setattr(worker, _COPIES, (stack, begin))


def _copy(worker: Any, start: float) -> dict[str, float]:
    return copied(getattr(worker, _COPIES)[1], start)


def _close_copies(worker: Any) -> None:
    getattr(worker, _COPIES)[0].close()
    delattr(worker, _COPIES)


def _run_collective(workers: Sequence[Any], devices: int, probe: Probe) -> dict[str, float]:
    assert isinstance(probe, CollectiveProbe), "collectives go over links"
    per_host, hosts = (probe.size // 2, (0, devices)) if probe.across else (probe.size, (0,))
    groups = tuple(
        tuple(host + group * per_host + n for host in hosts for n in range(per_host))
        for group in range(probe.concurrent)
    )
    # Alpa counts what all devices of an all-to-all have together, in elements of four bytes.
    elements = probe.num_bytes * (probe.size if probe.name == "all_to_all" else 1) // 4
    asked = probe.name.replace("_", "-"), (groups, "f32", elements)
    # The shorter one of two: what else runs on the hosts makes one longer, none shorter.
    return {"run_s": min(max(_ask(workers, _collective, asked, len(hosts) * devices)) for _ in range(2))}


def _collective(worker: Any, asked: tuple[Any, ...], num_devices: int) -> float:
    """Returns the seconds of one collective in a worker; all workers of the mesh take part in it."""
    from alpa import mesh_profiling

    return float(
        mesh_profiling.profile_one_hlo_op(worker.backend, worker.local_devices, worker.host_id, num_devices, asked)
    )


def _run_pipeline(cluster: Cluster, probe: Probe) -> dict[str, float]:
    import ray

    assert isinstance(probe, PipelineProbe), "pipelines pass something on"
    try:
        return relay_seconds(cluster, probe.num_bytes)
    except ray.exceptions.RayError as error:
        raise _told(error) from error
