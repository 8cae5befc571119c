"""A plan that Alpa trains by, with checkpoints, on a cluster that may lose hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any, final

from alpa_dejavu._util.causes import with_causes
from alpa_dejavu.alpa._gradients import with_marked_gradients
from alpa_dejavu.alpa._workers import StageWorkers
from alpa_dejavu.alpa.layer_option import DejavuLayerOption
from alpa_dejavu.alpa.option import DejavuStageOption
from alpa_dejavu.alpa.ray_cluster import alpa_hosts, host_names, nodes_with_devices
from alpa_dejavu.calibration.measurement import StepNotes
from alpa_dejavu.exports.alpa_code import remat_layers
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
        folder: str | os.PathLike[str],
    ) -> None:
        self._function, self._fresh, self._batch = step, state, batch
        self._folder = pathlib.Path(folder).absolute()
        self._nodes: dict[str, str] = {}  # host of the first plan -> Ray's id of its node
        self._meshes: list[Any] = []
        self._step: Any = None
        self._executable: Any = None
        self._workers: StageWorkers | None = None
        self.state: Any = None

    def start(self, plan: Plan, checkpoint: int | None) -> None:
        import alpa
        import ray

        if not ray.is_initialized():
            raise RuntimeError("this program isn't connected to a Ray cluster; call ray.init(address=...) first")
        used, nodes = plan.devices_of_hosts, nodes_with_devices()
        if used.keys() <= (self._nodes or nodes).keys():
            # Alpa takes all nodes, since it would choose by itself which ones to leave out.
            alpa.init("ray")
        else:
            hosts = len(used if plan.hardware is None else plan.hardware.hosts)
            devices = plan.num_devices // len(used)
            alpa.init("ray", num_nodes=min(hosts, len(nodes)), num_devices_per_node=devices)
        if not self._nodes:
            self._nodes = _named_nodes(plan)
        layers = plan.num_layers if plan.layer_option == "auto" else None
        method = alpa.PipeshardParallel(
            num_micro_batches=plan.num_micro_batches,
            pipeline_schedule=plan.schedule,
            layer_option=DejavuLayerOption(layers, remat_layers(plan)),
            stage_option=DejavuStageOption(plan=self._on_their_hosts(plan)),
        )
        self._step = alpa.parallelize(with_marked_gradients(self._function), method=method, donate_argnums=(0,))
        state = self._fresh()
        executable = self._step.get_executable(state, self._batch(checkpoint or 0))
        executable.sync()
        self._executable, self._workers = executable, None
        self._meshes = list(executable.mesh_group)
        if checkpoint is not None:
            placements = executable.get_input_placement_specs()[0]
            state = alpa.restore_checkpoint(str(self._path(checkpoint)), checkpoint, placements)
        self.state = state

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
        for other in self._folder.glob(f"{_PREFIX}*"):
            if other != path:
                shutil.rmtree(other, ignore_errors=True)

    def stop(self) -> None:
        import alpa

        self._meshes, self._step, self.state, self._executable, self._workers = [], None, None, None, None
        try:
            alpa.shutdown()
        except Exception:
            # Whatever is broken is left behind: the next start makes everything anew.
            _log.warning("alpa.shutdown() failed", exc_info=True)

    def lost(self) -> list[str]:
        import ray

        if not ray.is_initialized():
            return []
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return [host for host, node in self._nodes.items() if node not in alive]

    def suspects(self, error: Exception) -> bool:
        import ray

        lost = ray.exceptions.RayError, ConnectionError, TimeoutError
        return any(isinstance(each, lost) for each in with_causes(error))

    def interrupt(self) -> None:
        import ray

        for mesh in self._meshes:
            for worker in mesh.workers or ():
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    ray.kill(worker)

    def _path(self, number: int) -> pathlib.Path:
        return self._folder / f"{_PREFIX}{number}"

    def _on_their_hosts(self, plan: Plan) -> Plan:
        """The plan with the names that hosts have now: nodes of one machine are counted anew when one is gone."""
        from alpa.device_mesh import get_global_virtual_physical_mesh

        mesh = get_global_virtual_physical_mesh()
        named = zip(alpa_hosts(mesh), host_names(mesh), strict=True)
        now = {host.info["NodeID"]: name for host, name in named}
        names = {before: now[node] for before, node in self._nodes.items() if node in now}
        stages = [
            dataclasses.replace(stage, hosts=tuple(names.get(host, host) for host in stage.hosts))
            for stage in plan.stages
        ]
        return dataclasses.replace(plan, stages=tuple(stages))


def _named_nodes(plan: Plan) -> dict[str, str]:
    """Returns Ray's ids of the nodes that a plan's hosts are, by the hosts' names: by Ray's names of the nodes, or else
    by the order of both.
    """
    from alpa.device_mesh import get_global_virtual_physical_mesh

    mesh = get_global_virtual_physical_mesh()
    ids = [host.info["NodeID"] for host in alpa_hosts(mesh)]
    nodes = dict(zip(host_names(mesh), ids, strict=True))
    used = plan.devices_of_hosts
    if used.keys() <= nodes.keys():
        return nodes
    # Of an old plan its contingencies say in which order the cluster has them.
    known = list(plan.contingencies) if plan.hardware is None else [host.name for host in plan.hardware.hosts]
    names = known if len(known) == len(ids) else [host for host in known if host in used]
    names += [host for host in used if host not in names]
    if len(names) != len(ids):
        raise RuntimeError(f"the plan is for the hosts {names}, but Alpa has {len(ids)}; plan for this cluster")
    return dict(zip(names, ids, strict=True))
