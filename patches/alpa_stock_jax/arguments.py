"""Which leaves of the arguments are donated or split into micro-batches: jax asks for that by tree now.

One typed key isn't: like a number it has no dimension to split, though its words have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

from jax.tree_util import tree_leaves

from alpa_stock_jax._patch import Patch
from alpa_stock_jax._plain_keys import is_key


def mark_leaves(argnums: Collection[int], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bool, ...]:
    """For each leaf of the arguments, whether its argument is among `argnums`; leaves of keywords never are."""
    marked = [(index in argnums, argument) for index, argument in enumerate(args)]
    marked += [(False, argument) for argument in kwargs.values()]
    return tuple(mark and not _is_one_key(leaf) for mark, argument in marked for leaf in tree_leaves(argument))


def _is_one_key(leaf: Any) -> bool:
    return is_key(leaf) and not leaf.shape


def _mark_by_arguments(module: ModuleType) -> None:
    module.donation_vector = mark_leaves  # type: ignore[attr-defined]


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.api",
        reason="jax's donation_vector takes a tree of the arguments, Alpa passes the arguments",
        apply=_mark_by_arguments,
        expects={"donation_vector": ("donate_argnums", "donate_argnames", "in_tree", "kws")},
    ),
)
