"""Into Alpa: the chosen state into a training that it parallelizes, and candidates onto what its plan leaves unused.

    state = placed(parallel_initialize(init_fn, train_step, batches, ...).state, step.get_executable(...))

Candidates can be trained while Alpa plans and compiles, in a Ray task, or later on devices that the plan leaves unused;
not in the bubbles of a step, as Alpa's workers run all its instructions in one call.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from alpa_dejavu.alpa._places import cluster_differences, places
from alpa_dejavu.alpa.ray_cluster import alpa_hosts
from alpa_dejavu.problem import Cluster, Plan


def placed(state: Any, executable: Any) -> Any:
    """Puts a training state on the devices of a training step that Alpa has parallelized, sharded as the step's plan
    says, and returns it.

    Args:
        state: the state, a tree of arrays. Functions and the like in it, as a flax `TrainState` has its optimizer, are
            replaced by those that the step was compiled with, so that it isn't compiled again.
        executable: what `get_executable` returns for a function that `alpa.parallelize` made, whose first argument is
            the state: of a pipeline, or of a single mesh.

    Returns:
        The state with Alpa's arrays; arrays that the step doesn't read stay numpy's.

    Raises:
        ValueError: the state's arrays aren't those of the step: other names, shapes or dtypes. Nothing is sent then.

    References:
        Alpa 0.2.3, alpa/serialization.py, whose `restore_checkpoint` places what it reads by the same specifications.
    """
    arguments = executable.in_tree
    if not arguments.children() or not arguments.children()[0].num_leaves:
        raise ValueError("the step's first argument holds no array; give the executable of a step that takes a state")
    structure = arguments.children()[0]
    specs = arguments.flatten_up_to(executable.get_input_placement_specs())[: structure.num_leaves]
    leaves = _checked(state, structure, specs)
    # The step doesn't read the others, so that no device is meant for them.
    used = [n for n, spec in enumerate(specs) if spec is not None]
    mesh = getattr(executable, "mesh_group", None)
    put = executable.physical_mesh.shard_args_to_arrays_ps if mesh is None else mesh.shard_args_to_arrays
    for n, array in zip(used, put([specs[n] for n in used], [leaves[n] for n in used]), strict=True):
        leaves[n] = array
    return structure.unflatten(leaves)


def spare_workers(plan: Plan, cluster: Cluster | None = None) -> Sequence[dict[str, Any]]:
    """Returns the options of Ray actors for the devices that a plan leaves unused, one actor for each device.

    They are for `parallel_initialize(..., workers=len(options), worker_options=options)`, which trains other candidate
    initializations there.

    Args:
        plan: the plan that runs, or is going to run, on the cluster that Alpa is connected to.
        cluster: a `Cluster` with the names of Alpa's hosts, if the stage option was given one; None: the names that Ray
            knows are taken.

    Returns:
        The options, in the order of Alpa's hosts; none if the plan takes every device.

    Raises:
        RuntimeError: Alpa isn't connected to Ray.
        ValueError: the plan isn't for this cluster.
    """
    from alpa.device_mesh import get_global_cluster, get_global_virtual_physical_mesh

    mesh, devices = get_global_virtual_physical_mesh(), get_global_cluster()
    if mesh is None or devices is None:
        raise RuntimeError('Alpa isn\'t connected to Ray; call alpa.init("ray") first')
    differences = list(cluster_differences(plan, mesh, cluster))
    if differences:
        raise ValueError(f"the plan isn't for this cluster: {'; '.join(differences)}; plan again for it")
    used: collections.Counter[int] = collections.Counter()
    for stage, numbers in zip(plan.stages, places(plan, mesh, cluster), strict=True):
        used.update(dict.fromkeys(numbers, stage.submesh.devices_per_host))
    return actor_options(
        [(host.info["NodeID"], host.num_devices - used[n]) for n, host in enumerate(alpa_hosts(mesh))],
        devices.placement_group,
    )


def _checked(state: Any, structure: Any, specs: list[Any]) -> list[Any]:
    """The leaves, which have the names, shapes and dtypes that the executable was compiled for."""
    import jax

    remedy = "give the state of the model that the step was compiled for"
    wanted, _ = jax.tree_util.tree_flatten_with_path(structure.unflatten(range(len(specs))))
    leaves_by_path, _ = jax.tree_util.tree_flatten_with_path(state)
    names = [[jax.tree_util.keystr(path) for path, _ in tree] for tree in (leaves_by_path, wanted)]
    if names[0] != names[1]:
        strange = [name for name in names[0] if name not in names[1]]
        missing = [name for name in names[1] if name not in names[0]]
        difference = (
            f"{strange[0]} is not in it" if strange else f"it has {missing[0]}, too" if missing else "in other order"
        )
        raise ValueError(
            f"the state has {len(names[0])} arrays and the step's {len(names[1])}, and {difference}; {remedy}"
        )
    leaves = [np.asarray(leaf) for _, leaf in leaves_by_path]
    for name, leaf, spec in zip(names[0], leaves, specs, strict=True):
        if spec is not None and (leaf.shape, leaf.dtype) != (spec.aval.shape, spec.aval.dtype):
            raise ValueError(
                f"the state's {name} is {leaf.dtype}{list(leaf.shape)}, but the step takes "
                f"{spec.aval.dtype}{list(spec.aval.shape)}; {remedy}"
            )
    return leaves


def actor_options(spare: list[tuple[str, int]], group: Any) -> list[dict[str, Any]]:
    """Returns the options of an actor for each spare device (pairs of a node's id and their number), in Alpa's
    placement group, which has all devices.
    """
    from ray.util import placement_group_table
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundles = {node: bundle for bundle, node in placement_group_table(group)["bundles_to_node_id"].items()}
    return [
        {
            "num_cpus": 0,
            "num_gpus": 1,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundles[node]),
        }
        for node, count in spare
        for _ in range(count)
    ]
