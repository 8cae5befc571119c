"""A model of kernels, adapted to one GPU by a few measurements on it."""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve

from alpa_dejavu.costs.latency._deviation import Deviations
from alpa_dejavu.costs.latency._kernel_model import KernelModel
from alpa_dejavu.costs.latency._kernels import Array, Kernels
from alpa_dejavu.costs.left_out_errors import Seconds

_ODD = 2.0
"""A measurement that is so many standard deviations off counts as one of more noise (Huber's weights)."""
_ROUNDS = 4
_ODD_SQUARE, _STRENGTH = 9.0, 20.0
"""The largest squared miss that counts, in variances, and how many misses as expected are taken to have been seen."""


@final
class AdaptedKernels:
    """A kernel latency model adapted to one GPU by a few measurements of that GPU.

    Without measurements, and for kernels unlike the measured ones, it predicts what the model predicts. Its 90 %
    interval is the model's, narrower where the GPU's deviation from the model is known, and wider where measurements
    contradict each other by more than expected.

    Args:
        deviations: how much GPUs deviate from the model; by default as in the open measurements of five GPUs.

    Attributes:
        common_variance: by class of kernel, the share of the errors' variance that all kernels of the class have in
            common: the better this GPU's own deviation is known, the further below the model's.
    """

    def __init__(self, deviations: Deviations | None = None) -> None:
        self.deviations = Deviations() if deviations is None else deviations

    def fit(self, model: KernelModel, kernels: Kernels, seconds: ArrayLike) -> AdaptedKernels:
        """Adapts a fitted kernel latency model to one GPU by measured kernels.

        Args:
            model: the kernel model, fitted to other GPUs.
            kernels: the kernels that were measured on the GPU; they may be none.
            seconds: the measured seconds of each kernel.

        Raises:
            ValueError: seconds that aren't finite and above zero, or kernels of more than one GPU.
        """
        measured = np.asarray(seconds, dtype=np.float64)
        if measured.shape != (len(kernels),) or not (np.isfinite(measured) & (measured > 0)).all():
            raise ValueError(f"kernels: seconds must be {len(kernels)} finite numbers above zero; leave out what isn't")
        if len(np.unique(kernels.gpu)) > 1:
            count = len(np.unique(kernels.gpu))
            raise ValueError(f"kernels: they ran on {count} GPUs, but a model is adapted to one; adapt one for each")
        self._model, self._kernels, self._slower_launch = model, kernels, 1.0
        self.common_variance = dict(model.common_variance)
        if not len(kernels):
            return self
        errors = np.log(measured / model.predict(kernels).mean)
        among, noise = self.deviations.covariance(model, kernels, kernels), self.deviations.noise
        odd = np.ones(len(kernels))
        for _ in range(_ROUNDS):
            self._factor = cho_factor(among + np.diag(noise * odd), lower=True)
            self._weights = cho_solve(self._factor, errors)
            off = np.abs(errors - among @ self._weights) / np.sqrt(noise)
            odd = np.maximum(off / _ODD, 1.0)
        self._wider = self._missed(np.diag(cho_solve(self._factor, np.eye(len(kernels)))))
        launch = self.deviations.of_launch(model, kernels) @ self._weights
        self._slower_launch = float(np.exp(launch))
        self.common_variance = {kind: self._still_common(kind, share) for kind, share in model.common_variance.items()}
        return self

    def predict(self, kernels: Kernels) -> Seconds:
        """Predicts the seconds of kernels on the GPU that the model was adapted to, with a 90 % interval."""
        base = self._model.predict(kernels)
        if not len(self._kernels) or not len(kernels):
            return base
        shift, ratio = self._deviation(kernels)
        mean = base.mean * np.exp(shift)
        lower, upper = (mean * (end / base.mean) ** (ratio * self._wider) for end in (base.lower, base.upper))
        return Seconds(mean, lower, upper, base.in_domain)

    def floor_s(self, kernels: Kernels) -> Array:
        """Returns the seconds of each kernel's launch, which are a part of its predicted seconds on the GPU."""
        return np.asarray(self._model.floor_s(kernels) * self._slower_launch)

    def _still_common(self, kind: str, share: float) -> float:
        across = self.deviations.of_work(self._model, self._kernels, kind)
        before = self.deviations.whole + self.deviations.kind
        left = share * max(1.0 - float(across @ cho_solve(self._factor, across)) / before, 0.0)
        return left / (left + 1 - share) if left else 0.0

    def _missed(self, precision: Array) -> float:
        """Returns how many times as far off as expected measurements are from what the others say of each.

        Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 5.4.2, has the formula.
        """
        squares = np.minimum(self._weights**2 / precision, _ODD_SQUARE)
        return float(np.sqrt((_STRENGTH + squares.sum()) / (_STRENGTH + len(squares))))

    def _deviation(self, kernels: Kernels) -> tuple[Array, Array]:
        """Returns what each kernel is moved by (in logarithms), and which part of its spread is left."""
        across = self.deviations.covariance(self._model, self._kernels, kernels)
        before = self.deviations.variance(self._model, kernels)
        after = before - np.einsum("ij,ij->j", across, cho_solve(self._factor, across))
        noise = self.deviations.noise
        return across.T @ self._weights, np.sqrt((np.maximum(after, 0.0) + noise) / (before + noise))
