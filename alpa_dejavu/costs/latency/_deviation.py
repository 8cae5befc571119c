"""How one GPU deviates from what its kernels are predicted to take: what kernels have in common, they err together.

A Gaussian process over log(measured / predicted) of the kernels of one GPU. Two kernels share the whole GPU's
deviation; the launch's, as far as the launch decides what they take; otherwise their kind's, their operator's, and what
work of their size and shape deviates by. How much each of these varies is learned from how GPUs that were left out of a
fit deviated from it.

References:
    Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2 and 5.
    Cohn, Ghahramani and Jordan, Active Learning with Statistical Models, JAIR 4, 1996 (what to measure next).
"""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from alpa_dejavu._util.ties import first_least
from alpa_dejavu.costs.latency._kernel_model import KernelModel
from alpa_dejavu.costs.latency._kernels import Array, Kernels

_ROWS_OF_GPU = 200
_LARGEST = 0.7
"""Errors in logarithms beyond it are taken for so large: a few broken rows say nothing of the others."""
_BELIEF = 0.7
"""How far (one standard deviation, in logarithms) the variances may be from the typical ones before seeing any GPU."""


@final
@dataclasses.dataclass(frozen=True)
class Deviations:
    """The variances of a kernel model's errors, log(measured / predicted), by what kernels of one GPU share.

    Each variance is of one part of the error, the length apart.

    Attributes:
        whole: the part that all kernels share.
        launch: the part that kernels share as far as their launch decides their seconds.
        kind: the part that kernels of a kind ("product", "rows", "map") share as far as their work decides.
        op: the part that kernels of the same operator share as far as their work decides.
        shape: the part that kernels of the same kind with like size and shape share; `length` is how far (in natural
            logarithms of work and sizes) that reaches.
        noise: the part that each kernel has of its own.

    The defaults are about what is found when one of the five GPUs of NeuSight's kernels is left out.
    """

    whole: float = 0.067**2
    launch: float = 0.20**2
    kind: float = 0.115**2
    op: float = 0.085**2
    shape: float = 0.225**2
    noise: float = 0.12**2
    length: float = 2.2

    @classmethod
    def fit(cls, model: KernelModel, kernels: Kernels, errors: Array) -> Deviations:
        """Fits the variances by marginal likelihood to the errors of kernel models on GPUs that they weren't fitted to.

        Args:
            model: the kernel model, fitted to the kernels.
            kernels: the measured kernels of several GPUs.
            errors: log(measured / predicted) of each kernel, by a fit without its GPU (`KernelModel.left_out_errors`).
        """
        typical = np.log(dataclasses.astuple(cls()))
        rng = np.random.default_rng(0)
        parts = []
        for gpu in np.unique(kernels.gpu):
            rows = rng.permutation(np.flatnonzero(kernels.gpu == gpu))[:_ROWS_OF_GPU]
            common = _Common.of(model, kernels.take(rows), kernels.take(rows))
            parts.append((common, np.clip(errors[rows], -_LARGEST, _LARGEST)))

        def loss(logs: Array) -> float:
            guess = cls(*np.exp(logs).tolist())
            belief = float((((logs - typical) / _BELIEF) ** 2).sum()) / 2
            return belief + sum(_minus_log_likelihood(guess, common, error) for common, error in parts)

        bounds = [(value - 4, value + 4) for value in typical]
        found = minimize(loss, typical, method="L-BFGS-B", bounds=bounds, options={"maxiter": 15})
        return cls(*np.exp(found.x).tolist())

    def covariance(self, model: KernelModel, some: Kernels, others: Kernels) -> Array:
        """Returns the covariance between the log errors, measured over predicted, of some kernels and of others on one
        GPU, without noise; shape (some, others).
        """
        return self._of(_Common.of(model, some, others))

    def of_launch(self, model: KernelModel, kernels: Kernels) -> Array:
        """Returns the covariance between each kernel's log error and the log error of a kernel that is all launch."""
        return np.asarray(self.whole + self.launch * _launch_shares(model, kernels))

    def of_work(self, model: KernelModel, kernels: Kernels, kind: str) -> Array:
        """Returns the covariance between each kernel's log error and the part of the error that all kernels of a kind
        share where their work, and not their launch, decides their seconds.
        """
        work = (kernels.kind == kind) * (1 - _launch_shares(model, kernels))
        return np.asarray(self.whole + self.kind * work)

    def variance(self, model: KernelModel, kernels: Kernels) -> Array:
        """Returns the variance of each kernel's log error on a GPU, without noise: the diagonal of `covariance`."""
        launch = _launch_shares(model, kernels)
        return self.whole + self.launch * launch**2 + (self.kind + self.op + self.shape) * (1 - launch) ** 2

    def _of(self, common: _Common) -> Array:
        work = self.kind + self.shape * np.exp(-common.distances / (2 * self.length**2))
        return np.asarray(
            self.whole + self.launch * common.launch + common.work * (common.kind * work + common.op * self.op)
        )


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Common:
    """The features that pairs of kernels have in common, all of shape (some, others)."""

    launch: Array
    work: Array
    kind: Array
    op: Array
    distances: Array

    @classmethod
    def of(cls, model: KernelModel, some: Kernels, others: Kernels) -> _Common:
        shares = _launch_shares(model, some)[:, None], _launch_shares(model, others)[None]
        places = _places(some)[:, None], _places(others)[None]
        return cls(
            launch=shares[0] * shares[1],
            work=(1 - shares[0]) * (1 - shares[1]),
            kind=(some.kind[:, None] == others.kind[None]) * 1.0,
            op=(some.op[:, None] == others.op[None]) * 1.0,
            distances=((places[0] - places[1]) ** 2).sum(axis=-1),
        )


def _launch_shares(model: KernelModel, kernels: Kernels) -> Array:
    """Returns how far the launch decides what each kernel takes: about 1 at its floor, 0 far above."""
    ratio = model.predict(kernels).mean / model.floor_s(kernels)
    return np.asarray(1 / (1 + (ratio / 1.5) ** 4))


def _places(kernels: Kernels) -> Array:
    """Returns where each kernel is among the sizes and shapes of its kind, in logarithms."""
    columns = [kernels.flop, kernels.moved_bytes, kernels.n, kernels.k]
    return np.stack([np.log(column) for column in columns], axis=1)


def _minus_log_likelihood(guess: Deviations, common: _Common, errors: Array) -> float:
    whole = guess._of(common) + guess.noise * np.eye(len(errors))
    factor = cho_factor(whole, lower=True)
    return float(errors @ cho_solve(factor, errors) / 2 + np.log(np.diag(factor[0])).sum())


def measure_next(
    deviations: Deviations, model: KernelModel, kernels: Kernels, count: int, known: Kernels | None = None
) -> NDArray[np.int64]:
    """Returns the indices of the kernels whose measurement on a GPU would tell most, in the order in which to measure
    them.

    Each time the kernel is chosen whose measurement lowers the variances of all kernels' errors, added up, the most. So
    kernels of great variance come early, and those like a kernel that was chosen before come late.

    Args:
        deviations: how much GPUs deviate from the kernel model.
        model: the kernel model.
        kernels: the kernels to choose from, all of one GPU.
        count: how many kernels are chosen, at most all.
        known: kernels that have been measured on that GPU already.
    """
    left = deviations.covariance(model, kernels, kernels)
    if known is not None and len(known):
        across = deviations.covariance(model, known, kernels)
        whole = deviations.covariance(model, known, known) + deviations.noise * np.eye(len(known))
        left = left - across.T @ cho_solve(cho_factor(whole, lower=True), across)
    variance, squares = np.diag(left).copy(), np.einsum("ij,ij->j", left, left)
    # What is left after those chosen is `left - told @ told.T`, which is never written out.
    count = min(count, len(kernels))
    all_told, chosen = np.zeros((len(kernels), count)), np.zeros(count, dtype=np.int64)
    open_ones = np.ones(len(kernels), dtype=np.bool_)
    for n in range(count):
        best = int(first_least(np.where(open_ones, -squares / (variance + deviations.noise), np.inf)))
        told = all_told[:, :n]
        column = (left[:, best] - told @ told[best]) / np.sqrt(variance[best] + deviations.noise)
        squares += column * (column * (column @ column) - 2 * (left @ column - told @ (told.T @ column)))
        variance = np.maximum(variance - column**2, 0.0)
        all_told[:, n], chosen[n], open_ones[best] = column, best, False
    return chosen
