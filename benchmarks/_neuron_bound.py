"""A bound that no fault of neurons exceeds: of a fully connected network's error, by its weights alone.

References:
    El Mhamdi and Guerraoui, When Neurons Fail, IPDPS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def bound_of_counts(
    kernels: Sequence[NDArray[np.floating]], failing: Sequence[int], deviation: float, lipschitz: float = 1.0
) -> float:
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
    """
    largest = [float(np.abs(kernel).max()) for kernel in kernels]
    reached = 0.0
    for kernel, weight, count in zip(kernels[:-1], largest[:-1], failing, strict=True):
        reached = count * deviation + (kernel.shape[1] - count) * lipschitz * weight * reached
    return largest[-1] * reached
