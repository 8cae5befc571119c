"""Unbalanced labels: margins that are larger for rare labels, weights that come later, and digits to try them on.

References:
    Cao and others, Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019.
    Cui and others, Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019 (the weights).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground.job import Later, Problem
from alpa_dejavu.playground.problems._digits import digits_mlp, digits_parts

__all__ = [
    "accuracy_of_labels", "balanced_weights", "digits_long_tail", "digits_margins", "label_margins", "long_tail",
    "margin_loss",
]  # fmt: skip

_RATIO, _LATER_STEPS = 20.0, 200
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def label_margins(counts: Sequence[int], most: float = 0.5) -> Floats:
    """Returns the margin of each label, in proportion to its number of samples to the power of -1/4, shape (labels,).

    Args:
        counts: the number of samples of each label, above 0.
        most: the margin of the rarest one.

    >>> label_margins([16, 1, 81])
    array([0.25      , 0.5       , 0.16666667])
    """
    _check_counts(counts)
    margins = np.asarray(counts, np.float64) ** -0.25
    return np.asarray(margins * (most / margins.max()))


def balanced_weights(counts: Sequence[int], beta: float = 0.9999) -> Floats:
    """Returns the weight of each label, (1 - beta) / (1 - beta^n) for n samples, with a mean of 1, shape (labels,).

    Args:
        counts: the number of samples of each label, above 0.
        beta: from 0, equal weights, to below 1, inverse numbers of samples.
    """
    _check_counts(counts)
    if not 0 <= beta < 1:
        raise ValueError(f"balanced weights: beta is {beta!r}, but must be at least 0 and below 1; 0.9999 is usual")
    weights = (1 - beta) / (1 - beta ** np.asarray(counts, np.float64))
    return np.asarray(weights / weights.mean())


def margin_loss(logits: Callable[[Any, Any], Any], counts: Sequence[int], *, most: float = 0.5, scale: float = 30.0,
                weights: Sequence[float] | None = None) -> Callable[[Any, Any], Any]:  # fmt: skip
    """Returns LDAM's loss: cross entropy of scaled cosines, where the right label's is smaller by its margin.

    Args:
        logits: returns for parameters and inputs the cosine of each sample with each label, shape (samples, labels).
        counts: the number of training samples of each label.
        most: the margin of the rarest label.
        scale: of the cosines.
        weights: of each label's samples, divided by those of the batch; None: all are equal.
    """
    margins = jnp.asarray(label_margins(counts, most), jnp.float32)
    heavy = jnp.ones(len(counts)) if weights is None else jnp.asarray(weights, jnp.float32)

    def loss(params: Any, batch: Any) -> Any:
        inputs, targets = batch
        right = jax.nn.one_hot(targets, len(counts))
        logarithms = jax.nn.log_softmax(scale * (logits(params, inputs) - right * margins))
        own = heavy[targets]
        return -jnp.sum(own * jnp.sum(logarithms * right, axis=-1)) / jnp.sum(own)

    return loss


def accuracy_of_labels(problem: Problem, params: NDArray[np.float32]) -> Floats:
    """Returns the held-out accuracy of each label, from 0, shape (labels,).

    Args:
        problem: one with whole numbers as targets.
        params: the parameters, such as `History.params`, shape (P,).
    """
    from jax.flatten_util import ravel_pytree

    assert problem.accuracy is not None, "it has labels"
    tree = ravel_pytree(problem.init(jax.random.PRNGKey(0)))[1](jnp.asarray(params))
    inputs, targets = problem.held_out
    each = [targets == label for label in range(int(targets.max()) + 1)]
    return np.array([float(problem.accuracy(tree, (inputs[own], targets[own]))) for own in each])


def long_tail(targets: NDArray[Any], ratio: float, seed: int = 0) -> Ints:
    """Returns the indices of samples with unbalanced labels, in ascending order: label k of K keeps, by chance,
    ratio^(-k / (K - 1)) times as many samples as the rarest label had.

    Args:
        targets: whole numbers from 0, shape (N,).
        ratio: samples of the first label over those of the last one.
        seed: of the draws.
    """
    if not ratio >= 1:
        raise ValueError(f"long tail: ratio is {ratio!r}, but must be at least 1; 20 keeps a twentieth of the last one")
    counts, draw = np.bincount(targets), np.random.default_rng(seed)
    wanted = np.maximum(counts.min() * ratio ** -(np.arange(len(counts)) / (len(counts) - 1)), 1).round().astype(int)
    kept = [draw.permutation(np.flatnonzero(targets == label))[:count] for label, count in enumerate(wanted)]
    return np.sort(np.concatenate(kept))


def digits_long_tail() -> Problem:
    """Returns digits of which the last has a twentieth of the first one's samples, by the network of digits-mlp.

    The held-out samples are balanced as they were.
    """
    plain = digits_mlp()
    kept = long_tail(plain.train[1], _RATIO)
    train = plain.train[0][kept], plain.train[1][kept]
    return Problem("digits-long-tail", plain.init, plain.loss, plain.accuracy, train, plain.held_out)


def digits_margins() -> Problem:
    """Returns the digits of digits-long-tail by cosines, with LDAM's margins, and its weights after 200 steps."""
    plain = digits_long_tail()
    init, features = digits_parts()
    counts = np.bincount(plain.train[1]).tolist()

    def logits(params: Any, inputs: Any) -> Any:
        kernel = params["out"]["kernel"]
        return _unit(features(params, inputs), 1) @ _unit(kernel, 0)

    def accuracy(params: Any, batch: Any) -> Any:
        return jnp.mean(jnp.argmax(logits(params, batch[0]), axis=-1) == batch[1])

    later = Later(_LATER_STEPS, margin_loss(logits, counts, weights=balanced_weights(counts).tolist()))
    return Problem("digits-margins", init, margin_loss(logits, counts), accuracy, plain.train, plain.held_out,
                   later=later)  # fmt: skip


def _unit(vectors: Any, axis: int) -> Any:
    return vectors * jax.lax.rsqrt(jnp.sum(jnp.square(vectors), axis=axis, keepdims=True) + 1e-12)


def _check_counts(counts: Sequence[int]) -> None:
    if not len(counts) or min(counts) < 1:
        raise ValueError(f"counts is {[*counts]}, but must be at least 1 sample of each label; leave rare labels out, "
                         "or take more samples")  # fmt: skip
