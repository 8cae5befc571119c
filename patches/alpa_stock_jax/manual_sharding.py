"""Manual sharding: partition specifications parsed by today's pjit in the form that Alpa expects."""

from __future__ import annotations

from typing import Any

from jax._src.sharding_impls import ParsedPartitionSpec, is_unspecified
from jax.tree_util import tree_flatten, tree_map

__all__ = ["is_from_global_device_array", "prepare_axis_resources"]


def is_from_global_device_array(value: object) -> bool:
    """Always False: jax has no GlobalDeviceArray any more."""
    return False


def prepare_axis_resources(axis_resources: Any, name: str) -> tuple[Any, list[Any], Any, bool]:
    """Parses a pytree of partition specifications.

    Args:
        axis_resources: a pytree whose leaves are `PartitionSpec`s or None (replicated).
        name: what to call it in errors.

    Returns:
        The same pytree of parsed specifications, its leaves, its structure, and whether any leaf asks for automatic
        sharding (which jax's specifications no longer can).
    """

    def parse(entry: Any) -> Any:
        if is_unspecified(entry):
            return entry
        return ParsedPartitionSpec.from_user_input(entry, f"{name} leaf specifications")

    parsed = tree_map(parse, axis_resources, is_leaf=lambda leaf: leaf is None)
    leaves, structure = tree_flatten(parsed)
    return parsed, leaves, structure, False
