"""Training by Alpa on a Ray cluster that may lose hosts and gain others, with checkpoints and copies."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

from alpa_dejavu._util.causes import with_causes
from alpa_dejavu.alpa._copies import Copies
from alpa_dejavu.alpa._devices import Devices, computes, device_numbers
from alpa_dejavu.alpa._gradients import parallelized
from alpa_dejavu.alpa._nodes import Nodes
from alpa_dejavu.alpa._workers import StageWorkers
from alpa_dejavu.alpa.ray_cluster import nodes_with_devices
from alpa_dejavu.alpa.resume._session import Session
from alpa_dejavu.calibration.measurement import StepNotes
from alpa_dejavu.planning.changed.replanning import replica_positions
from alpa_dejavu.problem import Plan

_log = logging.getLogger("alpa_dejavu")
_PREFIX = "step_"


@final
class AlpaSession(Session):
    """A session that trains with Alpa's pipelines and distributed checkpoints, on the Ray cluster that this program is
    connected to.

    The hosts that the first plan uses, in the order that its cluster has them, are taken to be Alpa's hosts in their
    order. The last checkpoint stays in the folder.

    Devices go by Ray's numbers of them on their host. One that turns out to be broken is held by a process of its own,
    so that no worker gets it.

    Args:
        step: a function from a state and a batch to the next state and the loss; gradients by jax or by Alpa.
        state: a function that makes the first state. It must make the same one each time.
        batch: a function from the number of a step to its batch. It must make the same one each time.
        folder: the folder of the checkpoints; all hosts must have it, at the same path. None: none are written, and
            what is lost comes back from the copies that neighbours' hosts keep in their memory.
        neighbours: by its name, the host that keeps what each host has; hosts that aren't named, or whose neighbour is
            gone, have the next one in their order.
        probe: a function that raises an error where a device doesn't compute. After an error of Ray it is called for
            each device, in a process that has this device alone; it must be importable on all hosts. None: something is
            computed by jax.
    """

    def __init__(
        self,
        step: Callable[[Any, Any], tuple[Any, Any]],
        state: Callable[[], Any],
        batch: Callable[[int], Any],
        folder: str | os.PathLike[str] | None = None,
        *,
        neighbours: Mapping[str, str] | None = None,
        probe: Callable[[], None] | None = None,
    ) -> None:
        self._function, self._fresh, self._batch = step, state, batch
        self._folder = None if folder is None else pathlib.Path(folder).absolute()
        self._nodes, self._copies, self._devices = Nodes(), Copies(neighbours or {}), Devices(probe or computes)
        self._meshes: list[Any] = []
        self._step: Any = None
        self._executable: Any = None
        self._plan: Plan | None = None
        self._workers: StageWorkers | None = None
        self.state: Any = None  # the training state after the steps so far, with Alpa's arrays

    @property
    def saves(self) -> bool:
        """Returns whether there is a folder for checkpoints."""
        return self._folder is not None

    @property
    def copies(self) -> bool:
        """Returns whether the state can be copied to neighbours' hosts: always."""
        return True

    def start(self, plan: Plan, checkpoint: int | None) -> None:
        """Connects Alpa to a plan's hosts, compiles the step, and restores the state after `checkpoint` steps; None: a
        fresh one. Raises RuntimeError without Ray or the plan's hosts, and ValueError if the plan doesn't fit the step.
        """
        import alpa
        import ray

        if not ray.is_initialized():
            raise RuntimeError("this program isn't connected to a Ray cluster; call ray.init(address=...) first")
        used, nodes = plan.devices_of_hosts, nodes_with_devices()
        if used.keys() <= (self._nodes.named or nodes).keys():
            # Alpa takes all nodes, since it would choose by itself which ones to leave out.
            alpa.init("ray")
        else:
            hosts = len(used if plan.hardware is None else plan.hardware.hosts)
            devices = plan.num_devices // len(used)
            alpa.init("ray", num_nodes=min(hosts, len(nodes)), num_devices_per_node=devices)
        placed = self._nodes.on_their_hosts(plan)
        self._copies.check_neighbours(self._nodes.named)
        self._step, state = parallelized(self._function, placed), self._fresh()
        executable = self._step.get_executable(state, self._batch(checkpoint or 0))
        executable.sync()
        self._plan, self._executable, self._workers = plan, executable, None
        self._meshes = list(executable.mesh_group)
        self.state = state if checkpoint is None else self._restored(checkpoint)

    def _restored(self, checkpoint: int) -> Any:
        import alpa

        placements = self._executable.get_input_placement_specs()[0]
        if self._copies.newest() == checkpoint:
            return self._copies.restored(placements, self._meshes)
        return alpa.restore_checkpoint(str(self._path(checkpoint)), checkpoint, placements)

    def step(self, number: int) -> float:
        """Runs one training step, counted from 0, and returns its loss."""
        import numpy as np

        self.state, loss = self._step(self.state, self._batch(number))
        return float(np.asarray(loss))

    def noted_step(self, number: int) -> tuple[float, StepNotes]:
        """Runs a step whose instructions are noted, which takes longer; returns its loss, and the notes."""
        workers = self._stage_workers()
        workers.noting(True)
        try:
            return workers.timed(lambda: self.step(number))
        finally:
            workers.noting(False)

    def pin(self, cores: Sequence[Sequence[int]]) -> None:
        """Has the workers of each stage run on the given CPU cores of their host, until the next start."""
        self._stage_workers().pin(cores)

    def _stage_workers(self) -> StageWorkers:
        if self._executable is None:
            raise RuntimeError("no plan runs; call start() first")
        if self._workers is None:
            self._workers = StageWorkers(self._executable)
        return self._workers

    def save(self, number: int) -> None:
        """Writes a checkpoint of the training state after `number` steps, and then removes older checkpoints."""
        import alpa

        path = self._path(number)
        # What is there may be a rest of a checkpoint that a loss has cut off.
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        alpa.save_checkpoint(str(path), self.state, number)
        for other in path.parent.glob(f"{_PREFIX}*"):
            if other != path:
                shutil.rmtree(other, ignore_errors=True)

    def copy(self, number: int) -> None:
        """Copies the state after so many steps to hosts' and neighbours' memory; RuntimeError if one has too little."""
        self._copies.copy(self.state, number, self._nodes.living())

    def copied(self) -> int | None:
        """Returns after how many steps the newest copy was made, if living hosts have all of it, as it was sent."""
        return self._copies.newest()

    def stop(self) -> None:
        """Shuts Alpa down, in whatever state it is; Ray stays."""
        import alpa

        self._meshes, self._plan, self._step, self.state, self._executable, self._workers = [], *(None,) * 5
        if not alpa.api.is_initialized:
            return
        try:
            alpa.shutdown()
        except Exception:
            # Whatever is broken is left behind: the next start makes everything anew.
            _log.warning("alpa.shutdown() failed", exc_info=True)

    def close(self) -> None:
        """Ends the processes that keep copies, and those that hold broken devices."""
        self._copies.release()
        self._devices.release()

    def lost(self) -> list[str]:
        """Returns the names of the hosts whose nodes Ray counts as dead, of those that the first started plan had."""
        return self._nodes.lost()

    def broken(self) -> list[str] | None:
        """Returns living hosts' broken devices, such as "host-1/3"; None: one doesn't answer. Alpa was stopped."""
        living = self._nodes.living()
        return self._devices.broken(living) if living else None

    def joined(self) -> Mapping[str, int]:
        """Returns the hosts that Ray has and that no plan has used yet, with the number of their devices."""
        return self._nodes.joined()

    def leave_out(self, names: Collection[str]) -> None:
        """Holds devices, such as "host-1/3", so that no worker gets them. Raises ValueError if one isn't free."""
        nodes = self._nodes.living()
        for name in names:
            host, _, number = name.rpartition("/")
            if number.isdecimal() and host in nodes:
                self._devices.hold(host, nodes[host], int(number))
            elif name not in nodes:
                raise ValueError(f"{name!r} must be a host of the training, or a device of one, such as "
                                 f"{next(iter(nodes))}/0; it has {', '.join(nodes)}")  # fmt: skip

    def replica_devices(self, replicas: Collection[int]) -> tuple[str, ...]:
        """Returns the devices of some replicas of all stages, such as "host-1/3", as `train(leave_out=...)` takes them.
        Raises RuntimeError if no plan runs, and ValueError if there is no such replica, or all are named.
        """
        import ray

        if self._plan is None:
            raise RuntimeError("no plan runs; call start() first")
        hosts = {node: host for host, node in self._nodes.living().items()}
        devices: list[str] = []
        for stage, mesh in zip(self._plan.stages, self._meshes, strict=True):
            numbers = ray.get([worker.__ray_call__.remote(device_numbers) for worker in mesh.workers])
            places = [f"{hosts[info['NodeID']]}/{number}" for info, of_host in zip(mesh.host_info, numbers, strict=True)
                      for number in of_host]  # fmt: skip
            devices += [places[n] for n in replica_positions(self._plan, stage, replicas)]
        return tuple(dict.fromkeys(devices))

    def suspects(self, error: Exception) -> bool:
        """Returns whether a lost host may be behind an error: whether it comes from Ray, or from a connection."""
        import ray

        lost = ray.exceptions.RayError, ConnectionError, TimeoutError
        return any(isinstance(cause, lost) for cause in with_causes(error))

    def interrupt(self) -> None:
        """Ends Alpa's workers, so that a step that hangs raises an error; called from another thread."""
        import ray

        for mesh in self._meshes:
            for worker in mesh.workers or ():
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    ray.kill(worker)

    def _path(self, number: int) -> pathlib.Path:
        if self._folder is None:
            raise RuntimeError("folder is None, but must be a folder for checkpoints; give AlpaSession one that all "
                               "hosts have")  # fmt: skip
        return self._folder / f"{_PREFIX}{number}"
