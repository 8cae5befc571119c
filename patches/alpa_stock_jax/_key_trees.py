"""Typed keys among the arguments and results of a parallelized function, as trees of plain arrays.

To Alpa a typed key is the array of its words; that they are a key is part of the tree which the array is a leaf of.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jax._src.core import physical_aval
from jax._src.prng import KeyTy, PRNGKeyArray, random_unwrap, random_wrap
from jax.core import ShapedArray, Tracer
from jax.tree_util import register_pytree_node, tree_map

from alpa_stock_jax._plain_keys import is_key

__all__ = ["key_of", "with_words", "words_of"]


@dataclasses.dataclass(frozen=True)
class _Words:
    """The words of a typed key, in its place in a tree; where the tree is put together, the key is there again."""

    words: Any
    dtype: KeyTy


def with_words(tree: Any) -> Any:
    """Returns a tree that flattens to plain arrays, and that is put together again with the typed keys in it."""
    return tree_map(lambda leaf: _Words(words_of(leaf), leaf.dtype) if is_key(leaf) else leaf, tree)


def words_of(value: Any) -> Any:
    """Returns the words of a typed key, which may be traced, on workers, or abstract; other values as they are."""
    if not is_key(value):
        return value
    if isinstance(value, PRNGKeyArray):
        return value._base_array
    return random_unwrap(value) if isinstance(value, Tracer) else physical_aval(ShapedArray(value.shape, value.dtype))


def key_of(words: Any, dtype: Any) -> Any:
    """Returns the typed key of words, which may be traced, on workers, abstract, or a placement with an abstract value.

    What isn't words, as a placeholder, is returned as it is.
    """
    if isinstance(words, ShapedArray):
        return ShapedArray(words.shape[: -len(dtype._impl.key_shape)], dtype)
    if isinstance(words, Tracer):
        return random_wrap(words, impl=dtype._impl)
    if hasattr(words, "dtype"):
        return PRNGKeyArray(dtype._impl, words)
    return dataclasses.replace(words, aval=key_of(words.aval, dtype)) if hasattr(words, "aval") else words


register_pytree_node(_Words, lambda node: ((node.words,), node.dtype), lambda dtype, words: key_of(words[0], dtype))
