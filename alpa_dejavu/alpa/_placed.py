"""A state of arrays on an executable's devices, each array sharded as the executable wants it."""

from __future__ import annotations

from typing import Any

import numpy as np


def placed(state: Any, executable: Any) -> Any:
    """See `alpa_dejavu.alpa.into_alpa.placed`."""
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


def _checked(state: Any, structure: Any, specs: list[Any]) -> list[Any]:
    """The leaves, which have the names, shapes and dtypes that the executable was compiled for."""
    import jax

    remedy = "give the state of the model that the step was compiled for"
    wanted, _ = jax.tree_util.tree_flatten_with_path(structure.unflatten(range(len(specs))))
    given, _ = jax.tree_util.tree_flatten_with_path(state)
    names = [[jax.tree_util.keystr(path) for path, _ in tree] for tree in (given, wanted)]
    if names[0] != names[1]:
        strange = [name for name in names[0] if name not in names[1]]
        missing = [name for name in names[1] if name not in names[0]]
        said = f"{strange[0]} is not in it" if strange else f"it has {missing[0]}, too" if missing else "in other order"
        raise ValueError(
            f"the state has {len(names[0])} arrays and the step's {len(names[1])}, and {said}; {remedy}"
        )
    leaves = [np.asarray(leaf) for _, leaf in given]
    for name, leaf, spec in zip(names[0], leaves, specs, strict=True):
        if spec is not None and (leaf.shape, leaf.dtype) != (spec.aval.shape, spec.aval.dtype):
            raise ValueError(
                f"the state's {name} is {leaf.dtype}{list(leaf.shape)}, but the step takes "
                f"{spec.aval.dtype}{list(spec.aval.shape)}; {remedy}"
            )
    return leaves
