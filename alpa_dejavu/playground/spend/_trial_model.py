"""Finds what the trial trains: the user's own model if it brings numbers and a loss, else a stand-in of its kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from alpa_dejavu.playground._arrays import Init, Params, Scalar
from alpa_dejavu.playground.problems import problem

if TYPE_CHECKING:
    from jaxtyping import PyTree, Shaped

MOST_PARAMETERS = 2_000_000
"""A larger model isn't trained here."""
ROWS = 8


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TrialModel:
    """A model and data, small enough to train here, and its batch's rows; why it isn't the user's model, or ""."""

    name: str
    init: Init
    loss: Callable[[PyTree, PyTree], Scalar]
    data: PyTree[Shaped[np.ndarray, "samples ..."]]
    rows: int = ROWS
    why: str = ""

    @property
    def num_rows(self) -> int:
        import jax

        return int(jax.tree_util.tree_leaves(self.data)[0].shape[0])

    @property
    def num_parameters(self) -> int:
        import jax

        shapes = jax.eval_shape(self.init, jax.random.PRNGKey(0))
        return sum(int(np.prod(leaf.shape)) for leaf in jax.tree_util.tree_leaves(shapes))


def trial_model(model: str | Callable[..., Any], *, own: bool = True) -> TrialModel:
    """Returns what a trial of a model trains: the model itself, or a stand-in.

    A model function is trained itself, if it may be, where its state and batch are arrays and not shapes alone; its
    step returns `(state, loss, ...)`.

    Args:
        model: a known model's name, "module:function" or a function that takes a number of samples and returns
            `(train_step, (state, batch, ...))`.

    Raises:
        ValueError: the name isn't known, or the model could be trained but its step tells no loss.
    """
    import jax

    from alpa_dejavu.layers import resolve
    from alpa_dejavu.layers.models import known_name

    listed = known_name(model) if isinstance(model, str) else None
    if listed is not None:
        is_of_pictures = listed.startswith(("wresnet", "resnet", "vit"))
        return stand_in("digits-cnn" if is_of_pictures else "text-gpt", f"{model} is known by its shapes alone")
    function = resolve(model)
    name = model if isinstance(model, str) else getattr(function, "__qualname__", "model")
    step, arguments = function(ROWS)
    if not own:
        return stand_in(_like(arguments[1]), "a stand-in is asked for")
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree_util.tree_leaves(arguments)):
        return stand_in(_like(arguments[1]), f"{name} returns shapes, not arrays")
    return _own(name, function, step, arguments)


def stand_in(name: str, why: str) -> TrialModel:
    """Returns a problem of the playground as what a trial trains, and why it stands for another model."""
    chosen = problem(name)
    return TrialModel(chosen.name, chosen.init, chosen.loss, chosen.train, why=why)


def _own(name: str, function: Callable[..., Any], step: Callable[..., Any], arguments: tuple[Any, ...]) -> TrialModel:
    import jax

    state, batch, *rest = arguments
    params = _parameters(state)
    leaves = jax.tree_util.tree_leaves(params)
    if not all(jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating) for leaf in leaves):
        return stand_in(_like(batch), f"the state of {name} has its parameters neither in .params nor in ['params']")
    count = sum(int(np.prod(leaf.shape)) for leaf in leaves)
    if count > MOST_PARAMETERS:
        return stand_in(_like(batch), f"{name} has {count:,} parameters, over {MOST_PARAMETERS:,}")
    _check_loss(name, jax.eval_shape(step, state, batch, *rest))
    pool = function(16 * ROWS)[1][1]  # batches of the user's data, from which the trial draws
    return TrialModel(
        name, lambda key: params, lambda weights, rows: step(_with_parameters(state, weights), rows, *rest)[1], pool
    )  # fmt: skip


def _parameters(state: PyTree) -> Params:
    return state.get("params", state) if isinstance(state, Mapping) else getattr(state, "params", state)


def _with_parameters(state: PyTree, params: Params) -> PyTree:
    if isinstance(state, Mapping):
        return {**state, "params": params} if "params" in state else params
    if not hasattr(state, "params"):
        return params
    replaced = getattr(state, "replace", None) or getattr(state, "_replace", None)
    return dataclasses.replace(state, params=params) if replaced is None else replaced(params=params)


def _check_loss(name: str, result: object) -> None:
    import jax

    loss = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    dtype, shape = getattr(loss, "dtype", None), getattr(loss, "shape", None)
    if dtype is None or shape != () or not jax.numpy.issubdtype(dtype, jax.numpy.floating):
        got = f"a tuple with {loss} second" if loss is not None else f"a {type(result).__name__} without a loss"
        raise ValueError(
            f"the train step of {name} returns {got}, but must return (state, loss), the loss a real number, to be "
            "trained here; return it, or ask for a stand-in"
        )


def _like(batch: PyTree) -> str:
    """The stand-in whose data are most like a batch: text for whole numbers, pictures for arrays of four axes."""
    import jax

    leaves = jax.tree_util.tree_leaves(batch)
    first = max(leaves, key=lambda leaf: len(leaf.shape))
    if np.issubdtype(np.dtype(first.dtype), np.integer):
        return "text-gpt"
    return "digits-cnn" if len(first.shape) >= 4 else "digits-mlp"
