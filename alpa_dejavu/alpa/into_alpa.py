"""Into Alpa: the chosen state into a training that it parallelizes, and candidates onto what its plan leaves unused.

    result = parallel_initialize(init_fn, train_step, batches, ...)
    executable = step.get_executable(jax.eval_shape(init_fn, key), batch)
    state = placed(result.state, executable)
    state, loss = step(state, batch)

Candidates can be trained before the pipeline is: while Alpa plans and compiles, its devices have nothing to do, and a
race in a Ray task of its own takes none of the compiler's time there. Later they can on devices that the plan leaves
unused. Into the bubbles of a step, which `alpa_dejavu.planning.spare` tells, they can't: Alpa's workers run all the
instructions of a step in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alpa_dejavu.problem import Cluster, Plan

__all__ = ["placed", "spare_workers"]


def placed(state: Any, executable: Any) -> Any:
    """A state on the devices of a parallelized step, sharded as its plan says.

    Args:
        state: of arrays, as `Initialized` has it. Functions and the like that come with it, as a flax `TrainState` has
            its optimizer, are left out: those that the step was compiled with stay, so it isn't compiled again.
        executable: what `get_executable` of a function gives that `alpa.parallelize` made, whose first argument is the
            state: of a pipeline, or of a single mesh.

    Returns:
        the state of Alpa's arrays; arrays that the step doesn't read stay numpy's.

    Raises:
        ValueError: the state's arrays aren't those of the step: other names, shapes or dtypes. Nothing is sent then.

    References:
        Alpa 0.2.3, alpa/serialization.py, whose `restore_checkpoint` places what it reads by the same specifications.
    """
    from alpa_dejavu.alpa._placed import placed as placed_by_alpa

    return placed_by_alpa(state, executable)


def spare_workers(plan: Plan, cluster: Cluster | None = None) -> Sequence[dict[str, Any]]:
    """Returns options of Ray actors that train candidates beside a plan: one for each device that it leaves unused.

    They are for `parallel_initialize(..., workers=len(options), worker_options=options)`.

    Args:
        plan: that runs, or is going to, on the cluster that Alpa is connected to.
        cluster: what the stage option was given, if that was a `Cluster`: it names the hosts.

    Returns:
        options in the order of Alpa's hosts; none if the plan takes every device.

    Raises:
        RuntimeError: Alpa isn't connected to Ray.
        ValueError: the plan isn't for this cluster.
    """
    from alpa_dejavu.alpa._spare_workers import spare_workers as workers_by_ray

    return workers_by_ray(plan, cluster)
