"""The interface of splits: which samples each worker trains on."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Shards", "Split", "SplitTask", "Uses"]

Ints = NDArray[np.int64]
Uses: TypeAlias = Literal["exactly once", "at most once", "at will"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class SplitTask:
    """Samples that are to be spread over n workers.

    Attributes:
        inputs, targets: the N training samples, first dimension the samples.
        hosts: for each worker the index of its host, shape (n,).
        compute_s: seconds of a gradient of each worker, shape (n,).
        seed: of what is drawn.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    hosts: tuple[int, ...]
    compute_s: tuple[float, ...]
    seed: int

    @property
    def size(self) -> int:
        """Returns the number of workers."""
        return len(self.hosts)

    @property
    def samples(self) -> int:
        """Returns the number of samples."""
        return len(self.targets)

    def generator(self) -> np.random.Generator:
        """Returns the random numbers of the split, from their beginning."""
        return np.random.default_rng([self.seed, 6])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
    """The samples of each worker.

    Attributes:
        rows: for each worker the indices of its samples; from `real` on they are those of synthetic ones.
        real: the number of samples that there were.
        made_inputs, made_targets: the synthetic samples, as many of both; None: there are none.
    """

    rows: tuple[Ints, ...]
    real: int
    made_inputs: NDArray[Any] | None = None
    made_targets: NDArray[Any] | None = None

    @property
    def synthetic(self) -> NDArray[np.bool_]:
        """Returns of all samples which are synthetic, shape (real and synthetic ones,)."""
        made = 0 if self.made_targets is None else len(self.made_targets)
        return np.arange(self.real + made) >= self.real


class Split(abc.ABC):
    """A way to spread samples over workers; `alpa_dejavu.playground.testing.check_split` says if one is sound.

    Attributes:
        uses: how often a sample is there among all workers: "exactly once", "at most once", or "at will".
    """

    uses: ClassVar[Uses] = "exactly once"

    @abc.abstractmethod
    def split(self, task: SplitTask) -> Shards:
        """Returns the samples of each worker; each has at least one.

        Raises:
            ValueError: a worker would be left without samples, or the targets are none that the split can do with.
        """
