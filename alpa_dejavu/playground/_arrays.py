"""Types of the playground's arrays, for annotations alone: as text, they need no jaxtyping when a program runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Shaped

Vector: TypeAlias = "Float[np.ndarray, ' P']"
"""A model's parameters, one leaf after the other, or a gradient of them."""
Vectors: TypeAlias = "Float[np.ndarray, 'N P']"
Flat: TypeAlias = "Float[Array, ' P']"
"""A `Vector` in a compiled program."""
Rows: TypeAlias = "Int[np.ndarray, ' samples']"
"""The indices of training samples."""
Coordinates: TypeAlias = "Int[np.ndarray, 'samples indices']"
"""The indices of some parameters for each of some samples."""
Counts: TypeAlias = "Int[np.ndarray, ' samples']"
"""A whole number for each of some samples, such as a label."""
Figures: TypeAlias = "Float[np.ndarray, ' samples']"
"""A number for each of some samples, such as a loss."""
Values: TypeAlias = "Shaped[np.ndarray, 'samples ...']"
"""Inputs, or targets."""
Data: TypeAlias = "tuple[Values, Values]"
"""Inputs and targets."""
Samples: TypeAlias = "Shaped[Array, 'samples ...']"
"""`Values` in a compiled program."""
Batch: TypeAlias = "tuple[Samples, Samples]"
Scalar: TypeAlias = "Float[Array, '']"
Params: TypeAlias = "PyTree[Float[Array, '...']]"
State: TypeAlias = "PyTree"
"""The arrays that an optimizer keeps between two updates."""
Init: TypeAlias = "Callable[[PRNGKeyArray], Params]"
Loss: TypeAlias = "Callable[[Params, Batch], Scalar]"
Logits: TypeAlias = "Callable[[Params, Samples], Float[Array, '*targets classes']]"
