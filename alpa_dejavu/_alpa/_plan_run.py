"""A plan compiled by Alpa on the connected cluster, run step by step and noted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, final

from alpa_dejavu._alpa import _probe
from alpa_dejavu._alpa._gradients import with_marked_gradients
from alpa_dejavu._threads import pin
from alpa_dejavu.measurement import StageNotes, StepNotes
from alpa_dejavu.problem import Plan


@final
class PlanRun:
    """Trains by a plan, on the Ray cluster that Alpa is connected to.

    Args:
        plan: of a known batch.
        model: a name, "module:function", or the function; None: the plan's.

    Attributes:
        state: the first argument of the next step: the last one's result, if it renews it.

    Raises:
        ValueError: the plan doesn't fit the model or the cluster, or doesn't say its model or batch.
    """

    def __init__(self, plan: Plan, model: str | Callable[..., Any] | None = None) -> None:
        import alpa

        from alpa_dejavu.alpa_code import remat_layers
        from alpa_dejavu.layer_option import DejavuLayerOption
        from alpa_dejavu.layers import concrete, resolve
        from alpa_dejavu.option import DejavuStageOption

        if plan.batch is None or not (model or plan.model):
            raise ValueError("the plan doesn't say its model or its batch; set `model` and `batch` in its file")
        step, arguments = resolve(model or plan.model)(plan.batch)
        layers = plan.num_layers if plan.layer_option == "auto" else None
        method = alpa.PipeshardParallel(
            num_micro_batches=plan.num_micro_batches,
            pipeline_schedule=plan.schedule,
            layer_option=DejavuLayerOption(layers, remat_layers(plan)),
            stage_option=DejavuStageOption(plan=plan),
        )
        self.state, *self._rest = concrete(arguments)
        self._renewed = _state_of_result(step, arguments)
        self._step = alpa.parallelize(
            with_marked_gradients(step), method=method, donate_argnums=() if self._renewed is None else (0,)
        )
        self._executable = self._step.get_executable(self.state, *self._rest)
        self._executable.sync()
        self._watched = [mesh.workers[0] for mesh in self._executable.mesh_group]
        self._ask(_probe.watch, self._executable.exec_uuid)

    def step(self) -> StepNotes:
        """One step, from its call until every stage is done."""
        start = time.time()
        result = self._step(self.state, *self._rest)
        stages: list[StageNotes] = self._ask(_probe.last_step)
        end = time.time()
        if self._renewed is not None:
            self.state = self._renewed(result)
        return StepNotes(start, end, tuple(stages))

    def noting(self, noting: bool) -> None:
        """Has each instruction of the next steps noted, or no longer."""
        self._ask(_probe.note, self._executable.exec_uuid, noting)

    def on_workers(self, function: Callable[..., Any], *args: Any) -> list[list[Any]]:
        """What a function answers in each worker's process, for each stage; the function is imported there."""
        import ray

        def called(worker: Any) -> Any:
            return worker.__ray_call__.remote(_without_worker, function, *args)

        return [ray.get([called(worker) for worker in mesh.workers]) for mesh in self._executable.mesh_group]

    def pin(self, cores: Sequence[Sequence[int]]) -> list[list[Any]]:
        """Has the workers of each stage run on these cores alone; the cores that each worker got."""
        import ray

        meshes = zip(self._executable.mesh_group, cores, strict=True)
        calls = [
            [worker.__ray_call__.remote(_without_worker, pin, of) for worker in mesh.workers] for mesh, of in meshes
        ]
        return [ray.get(called) for called in calls]

    def _ask(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        import ray

        answers: list[Any] = ray.get([worker.__ray_call__.remote(function, *args) for worker in self._watched])
        return answers


def _without_worker(_worker: Any, function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _state_of_result(step: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[Any], Any] | None:
    """What finds the next step's state in a step's result: the result, or its first part; None if neither is one."""
    import jax

    def shapes(tree: Any) -> Any:
        leaves, structure = jax.tree_util.tree_flatten(tree)
        return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]

    result = jax.eval_shape(step, *arguments)
    try:
        wanted = shapes(jax.eval_shape(lambda state: state, arguments[0]))
    except TypeError:
        return None
    if shapes(result) == wanted:
        return lambda made: made
    if isinstance(result, tuple) and result and shapes(result[0]) == wanted:
        return lambda made: made[0]
    return None
