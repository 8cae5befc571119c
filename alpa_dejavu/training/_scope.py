"""Groups of parameters that are looked at as one (all, each layer or stage, each leaf), and parts of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import jax

from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PyTree, Shaped

    Loss: TypeAlias = Callable[[PyTree, PyTree], Float[Array, ""]]
    """The mean loss of parameters on a batch."""
    StageOf: TypeAlias = Callable[[str], str]
    """The stage of a leaf's path, such as "params/Dense_0/kernel"."""

SCOPES = ("whole", "stage", "leaf")


def groups_of(
    params: PyTree, scope: str, stage_of: StageOf | None, owner: str = "robust value and grad"
) -> tuple[str, ...]:
    """Returns for each leaf of the parameters its group, by a scope of `SCOPES`, a setting of the owner. In a named
    tuple each field has layers of its own. `stage_of` gives the stage of a leaf; None: its layer.
    """
    checks.one_of(owner, "scope", scope, SCOPES)
    paths = _paths(params)
    if scope == "whole":
        return ("whole",) * len(paths)
    if scope == "leaf":
        return tuple("/".join(path) for path in paths)
    if stage_of is not None:
        return tuple(stage_of("/".join(path)) for path in paths)
    if not hasattr(params, "_fields"):
        return tuple(layer_of(path, paths) for path in paths)
    return tuple("/".join(filter(None, (name, layer_of(tuple(path), [p[1:] for p in paths if p[0] == name]))))
                 for name, *path in paths)  # fmt: skip


def layer_of(path: tuple[str, ...], paths: list[tuple[str, ...]]) -> str:
    """Returns the layer of a leaf: its path down to the first place where paths part.

    >>> layer_of(("params", "block_0", "kernel"), [("params", "block_0", "kernel"), ("params", "out", "kernel")])
    'params/block_0'
    """
    depth = 1
    while depth < len(path) - 1 and len({other[:depth] for other in paths}) == 1:
        depth += 1
    return "/".join(path[:depth])


def parts_of(batch: PyTree, replicas: int) -> PyTree:
    """Returns a batch cut into a part for each replica."""

    def part(x: Shaped[Array, "samples ..."]) -> Shaped[Array, "replicas samples ..."]:
        if x.shape[0] % replicas:
            raise ValueError(
                f"batch is {x.shape[0]} samples, but must divide by the {replicas} replicas (in each micro-batch); "
                "take another batch size"
            )
        return x.reshape(replicas, x.shape[0] // replicas, *x.shape[1:])

    return jax.tree.map(part, batch)


def paths_of(tree: PyTree) -> list[str]:
    """Returns the path of each leaf of a pytree, as "hidden/kernel", in the order of `jax.tree_util`."""
    return list(map("/".join, _paths(tree)))


def _paths(tree: PyTree) -> list[tuple[str, ...]]:
    return [tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
            for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]  # fmt: skip
