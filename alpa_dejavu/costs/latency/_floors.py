"""The least seconds that a kernel takes: its launch, whatever its size.

That is the host's time, not the GPU's: a slow host raises it, so the hosts' floors lie above one that the software
sets. A GPU that wasn't seen is taken to be on one of the faster hosts: the lower quartile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.costs.latency._kernels import Array, Kernels

if TYPE_CHECKING:
    from alpa_dejavu.costs.fitted_format import FloorsData

_SMALL_S = 2e-6
_ENOUGH = 5


@final
class Floors:
    """The least seconds that a kernel of each kind takes (its launch), on each GPU that was measured and on any
    other.
    """

    def __init__(self, of_gpu: Mapping[tuple[str, int], float]) -> None:
        self._of_gpu = dict(of_gpu)
        ops = sorted({op for op, _ in of_gpu})
        each = {op: [floor for (name, _), floor in of_gpu.items() if name == op] for op in ops}
        self.of_op = {op: float(np.quantile(floors, 0.25, method="higher")) for op, floors in each.items()}
        self.other = float(np.median(list(self.of_op.values())))

    @classmethod
    def fit(cls, kernels: Kernels, seconds: Array) -> Floors:
        """Fits the least seconds of each kind of kernel on each GPU to the smallest kernels measured there."""
        work = np.maximum(kernels.traffic_s, kernels.compute_s)
        found = {}
        for op in np.unique(kernels.op):
            for gpu in np.unique(kernels.gpu[kernels.op == op]):
                chosen = (kernels.op == op) & (kernels.gpu == gpu)
                small = seconds[chosen & (work < _SMALL_S)]
                few = len(small) < _ENOUGH
                floor = np.quantile(seconds[chosen], 0.02) if few else np.median(small)
                found[str(op), int(gpu)] = float(floor)
        return cls(found)

    def seen(self, kernels: Kernels) -> Array:
        """Returns the least seconds of each kernel's kind on its own GPU, for kinds and GPUs that were fitted."""
        pairs = zip(kernels.op.tolist(), kernels.gpu.tolist(), strict=True)
        return np.array([self._of_gpu[op, gpu] for op, gpu in pairs])

    def expected(self, op: NDArray[np.str_]) -> Array:
        """Returns the least seconds (the launch) that kernels of these kinds, given by the names of their operators,
        are expected to take on a GPU that wasn't measured.
        """
        return np.array([self.of_op.get(name, self.other) for name in op.tolist()])

    def state(self) -> FloorsData:
        """Returns as JSON's types, for each kind of kernel, the least seconds on each measured GPU."""
        ordered = sorted(self._of_gpu.items())
        return {op: [floor for (name, _), floor in ordered if name == op] for op in self.of_op}

    @classmethod
    def of_state(cls, state: FloorsData) -> Floors:
        """Returns the least seconds of kernels in `state`, which lists them by kind of kernel for each measured GPU."""
        return cls({(op, gpu): float(floor) for op, floors in state.items() for gpu, floor in enumerate(floors)})
