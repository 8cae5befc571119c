"""The step and arguments that a model function returned, checked, with the batch cut to the size of a micro-batch."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import numpy as np
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten

_WANTED = (
    "it must return (train_step, (state, batch, ...)): a function and a tuple of its arguments, abstract ones or not"
)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Arguments:
    """A train step and the shapes of its arguments, the batch cut to the size of one micro-batch.

    `leaves` are the arrays among the arguments, as `jax.ShapeDtypeStruct`, and `is_data` says of each whether it is
    part of the batch. `batch` is the number of samples in a whole batch, and `fixed` are the shapes of the batch's
    arrays whose first dimension isn't that.
    """

    step: Callable[..., Any]
    leaves: tuple[Any, ...]
    is_data: tuple[bool, ...]
    batch: int
    fixed: tuple[tuple[int, ...], ...]
    _all: tuple[Any, ...]
    _tree: Any

    @classmethod
    def of(cls, name: str, returned: Any, batch: int | None, num_micro_batches: int) -> Arguments:
        """Checks the train step and arguments that a model function returned, and cuts the batch to a micro-batch.

        Without a number of samples, `batch`, it is that of most of the batch's arrays.

        Raises:
            ValueError: the function didn't return a step and its arguments, or the batch can't be cut.
        """
        if not (isinstance(returned, Sequence) and len(returned) == 2 and callable(returned[0])):
            raise ValueError(f"{name} returned {_described(returned)}; {_WANTED}")
        step, arguments = returned
        if not isinstance(arguments, tuple) or len(arguments) < 2:
            raise ValueError(f"{name} returned a step with {_described(arguments)} for arguments; {_WANTED}")
        state, data, *others = arguments
        size = _batch_size(name, data, batch)
        if num_micro_batches < 1 or size % num_micro_batches:
            raise ValueError(
                f"a batch of {size} can't be cut into {num_micro_batches} micro-batches; "
                f"the number must divide it: {_divisors_near(size, num_micro_batches)}"
            )

        def cut(leaf: Any) -> Any:
            shape = getattr(leaf, "shape", ())
            if not shape or shape[0] != size:
                return leaf
            return jax.ShapeDtypeStruct((size // num_micro_batches, *shape[1:]), leaf.dtype)

        small = (state, jax.tree.map(cut, data), *others)
        leaves, tree = tree_flatten(small)
        leaves = [_abstract(leaf) for leaf in leaves]
        is_data = [place == 1 for place, argument in enumerate(small) for _ in tree_leaves(argument)]
        arrays = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)]
        shapes = [leaf.shape for leaf in tree_leaves(data) if getattr(leaf, "shape", ())]
        return cls(
            step,
            tuple(leaves[n] for n in arrays),
            tuple(is_data[n] for n in arrays),
            size,
            tuple(shape for shape in shapes if shape[0] != size),
            tuple(leaves),
            tree,
        )

    def calling(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that calls a step with a model function's arguments, given only the arrays among these."""

        def with_arrays(*leaves: Any) -> Any:
            rest = iter(leaves)
            filled = [next(rest) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf for leaf in self._all]
            return step(*tree_unflatten(self._tree, filled))

        return with_arrays


def _batch_size(name: str, data: Any, batch: int | None) -> int:
    firsts = [leaf.shape[0] for leaf in tree_leaves(data) if getattr(leaf, "shape", ())]
    if not firsts:
        raise ValueError(f"{name}: the second argument of its train step has no arrays, but must be the batch")
    if batch is None:
        return int(collections.Counter(firsts).most_common(1)[0][0])
    if batch not in firsts:
        raise ValueError(
            f"{name} was asked for a batch of {batch}, but the arrays of its second argument have first dimensions "
            f"{sorted(set(firsts))}; a model function is called with the samples of a micro-batch, a part of the "
            "batch: make the first dimension of its data the batch size that it is given, not a fixed one"
        )
    return batch


def _abstract(leaf: Any) -> Any:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return leaf


def _described(what: Any) -> str:
    if isinstance(what, (tuple, list)):
        return f"a {type(what).__name__} of {', '.join(type(part).__name__ for part in what) or 'nothing'}"
    return f"{type(what).__name__} {what!r}"[:80]


def _divisors_near(size: int, wanted: int) -> str:
    divisors = sorted((n for n in range(1, size + 1) if size % n == 0), key=lambda n: (abs(n - wanted), n))
    return ", ".join(map(str, sorted(divisors[:4])))


def concrete(arguments: Any, seed: int = 0) -> Any:
    """Returns a pytree of arguments with an array of numbers in place of each abstract array; all else stays. Numbers
    are random, from 0.001 to 0.05 (so that squares that optimizers keep are positive), integers are 0 (a token and a
    label of any vocabulary), and booleans are true.
    """
    rng = np.random.default_rng(seed)

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            return rng.uniform(0.001, 0.05, leaf.shape).astype(leaf.dtype)
        return np.ones(leaf.shape, leaf.dtype) if leaf.dtype == bool else np.zeros(leaf.shape, leaf.dtype)

    return jax.tree_util.tree_map(filled, arguments)
