"""Types of the playground's arrays, for annotations alone: as text, they need no jaxtyping when a program runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Shaped

Vector: TypeAlias = "Float[np.ndarray, ' P']"
"""A model's parameters, one leaf after the other, or a gradient of them."""
Flat: TypeAlias = "Float[Array, ' P']"
"""A `Vector` in a compiled program."""
Rows: TypeAlias = "Int[np.ndarray, ' samples']"
"""The indices of training samples."""
Data: TypeAlias = "tuple[Shaped[np.ndarray, 'samples ...'], Shaped[np.ndarray, 'samples ...']]"
"""Inputs and targets."""
Samples: TypeAlias = "Shaped[Array, 'samples ...']"
"""Inputs, or targets, in a compiled program."""
Batch: TypeAlias = "tuple[Samples, Samples]"
Scalar: TypeAlias = "Float[Array, '']"
Init: TypeAlias = "Callable[[PRNGKeyArray], PyTree]"
Loss: TypeAlias = "Callable[[PyTree, Batch], Scalar]"
Logits: TypeAlias = "Callable[[PyTree, Samples], Float[Array, '*targets classes']]"
