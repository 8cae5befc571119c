"""A gradient that is computed when somebody first looks at it, on flat vectors of parameters."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground._problem import Problem

Vector = NDArray[np.float32]
Rows = NDArray[np.int64]


@final
class WorkerGradient:
    """A gradient that a worker computed, or is computing; `compute` sets its values, and perhaps those of others that
    wait; None: somebody else does.

    Attributes:
        worker: the number of the worker.
        step: how many gradients the worker had begun before.
        version, at: the version of the worker's parameters, and these, shape (P,), that it is computed at.
        rows: indices of its training samples.
        multipliers: of the parameters, shape (P,): 0 for those that the worker left out; None: none.
        spoil: makes of the right gradient the one that the worker sends; None: that is the right one.
    """

    def __init__(self, compute: Callable[[WorkerGradient], None] | None, worker: int, step: int, version: int,
                 at: Vector, rows: NDArray[Any], multipliers: Vector | None = None) -> None:  # fmt: skip
        self.worker, self.step, self.version, self.multipliers = worker, step, version, multipliers
        self._compute, self.at, self.rows, self.computed = compute, at, rows, None  # type: Any, Any, Any, Vector | None
        self.spoil: Callable[[Vector], Vector] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.worker, self.step, self.version, self.rows, self.values)

    @property
    def samples(self) -> float | Vector:
        """Returns of how many samples it is the mean: a number, or shape (P,) where parameters were left out."""
        count = len(self.rows)
        return count if self.multipliers is None else np.float32(count) * (self.multipliers != 0)

    @property
    def values(self) -> Vector:
        """Returns the gradient as a vector of shape (P,), which must not be changed."""
        if self.computed is None:
            assert self._compute is not None, "somebody has set it"
            self._compute(self)
        assert self.computed is not None, "it was computed"
        if self.spoil is not None:
            self.computed, self.spoil = self.spoil(self.computed), None
        return self.computed


def _arrived(worker: int, step: int, version: int, rows: Rows, values: Vector) -> WorkerGradient:
    gradient = WorkerGradient(None, worker, step, version, values, rows)
    gradient.computed = values
    return gradient


class Programs(NamedTuple):
    """Compiled functions on flat parameters: a gradient, several at once, losses of samples, an update, held-out
    figures, a first state; and from flat parameters to a pytree.
    """

    gradient: Callable[..., Any]
    gradients: Callable[..., Any]
    losses: Callable[..., Any]
    update: Callable[..., Any]
    score: Callable[..., Any]
    state: Callable[..., Any]
    tree: Callable[..., Any]


def programs(problem: Problem, chosen: Any) -> Programs:
    """Returns the programs of a problem and an optimizer, compiled once for all simulations with functions that do the
    same, such as those of two problems of one name, or of two optimizers made with the same settings.

    Args:
        problem: the problem.
        chosen: the optimizer; None: gradient descent at a rate of 0.1.
    """
    return _compiled(SameCode((problem.init, problem.loss, problem.accuracy, chosen)))


@functools.lru_cache(maxsize=32)
def _compiled(functions: SameCode) -> Programs:
    import jax
    import optax
    from jax.flatten_util import ravel_pytree

    init, loss, accuracy, chosen = functions.all
    optimizer = optax.sgd(0.1) if chosen is None else chosen
    _, tree = ravel_pytree(init(jax.random.PRNGKey(0)))

    def gradient(params: Any, inputs: Any, targets: Any) -> Any:
        return ravel_pytree(jax.grad(loss)(tree(params), (inputs, targets)))[0]

    def updated(params: Any, state: Any, values: Any) -> Any:
        changes, after = optimizer.update(tree(values), state, tree(params))
        return ravel_pytree(optax.apply_updates(tree(params), changes))[0], after

    def score(params: Any, inputs: Any, targets: Any) -> Any:
        batch = inputs, targets
        share = accuracy(tree(params), batch) if accuracy else float("nan")
        return loss(tree(params), batch), share

    def losses(params: Any, inputs: Any, targets: Any) -> Any:
        return jax.vmap(lambda sample, target: loss(tree(params), (sample[None], target[None])))(inputs, targets)

    return Programs(jax.jit(gradient), jax.jit(jax.vmap(gradient)), jax.jit(losses), jax.jit(updated), jax.jit(score),
                     jax.jit(lambda params: optimizer.init(tree(params))), tree)  # fmt: skip


@final
class SameCode:
    """Functions, alone or in tuples, as a key: equal to another one if its functions do the same.

    Two functions do if they have the same code, globals, defaults and values that they close over: plain ones, other
    such functions, or tuples of them. What else a function closes over, such as an array, may be changed, so that the
    function is like itself alone.
    """

    def __init__(self, functions: tuple[Any, ...]) -> None:
        self.all = functions
        self._key = tuple(map(_key, functions))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameCode) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class _ItselfError(Exception):
    pass


class _Itself:
    """The key of what is like itself alone; it is kept, so that nothing else gets its id."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _key(value: Any) -> Hashable:
    try:
        return _inner(value)
    except (_ItselfError, RecursionError, ValueError):  # ValueError: a cell that is empty
        return _Itself(value)


def _inner(value: Any) -> Hashable:
    if isinstance(value, (bool, int, float, complex, str, bytes, types.NoneType)):
        return type(value), repr(value)  # 0.0 and -0.0 are equal, and so are 1 and True
    if isinstance(value, tuple):
        return type(value), tuple(map(_inner, value))
    if isinstance(value, types.FunctionType):
        cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
        named = tuple((value.__kwdefaults__ or {}).items())
        return value.__code__, id(value.__globals__), _inner(cells), _inner(value.__defaults__ or ()), _inner(named)
    if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        return _Itself(value)
    raise _ItselfError
