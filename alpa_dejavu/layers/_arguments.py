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

    Attributes:
        step: the train step, a function.
        leaves: the arrays among its arguments, as `jax.ShapeDtypeStruct`.
        is_data: for each of these arrays whether it is part of the batch.
        batch: the number of samples in a whole batch.
        fixed: the shapes of the batch's arrays whose first dimension isn't the number of samples.
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

        Args:
            name: the model function's name, for errors.
            returned: what it returned, which must be `(train_step, (state, batch, ...))`.
            batch: the number of samples in a batch; None: it is that of most of the batch's arrays.
            num_micro_batches: how many micro-batches a batch is cut into.

        Raises:
            ValueError: the function didn't return a step and its arguments, or the batch can't be cut.
        """
        if not (isinstance(returned, Sequence) and len(returned) == 2 and callable(returned[0])):
            raise ValueError(f"{name} returned {_described(returned)}; {_WANTED}")
        step, given = returned
        if not isinstance(given, tuple) or len(given) < 2:
            raise ValueError(f"{name} returned a step with {_described(given)} for arguments; {_WANTED}")
        size = _batch_size(name, given[1], batch)
        if num_micro_batches < 1 or size % num_micro_batches:
            raise ValueError(
                f"a batch of {size} can't be cut into {num_micro_batches} micro-batches; "
                f"the number must divide it: {_divisors_near(size, num_micro_batches)}"
            )
        whole = [tree_flatten(argument) for argument in given]
        everything: list[Any] = []
        is_data: list[bool] = []
        for place, (leaves, _) in enumerate(whole):
            cut = [_cut(leaf, size, num_micro_batches) if place == 1 else leaf for leaf in leaves]
            everything += [_abstract(leaf) for leaf in cut]
            is_data += [place == 1] * len(leaves)
        arrays = [n for n, leaf in enumerate(everything) if isinstance(leaf, jax.ShapeDtypeStruct)]
        return cls(
            step,
            tuple(everything[n] for n in arrays),
            tuple(is_data[n] for n in arrays),
            size,
            tuple(leaf.shape for leaf in whole[1][0] if getattr(leaf, "shape", ()) and leaf.shape[0] != size),
            tuple(everything),
            tree_flatten(given)[1],
        )

    def calling(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that calls a step with a model function's arguments, given only the arrays among these.

        All arguments that aren't arrays stay as the model function gave them.
        """

        def called(*leaves: Any) -> Any:
            rest = iter(leaves)
            filled = [next(rest) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf for leaf in self._all]
            return step(*tree_unflatten(self._tree, filled))

        return called


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


def _cut(leaf: Any, batch: int, num_micro_batches: int) -> Any:
    shape = getattr(leaf, "shape", ())
    if not shape or shape[0] != batch:
        return leaf
    return jax.ShapeDtypeStruct((batch // num_micro_batches, *shape[1:]), leaf.dtype)


def _abstract(leaf: Any) -> Any:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return leaf


def _described(what: Any) -> str:
    if isinstance(what, (tuple, list)):
        return f"a {type(what).__name__} of {', '.join(type(each).__name__ for each in what) or 'nothing'}"
    return f"{type(what).__name__} {what!r}"[:80]


def _divisors_near(size: int, wanted: int) -> str:
    divisors = sorted((n for n in range(1, size + 1) if size % n == 0), key=lambda n: (abs(n - wanted), n))
    return ", ".join(map(str, sorted(divisors[:4])))


_SMALLEST, _LARGEST = 0.001, 0.05


def concrete(arguments: Any, seed: int = 0) -> Any:
    """Returns a pytree of arguments with an array of numbers in place of each abstract array; all else stays.

    Floating-point numbers are random, from 0.001 to 0.05 (so that squares that optimizers keep are positive), integers
    are 0 (a token and a label of any vocabulary), and booleans are true. How long a step takes doesn't depend on them.
    """
    rng = np.random.default_rng(seed)

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            return rng.uniform(_SMALLEST, _LARGEST, leaf.shape).astype(leaf.dtype)
        return np.ones(leaf.shape, leaf.dtype) if leaf.dtype == bool else np.zeros(leaf.shape, leaf.dtype)

    return jax.tree_util.tree_map(filled, arguments)
