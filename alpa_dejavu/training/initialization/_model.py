"""A model as far as a worker has to know it to train candidates of it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from alpa_dejavu.training.initialization._layout import Parameters, StateLayout

Batches: TypeAlias = Sequence[Any] | Callable[[int], Any]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class RacedModel:
    """A model as its user gives it, to be trained from many initializations.

    Attributes:
        init_fn: gives a training state for a random key.
        train_step: `(state, batch) -> (state, loss)`, or `-> (state, loss, gradient_norm)`.
        batches: a sequence, which begins again at its end, or a function of the step.
        parameters: picks the parameters out of a state; None: what is in `.params` or `["params"]`, else the state.
    """

    init_fn: Callable[[Any], Any]
    train_step: Callable[..., Any]
    batches: Batches
    parameters: Parameters | None = None

    def batch(self, step: int) -> Any:
        """Returns the batch of a training step, counted from 0."""
        return self.batches(step) if callable(self.batches) else self.batches[step % len(self.batches)]


def gives_gradient(model: RacedModel, layout: StateLayout) -> bool:
    """Returns whether a model's training step returns the norm of its gradient; checks all that the step takes and
    returns, by shapes alone.

    Args:
        model: the model.
        layout: the layout of its training states.

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


def _checked(returned: Any, layout: StateLayout) -> bool:
    import jax
    import jax.numpy as jnp

    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        got = f"{len(returned)} parts" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        raise ValueError(f"train_step returned {got}; return (state, loss) or (state, loss, gradient_norm)")
    new = jax.tree_util.tree_leaves(returned[0])
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
