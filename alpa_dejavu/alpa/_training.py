"""A plan that Alpa trains by, with checkpoints and copies, on a cluster that may lose hosts and gain others."""

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
from alpa_dejavu.alpa._devices import Devices, device_numbers
from alpa_dejavu.alpa._gradients import with_marked_gradients
from alpa_dejavu.alpa._nodes import Nodes
from alpa_dejavu.alpa._workers import StageWorkers
from alpa_dejavu.alpa.layer_option import DejavuLayerOption
from alpa_dejavu.alpa.option import DejavuStageOption
from alpa_dejavu.alpa.ray_cluster import nodes_with_devices
from alpa_dejavu.calibration.measurement import StepNotes
from alpa_dejavu.exports.alpa_code import remat_layers
from alpa_dejavu.planning.changed.replanning import replica_positions
from alpa_dejavu.problem import Plan

_log = logging.getLogger("alpa_dejavu")
_PREFIX = "step_"


@final
class Training:
    """A training by Alpa with checkpoints, on a cluster that may lose hosts; `AlpaSession` says what its methods do."""

    def __init__(
        self,
        step: Callable[[Any, Any], tuple[Any, Any]],
        state: Callable[[], Any],
        batch: Callable[[int], Any],
        folder: str | os.PathLike[str] | None,
        neighbours: Mapping[str, str],
        probe: Callable[[], None],
    ) -> None:
        self._function, self._fresh, self._batch = step, state, batch
        self._folder = None if folder is None else pathlib.Path(folder).absolute()
        self._nodes, self._copies, self._devices = Nodes(), Copies(neighbours), Devices(probe)
        self._meshes: list[Any] = []
        self._step: Any = None
        self._executable: Any = None
        self._plan: Plan | None = None
        self._workers: StageWorkers | None = None
        self.state: Any = None

    @property
    def saves(self) -> bool:
        return self._folder is not None

    def start(self, plan: Plan, checkpoint: int | None) -> None:
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
        layers, placed = plan.num_layers if plan.layer_option == "auto" else None, self._nodes.on_their_hosts(plan)
        self._copies.check_neighbours(self._nodes.named)
        method = alpa.PipeshardParallel(
            num_micro_batches=plan.num_micro_batches,
            pipeline_schedule=plan.schedule,
            layer_option=DejavuLayerOption(layers, remat_layers(plan)),
            stage_option=DejavuStageOption(plan=placed),
        )
        self._step = alpa.parallelize(with_marked_gradients(self._function), method=method, donate_argnums=(0,))
        state = self._fresh()
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
        import numpy as np

        self.state, loss = self._step(self.state, self._batch(number))
        return float(np.asarray(loss))

    def noted_step(self, number: int) -> tuple[float, StepNotes]:
        workers = self._stage_workers()
        workers.noting(True)
        try:
            return workers.timed(lambda: self.step(number))
        finally:
            workers.noting(False)

    def pin(self, cores: Sequence[Sequence[int]]) -> None:
        self._stage_workers().pin(cores)

    def _stage_workers(self) -> StageWorkers:
        if self._executable is None:
            raise RuntimeError("no plan runs; call start() first")
        if self._workers is None:
            self._workers = StageWorkers(self._executable)
        return self._workers

    def save(self, number: int) -> None:
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
        self._copies.copy(self.state, number, self._nodes.living())

    def copied(self) -> int | None:
        return self._copies.newest()

    def stop(self) -> None:
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
        self._copies.release()
        self._devices.release()

    def lost(self) -> list[str]:
        return self._nodes.lost()

    def broken(self) -> list[str] | None:
        living = self._nodes.living()
        return self._devices.broken(living) if living else None

    def joined(self) -> Mapping[str, int]:
        return self._nodes.joined()

    def leave_out(self, names: Collection[str]) -> None:
        nodes = self._nodes.living()
        for name in names:
            host, _, number = name.rpartition("/")
            if number.isdecimal() and host in nodes:
                self._devices.hold(host, nodes[host], int(number))
            elif name not in nodes:
                raise ValueError(f"{name!r} must be a host of the training, or a device of one, such as "
                                 f"{next(iter(nodes))}/0; it has {', '.join(nodes)}")  # fmt: skip

    def replica_devices(self, replicas: Collection[int]) -> tuple[str, ...]:
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
        import ray

        lost = ray.exceptions.RayError, ConnectionError, TimeoutError
        return any(isinstance(cause, lost) for cause in with_causes(error))

    def interrupt(self) -> None:
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
