"""A gradient that is computed when somebody first looks at it, on flat vectors of parameters."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from alpa_dejavu.playground._arrays import Flat, Params, Rows, Samples, Scalar, State, Vector, Vectors
from alpa_dejavu.playground._problem import Problem

if TYPE_CHECKING:
    import optax
    from jaxtyping import Array, Float, Shaped


@final
class WorkerGradient:
    """A gradient that a worker computed, or is computing; `compute` sets its values, and perhaps those of others that
    wait; None: somebody else does.

    Attributes:
        step: how many gradients the worker had begun before.
        version, at: the version of the worker's parameters, and these, that it is computed at.
        multipliers: of the parameters: 0 for those that the worker left out; None: none.
        spoil: makes of the right gradient the one that the worker sends; None: that is the right one.
    """

    def __init__(self, compute: Callable[[WorkerGradient], None] | None, worker: int, step: int, version: int,
                 at: Vector, rows: Rows, multipliers: Vector | None = None) -> None:  # fmt: skip
        self.worker, self.step, self.version, self.multipliers = worker, step, version, multipliers
        self._compute, self.at, self.rows = compute, at, rows
        self.computed: Vector | None = None
        self.spoil: Callable[[Vector], Vector] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _arrived, (self.worker, self.step, self.version, self.rows, self.values)

    @property
    def samples(self) -> float | Vector:
        """Returns of how many samples it is the mean; where parameters were left out, for each of them."""
        count = len(self.rows)
        return count if self.multipliers is None else np.float32(count) * (self.multipliers != 0)

    @property
    def values(self) -> Vector:
        """Returns the gradient, which must not be changed."""
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

    gradient: Callable[[Vector, Samples, Samples], Flat]
    gradients: Callable[[Vectors, Shaped[Array, "N samples ..."], Shaped[Array, "N samples ..."]], Vectors]
    losses: Callable[[Vector, Samples, Samples], Float[Array, " samples"]]
    update: Callable[[Vector, State, Vector], tuple[Flat, State]]
    score: Callable[[Vector, Samples, Samples], tuple[Scalar, Scalar]]
    state: Callable[[Vector], State]
    tree: Callable[[Vector], Params]


def programs(problem: Problem, chosen: optax.GradientTransformation | None) -> Programs:
    """Returns the programs of a problem and an optimizer, compiled once for all simulations with functions that do the
    same, such as those of two problems of one name, or of two optimizers made with the same settings. Without an
    optimizer it is gradient descent at a rate of 0.1.
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

    def gradient(params: Flat, inputs: Samples, targets: Samples) -> Flat:
        return ravel_pytree(jax.grad(loss)(tree(params), (inputs, targets)))[0]

    def updated(params: Flat, state: State, values: Flat) -> tuple[Flat, State]:
        changes, after = optimizer.update(tree(values), state, tree(params))
        return ravel_pytree(optax.apply_updates(tree(params), changes))[0], after

    def score(params: Flat, inputs: Samples, targets: Samples) -> tuple[Scalar, Scalar]:
        batch = inputs, targets
        share = accuracy(tree(params), batch) if accuracy else float("nan")
        return loss(tree(params), batch), share

    def losses(params: Flat, inputs: Samples, targets: Samples) -> Float[Array, " samples"]:
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

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _key(value: object) -> Hashable:
    try:
        return _inner(value)
    except (_ItselfError, RecursionError, ValueError):  # ValueError: a cell that is empty
        return _Itself(value)


def _inner(value: object) -> Hashable:
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
