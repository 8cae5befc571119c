"""A Ray cluster on this machine, for trying things out in a `with` block; its GPUs are parts of the CPU."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

from alpa_dejavu.alpa._ray_processes import command, descendants, kill, processes_of_ray

logger = logging.getLogger(__name__)

# Alpa asks for one CPU per mesh that it compiles for and one per host; these are names for Ray to count, not cores.
_LOGICAL_CPUS_PER_DEVICE = 4
_SYSTEM_CONFIG = {"prestart_worker_first_driver": False}
_START_S = 300.0
"""Within which hosts start; on a full machine they take long."""
_COMMON = {"include_dashboard": False, "object_store_memory": 512 * 1024**2}


@final
class LocalCluster:
    """A local cluster with so many devices a host; to one without Ray's `nodes`, of one host, nothing can be added."""

    def __init__(self, nodes: Any, devices: int) -> None:
        self._nodes, self._devices = nodes, devices

    def add_host(self) -> str:
        """Starts another host, and returns Ray's id of its node. Raises RuntimeError in a cluster of one host."""
        if self._nodes is None:
            raise RuntimeError("the local cluster has one host, but must have several; start it by "
                               "local_cluster(hosts=2) or more")  # fmt: skip
        return str(self._nodes.add_node(**_resources(self._devices), **_COMMON).node_id)


@contextlib.contextmanager
def local_cluster(devices: int = 4, hosts: int = 1) -> Iterator[LocalCluster]:
    """Starts a Ray cluster on this machine, connects to it, and stops it with everything that ran on it.

    Works in the main thread of a process that isn't connected to Ray yet. `alpa.init("ray")` inside the block takes the
    whole cluster; if `alpa.shutdown()` wasn't called by the end of the block, it is now.

    Args:
        devices: devices of each host.
        hosts: Ray nodes; more than one stand for machines that are joined by a network.

    Yields:
        The cluster, to which hosts can be added.

    Raises:
        ValueError: less than one device or host.
        RuntimeError: Ray isn't installed, or this process is connected to a Ray cluster already.

    Examples:
        >>> with local_cluster(devices=2):  # doctest: +SKIP
        ...     alpa.init("ray")
    """
    if devices < 1 or hosts < 1:
        raise ValueError(f"a cluster has at least one host and one device on each; got {hosts} and {devices}")
    ray = _ray()
    if ray.is_initialized():
        raise RuntimeError("this process is connected to a Ray cluster already: call ray.shutdown() first")
    nodes: Any = None
    with _own_directory() as directory:
        try:
            nodes = _start(ray, devices, hosts)
            yield LocalCluster(nodes, devices)
        finally:
            with uninterrupted():
                # Listed first: a worker whose Ray node is gone is nobody's descendant.
                started = processes_of_ray(directory)
                _stop(ray, nodes)
                kill(started)


def lose_host() -> str:
    """Kills a host of a local cluster, but never this program's, with all that runs on it, and returns Ray's id of its
    node. Raises RuntimeError if there is no other host.
    """
    ray = _ray()
    head = ray.get_runtime_context().get_node_id()
    others = sorted(
        (node["NodeID"], node["RayletSocketName"]) for node in ray.nodes() if node["Alive"] and node["NodeID"] != head
    )
    running = descendants(os.getpid())
    for node, socket in others:
        raylets = [pid for pid, _ in running if f"--raylet_socket_name={socket}" in command(pid).split("\0")]
        if raylets:
            for pid in [*raylets, *(pid for raylet in raylets for pid, _ in descendants(raylet))]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            while any(map(command, raylets)):  # until it has ended, it would be found again
                time.sleep(0.01)
            return str(node)
    raise RuntimeError("no host of a local cluster can be lost: start one by local_cluster(hosts=2) or more")


def lose_device() -> int:
    """Kills the process of one of Alpa's workers, and breaks the last of its devices for good, which `device_answers`
    says; returns its number. Raises RuntimeError if Alpa has no workers on a local cluster.
    """
    from alpa.device_mesh import get_global_virtual_physical_mesh

    mesh = get_global_virtual_physical_mesh()
    group = None if mesh is None else mesh.launched_physical_mesh_group
    if group is None or "RAY_TMPDIR" not in os.environ:
        raise RuntimeError("no device of a local cluster can be lost: train on it first")
    pid, raylet, number = _ray().get(group[len(group) - 1].workers[-1].__ray_call__.remote(_whereabouts))
    _broken(raylet, number).touch()
    os.kill(pid, signal.SIGKILL)
    return int(number)


def device_answers() -> None:
    """Does nothing in a process that has a device of a local cluster. Raises RuntimeError if the device was lost."""
    raylet, number = _device()
    if _broken(raylet, number).exists():
        raise RuntimeError(f"device {number} is lost")


def _whereabouts(_worker: Any) -> tuple[int, str, str]:
    return (os.getpid(), *_device())


def _device() -> tuple[str, str]:
    """Returns what tells this process's host from others, and the number of its last device."""
    return os.environ["RAY_RAYLET_PID"], os.environ["CUDA_VISIBLE_DEVICES"].rpartition(",")[2]


def _broken(raylet: str, number: str) -> Path:
    return Path(os.environ["RAY_TMPDIR"], f"broken-{raylet}-{number}")


@contextlib.contextmanager
def _own_directory() -> Iterator[str]:
    """Ray's files in a directory of their own: other clusters of the machine keep theirs, and "auto" means this one."""
    # Short, because the paths of Unix sockets in it may have 107 characters at most.
    directory = tempfile.mkdtemp(prefix="alpa_ray_", dir="/tmp" if os.path.isdir("/tmp") else None)
    changed = {"RAY_TMPDIR": directory, "RAY_ADDRESS": None}
    previous = {name: os.environ.get(name) for name in changed}
    try:
        Path(directory, "ray").mkdir()
        _set_environment(changed)
        yield directory
    finally:
        _set_environment(previous)
        shutil.rmtree(directory, ignore_errors=True)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RuntimeError('Ray is not installed: pip install "ray>=2.10,<2.61"') from error
    return ray


def _start(ray: Any, devices: int, hosts: int) -> Any:
    resources = _resources(devices)
    if hosts == 1:
        ray.init(address="local", _system_config=_SYSTEM_CONFIG, logging_level=logging.WARNING, **resources, **_COMMON)
        return None
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(_system_config=_SYSTEM_CONFIG, **resources, **_COMMON)
        for _ in range(hosts - 1):
            cluster.add_node(**resources, **_COMMON)
        cluster.wait_for_nodes(timeout=_START_S)
        ray.init(address=cluster.address, logging_level=logging.WARNING)
    except BaseException:
        cluster.shutdown()
        raise
    return cluster


def _resources(devices: int) -> dict[str, int]:
    return {"num_cpus": _LOGICAL_CPUS_PER_DEVICE * devices, "num_gpus": devices}


def _stop(ray: Any, nodes: Any) -> None:
    alpa = sys.modules.get("alpa.api")
    try:
        if alpa is not None and alpa.is_initialized and ray.is_initialized():
            alpa.shutdown()
    except Exception:
        # The cluster goes away whatever Alpa thinks of it, and this must not hide the error that led here.
        logger.warning("alpa.shutdown() failed", exc_info=True)
    finally:
        ray.shutdown()
        if nodes is not None:
            nodes.shutdown()


_ASKING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores the signals that ask a process to end while a `with` block runs in the main thread, where they arrive."""
    before = {}
    try:
        for number in _ASKING:
            before[number] = signal.signal(number, signal.SIG_IGN)
    except ValueError:  # another thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
