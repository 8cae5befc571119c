"""A model as a worker has to know it, and the layout of its training states: leaves, and which are parameters."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, final

import numpy as np

if TYPE_CHECKING:
    from jax import ShapeDtypeStruct
    from jaxtyping import Float, PRNGKeyArray, PyTree, PyTreeDef, Shaped

    Leaves: TypeAlias = tuple[Shaped[np.ndarray, " ..."], ...]
    Batches: TypeAlias = Sequence[PyTree] | Callable[[int], PyTree]
    InitFn: TypeAlias = Callable[[PRNGKeyArray], PyTree]
    TrainStep: TypeAlias = Callable[..., tuple[PyTree, ...]]
    Parameters: TypeAlias = Callable[[PyTree], PyTree]


@final
@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """The name (`jax.tree_util.keystr`), shape and dtype of one array in a training state, without an axis for
    candidates; numbers that numpy hasn't have a dtype of ml_dtypes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    is_float: bool

    @property
    def is_matrix(self) -> bool:
        """Returns whether the tensor holds real numbers on two axes or more, an input and an output axis among them."""
        return self.is_float and len(self.shape) >= 2


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StateLayout:
    """The layout of a training state: jax's treedef, its arrays in jax's order, and the places of the parameters among
    them, in jax's order for the parameters alone.
    """

    structure: PyTreeDef
    leaves: tuple[TensorLayout, ...]
    places: tuple[int, ...]

    @property
    def tensors(self) -> tuple[TensorLayout, ...]:
        return tuple(self.leaves[place] for place in self.places)

    @property
    def num_bytes(self) -> int:
        return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in self.leaves)

    def weights(self, leaves: Leaves) -> Leaves:
        return tuple(leaves[place] for place in self.places)

    def with_weights(self, leaves: Leaves, weights: Leaves) -> Leaves:
        """Returns a training state's leaves with its parameters replaced; an optimizer's state stays."""
        replaced = list(leaves)
        for place, weight in zip(self.places, weights, strict=True):
            replaced[place] = np.asarray(weight, self.leaves[place].dtype)
        return tuple(replaced)

    def state(self, leaves: Leaves | tuple[ShapeDtypeStruct, ...]) -> PyTree:
        """Returns the training state that is made of these leaves, in the structure that `init_fn` gives."""
        return self.structure.unflatten(leaves)


def layout_of(init_fn: InitFn, parameters: Parameters | None = None) -> StateLayout:
    """Returns the layout of the training states that `init_fn(key)` gives, as `layout` does, without computing one."""
    import jax

    return layout(jax.eval_shape(init_fn, jax.random.PRNGKey(0)), parameters)


def layout(state: PyTree, parameters: Parameters | None = None) -> StateLayout:
    """Returns the layout (names, shapes and dtypes) of a given training state, or of one of shapes alone;
    `parameters` is as `parallel_initialize` takes it.

    Raises:
        ValueError: the state holds no array, or a key of the new style, or `parameters` doesn't pick some of it.
    """
    import jax
    import jax.numpy as jnp

    named, structure = jax.tree_util.tree_flatten_with_path(state)
    leaves = []
    for path, leaf in named:
        name = jax.tree_util.keystr(path)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(
                f"the state's leaf {name} is a key of jax.random.key, which no file can keep; "
                "keep jax.random.key_data(key), or a key of jax.random.PRNGKey"
            )
        is_float = bool(jnp.issubdtype(leaf.dtype, jnp.floating))
        leaves.append(TensorLayout(name, tuple(leaf.shape), np.dtype(leaf.dtype), is_float))
    pick = parameters or _default_parameters
    places = tuple(jax.tree.leaves(pick(structure.unflatten(range(len(leaves))))))
    if not places or not all(isinstance(place, int) and 0 <= place < len(leaves) for place in places):
        raise ValueError(
            f"the parameters of a state of {len(leaves)} arrays are {places!r}; give parameters=, a function "
            "that picks some of the state's arrays and does nothing with them"
        )
    if not any(leaves[place].is_float for place in places):
        raise ValueError(
            f"none of the parameters {[leaves[place].name for place in places]} holds real numbers; give "
            "parameters=, a function that picks the model's weights out of the state"
        )
    return StateLayout(structure, tuple(leaves), places)


def flat(weights: Leaves, tensors: Sequence[TensorLayout]) -> Float[np.ndarray, " D"]:
    """Returns all real numbers of a model's weights as one vector."""
    parts = [w.astype(np.float64).ravel() for w, tensor in zip(weights, tensors, strict=True) if tensor.is_float]
    return np.concatenate(parts)


def _default_parameters(state: PyTree) -> PyTree:
    if isinstance(state, Mapping):
        return state.get("params", state)
    return getattr(state, "params", state)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class RacedModel:
    """A model as its user gives it to `parallel_initialize`, to be trained from many initializations."""

    init_fn: InitFn
    train_step: TrainStep
    batches: Batches
    parameters: Parameters | None = None

    def batch(self, step: int) -> PyTree:
        """Returns the batch of a training step, counted from 0."""
        return self.batches(step) if callable(self.batches) else self.batches[step % len(self.batches)]


def gives_gradient(model: RacedModel, layout: StateLayout) -> bool:
    """Returns whether a model's training step returns the norm of its gradient; checks all that the step takes and
    returns, by shapes alone.

    Raises:
        TypeError: batches are neither a sequence nor a function.
        ValueError: there are no batches, or the step doesn't give what it should.
    """
    import jax

    if not callable(model.batches):
        if not hasattr(model.batches, "__getitem__") or not hasattr(model.batches, "__len__"):
            raise TypeError(
                f"batches is a {type(model.batches).__name__}, which can't be read again for each candidate; "
                "give a list, or a function of the step that returns its batch"
            )
        if len(model.batches) == 0:
            raise ValueError("batches is empty; give at least one batch")
    state = layout.state(tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in layout.leaves))
    with contextlib.suppress(ValueError):  # some callables don't say what they take
        signature = inspect.signature(model.train_step)
        try:
            signature.bind(None, None)
        except TypeError:
            raise TypeError(f"train_step is {signature}, but must take (state, batch); give a function of both"
                            ) from None  # fmt: skip
    return _checked(jax.eval_shape(model.train_step, state, model.batch(0)), layout)


def _checked(returned: PyTree, layout: StateLayout) -> bool:
    import jax
    import jax.numpy as jnp

    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        got = f"{len(returned)} parts" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        raise ValueError(f"train_step returned {got}; return (state, loss) or (state, loss, gradient_norm)")
    new = jax.tree.leaves(returned[0])
    if len(new) != len(layout.leaves):
        raise ValueError(
            f"train_step returned a state of {len(new)} arrays for one of {len(layout.leaves)}; return the "
            "whole state as it is after the step"
        )
    for leaf, tensor in zip(new, layout.leaves, strict=True):
        if tuple(leaf.shape) != tensor.shape or leaf.dtype != tensor.dtype:
            raise ValueError(
                f"train_step made {tensor.name} of {tensor.dtype}{list(tensor.shape)} into "
                f"{leaf.dtype}{list(leaf.shape)}; a step must keep shapes and dtypes"
            )
    for name, value in zip(("loss", "gradient_norm"), returned[1:], strict=False):
        shape, dtype = getattr(value, "shape", ()), getattr(value, "dtype", None)
        if shape != () or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"train_step returned a {name} of {dtype}{list(shape)}; return one real number")
    return len(returned) == 3
