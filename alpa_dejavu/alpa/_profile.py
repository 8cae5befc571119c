"""A plan measured on the cluster that Ray has, and the connection to that cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from alpa_dejavu.alpa._places import cluster_differences
from alpa_dejavu.alpa._plan_run import PlanRun
from alpa_dejavu.alpa.ray_cluster import cluster_of
from alpa_dejavu.calibration.measurement import MeasuredPlan, measured
from alpa_dejavu.clusters import known_machines
from alpa_dejavu.clusters.hosts_by_names import hosts_by_names
from alpa_dejavu.problem import Cluster, Plan
from alpa_dejavu.simulation.step import StageTimes

__all__ = ["connection", "profile"]

_WARM_UP = 3


@contextlib.contextmanager
def connection(plan: Plan) -> Iterator[Cluster]:
    """Connects Alpa to the Ray cluster for as long as a `with` block runs, and yields that cluster, if the plan is for
    one like it.

    Raises:
        RuntimeError: there is no cluster.
        ValueError: the plan is for another cluster; says every difference.
    """
    import alpa
    from alpa.device_mesh import get_global_virtual_physical_mesh

    with contextlib.ExitStack() as stack:
        try:
            alpa.init("ray")
        except (ConnectionError, RuntimeError) as error:
            raise RuntimeError(
                f"no cluster can be used: {error}; or let this command start one on this machine by --local N, for N "
                "devices"
            ) from None
        stack.callback(alpa.shutdown)
        mesh = get_global_virtual_physical_mesh()
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

    Args:
        plan: the plan, which must say its batch.
        predicted: the predicted seconds and bytes of its stages; the bytes are copied into the result.
        steps: how many plain steps are measured; in turn with them as many are run in which each instruction is timed.
        model: the model to run, or its name; None: the plan's.

    Raises:
        ValueError: the plan doesn't fit the model, or names none.
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
    wanted, there = "cpu" if machine == "local-cpu" else "gpu", global_config.backend
    if wanted != there:
        yield f"its devices are those of {machine}, but the cluster's are {there.upper()}s"
