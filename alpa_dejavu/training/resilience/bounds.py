"""Bounds that no fault of neurons exceeds: of a fully connected network's error, by its weights alone.

In: the weight matrices of a network whose activations have a Lipschitz constant, and which neurons fail, or how many.
Out: the largest error that an output may have, whatever the inputs.

References:
    El Mhamdi and Guerraoui, When Neurons Fail, IPDPS 2017.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["bound_of_counts", "bound_of_neurons"]


def bound_of_counts(kernels: Sequence[Any], failing: Sequence[int], deviation: float, lipschitz: float = 1.0) -> float:
    """Returns a bound for any neurons that fail, so many in each hidden layer, by each layer's largest weight.

    A failing neuron of layer l is off by at most the deviation; each of the n - f others of layer m by at most the
    Lipschitz constant times its largest weight, w_m, times the sum of errors before it. With L hidden layers the output
    is off by at most

        deviation * w_{L+1} * sum over l of f_l * K^(L-l) * product over m = l+1..L of (n_m - f_m) * w_m

    Args:
        kernels: the weights of each layer, the linear output's last, shapes (inputs, outputs).
        failing: how many neurons fail in each hidden layer.
        deviation: by how much a failing neuron's output is off at most: for one that puts out 0 the largest magnitude
            of its activation, such as 1 for tanh.
        lipschitz: the Lipschitz constant of the activation.

    Raises:
        ValueError: the layers and the numbers don't fit.

    >>> bound_of_counts([np.ones((2, 3)), np.full((3, 1), 0.5)], [2], 1.0)
    1.0
    """
    matrices = _checked(kernels, failing)
    largest = [float(np.abs(each).max()) for each in matrices]
    reached = 0.0
    for layer, count in enumerate(failing):
        if not 0 <= count <= matrices[layer].shape[1]:
            raise ValueError(f"failing has {count} of layer {layer}, but must be of 0 to {matrices[layer].shape[1]}; "
                             "give numbers of its neurons")  # fmt: skip
        right = matrices[layer].shape[1] - count
        reached = count * deviation + right * lipschitz * largest[layer] * reached
    return largest[-1] * reached


def bound_of_neurons(kernels: Sequence[Any], failing: Sequence[Any], deviation: float, lipschitz: float = 1.0) -> float:
    """Returns a bound for given neurons that fail, by all weights: no larger than that of their numbers.

    Args:
        kernels: the weights of each layer, the linear output's last, shapes (inputs, outputs).
        failing: for each hidden layer which neurons fail, shape (outputs,), bool.
        deviation: by how much a failing neuron's output is off at most.
        lipschitz: the Lipschitz constant of the activation.

    Raises:
        ValueError: the layers and the masks don't fit.

    >>> bound_of_neurons([np.ones((2, 3)), np.array([[0.5], [0.25], [0.1]])], [np.array([False, True, True])], 1.0)
    0.35
    """
    matrices = _checked(kernels, failing)
    error = np.zeros(matrices[0].shape[0])
    for matrix, hit in zip(matrices, failing, strict=False):
        if np.shape(hit) != matrix.shape[1:]:
            raise ValueError(f"failing is of shape {np.shape(hit)}, but must be {matrix.shape[1:]}, that of the "
                             "layer's outputs; give one for each neuron")  # fmt: skip
        error = np.where(hit, deviation, lipschitz * (error @ np.abs(matrix)))
    return float((error @ np.abs(matrices[-1])).max())


def _checked(kernels: Sequence[Any], failing: Sequence[Any]) -> list[NDArray[np.float64]]:
    matrices = [np.asarray(each, np.float64) for each in kernels]
    fits = all(one.ndim == 2 for one in matrices) and all(
        one.shape[1] == other.shape[0] for one, other in itertools.pairwise(matrices)
    )
    if len(matrices) < 2 or not fits:
        raise ValueError(f"kernels is of shapes {[each.shape for each in matrices]}, but must be two or more matrices, "
                         "each as high as the last is wide; give (inputs, outputs) of each layer")  # fmt: skip
    if len(failing) != len(matrices) - 1:
        raise ValueError(f"failing has {len(failing)} layers, but must have {len(matrices) - 1}, the hidden ones; give "
                         "one for each")  # fmt: skip
    return matrices
