"""Runs a plan on the cluster that Ray has, and measures it there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from alpa_dejavu.alpa._gradients import parallelized
from alpa_dejavu.alpa._places import cluster_differences
from alpa_dejavu.alpa._workers import StageWorkers
from alpa_dejavu.alpa.ray_cluster import cluster_of, connected
from alpa_dejavu.calibration.measurement import MeasuredPlan, StepNotes, measured
from alpa_dejavu.clusters import known_machines
from alpa_dejavu.clusters.host_classes import hosts_by_names
from alpa_dejavu.layers import trusted_model
from alpa_dejavu.problem import Cluster, Plan
from alpa_dejavu.simulation.step import StageTimes

_WARM_UP = 3


@final
class PlanRun:
    """A training by a plan, on the Ray cluster that Alpa is connected to, with the `state` for its next step. The model
    is a known name, "module:function", or that function; None: the plan's, whose function is called only if trusted.

    Raises ValueError if plan, model and cluster don't fit, the batch isn't known, or a function isn't trusted.
    """

    def __init__(self, plan: Plan, model: str | Callable[..., Any] | None = None, *, trust_model: bool = False) -> None:
        from alpa_dejavu.layers import concrete, resolve

        if plan.batch is None:
            raise ValueError("the plan doesn't know its batch, so it can't be run; set `batch` in its file")
        step, arguments = resolve(trusted_model(plan, model, trust_model))(plan.batch)
        self.state, *self._rest = concrete(arguments)
        self._renewed = _state_of_result(step, arguments)
        self._step = parallelized(step, plan, donates=self._renewed is not None)
        self._executable = self._step.get_executable(self.state, *self._rest)
        self._executable.sync()
        self._workers = StageWorkers(self._executable)

    def step(self) -> StepNotes:
        """Runs one training step; returns notes of when its stages ran, from the call until every stage is done."""
        result, notes = self._workers.timed(lambda: self._step(self.state, *self._rest))
        if self._renewed is not None:
            self.state = self._renewed(result)
        return notes

    def noting(self, noting: bool) -> None:
        """Switches on or off that Alpa's workers note when each instruction of a training step begins and ends."""
        self._workers.noting(noting)

    def on_workers(self, function: Callable[..., Any], *args: Any) -> list[list[Any]]:
        """Calls an importable function in the process of each of Alpa's workers; returns a list for each stage."""
        return self._workers.call(function, *args)

    def pin(self, cores: Sequence[Sequence[int]]) -> list[list[Any]]:
        """Has the workers of each stage run on the given CPU cores, and returns those that each worker got."""
        return self._workers.pin(cores)


def _state_of_result(step: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[Any], Any] | None:
    """Returns what finds the next step's state in a result: it is all of it, or its first part; None: it is neither."""
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
        return lambda result: result
    if isinstance(result, tuple) and result and shapes(result[0]) == wanted:
        return lambda result: result[0]
    return None


@contextlib.contextmanager
def connection(plan: Plan) -> Iterator[Cluster]:
    """Connects Alpa to the Ray cluster for a `with` block, and yields it. Raises RuntimeError if there is none, and
    ValueError if the plan is for another; says every difference.
    """
    with connected() as mesh:
        differences = [*cluster_differences(plan, mesh), *_kind_differences(plan)]
        if differences:
            raise ValueError(
                f"the plan for {plan.model or 'a model'} on {plan.cluster} is for another cluster: "
                f"{'; '.join(differences)}; connect to such a cluster, or plan for this one (--cluster ray)"
            )
        yield cluster_of(mesh, None)


def profile(
    plan: Plan, predicted: tuple[StageTimes, ...], steps: int, model: str | Callable[..., Any] | None = None
) -> MeasuredPlan:
    """Runs a plan on the cluster that Alpa is connected to, and returns its measured steps and stage times.

    `predicted` has the bytes for the result; so many plain steps are measured in turn with steps whose instructions are
    timed. Raises ValueError if the plan doesn't fit the model, or names none.
    """
    run = PlanRun(plan, model)
    for _ in range(_WARM_UP):
        run.step()
    plain, noted = [], []
    for _ in range(steps):
        plain.append(run.step().step_s)
        run.noting(True)
        noted.append(run.step())
        run.noting(False)
    devices = [stage.submesh.num_devices for stage in plan.stages]
    return measured(plain, noted, plan.num_micro_batches, plan.schedule, devices, predicted)


def _kind_differences(plan: Plan) -> Iterator[str]:
    """Whether it is for machines with accelerators where there are CPUs, or the other way round."""
    from alpa.global_env import global_config

    machine = (plan.hardware or hosts_by_names(plan)).machine
    if machine not in known_machines():
        return
    wanted, backend = "cpu" if machine == "local-cpu" else "gpu", global_config.backend
    if wanted != backend:
        yield f"its devices are those of {machine}, but the cluster's are {backend.upper()}s"
