"""States made of other candidates' states: mutated, crossed, averaged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alpa_dejavu.training.initialization._layout import Array, Layout, Leaves, Tensor


def moved(weights: Leaves, tensors: Sequence[Tensor], strength: float, generator: np.random.Generator) -> Leaves:
    """Returns weights moved at random by `strength` standard deviations of each tensor; tensors without real numbers
    stay.
    """
    near = []
    for weight, tensor in zip(weights, tensors, strict=True):
        if tensor.is_float:
            exact = weight.astype(np.float64)
            noise = generator.standard_normal(tensor.shape) * exact.std()
            weight = np.asarray(exact + strength * noise).astype(tensor.dtype)
        near.append(weight)
    return tuple(near)


def mutated(parent: Leaves, layout: Layout, strength: float, generator: np.random.Generator) -> Leaves:
    """Returns a training state whose weights are moved at random by `strength` standard deviations of each tensor."""
    return layout.with_weights(parent, moved(layout.weights(parent), layout.tensors, strength, generator))


def crossed(parent: Leaves, other: Leaves, layout: Layout, generator: np.random.Generator) -> Leaves:
    """Returns a training state that has each tensor of weights from one of two parents, at random; all else is the
    first one's.
    """
    mixed = tuple(
        mine if generator.random() < 0.5 else theirs
        for mine, theirs in zip(layout.weights(parent), layout.weights(other), strict=True)
    )
    return layout.with_weights(parent, mixed)


def averaged(states: Sequence[Leaves], layout: Layout, weights_only: bool) -> Leaves:
    """Returns the mean of training states, over their weights or over all their real numbers; all else is the first
    one's.
    """
    if weights_only:
        together = zip(*(layout.weights(state) for state in states), strict=True)
        means = tuple(
            _mean(row) if tensor.is_float else row[0] for row, tensor in zip(together, layout.tensors, strict=True)
        )
        return layout.with_weights(states[0], means)
    return tuple(
        _mean(row).astype(tensor.dtype) if tensor.is_float else row[0]
        for row, tensor in zip(zip(*states, strict=True), layout.leaves, strict=True)
    )


def _mean(arrays: Sequence[Array]) -> Array:
    return np.asarray(np.mean([array.astype(np.float64) for array in arrays], axis=0))
