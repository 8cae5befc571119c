"""The interface of policies that move samples from worker to worker while a run goes."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from alpa_dejavu.playground._mover import Mover

__all__ = ["DataMove", "Epoch", "Handed"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Handed:
    """Samples that a worker hands on.

    Attributes:
        rows: the indices of these samples, shape (k,), each as often as the worker hands it on.
        targets: for each the number of the worker that gets it, shape (k,).
    """

    rows: Ints
    targets: Ints


@final
class Epoch:
    """The end of a worker's epoch, as a policy sees it.

    An epoch is as many gradients as go once through a worker's samples on the mean of all workers at the beginning.

    Attributes:
        worker: the number of the worker.
        number: which epoch ends, from 1.
        rows: the indices of the samples that the worker has, shape (m,).
        ages: how many epochs of the worker ended since each of these came, shape (m,); very many for the first ones.
        memory: what policies keep on this worker, and what others told it, by key.
        seconds: what it has computed for this takes so long; the worker's next gradient is so much later.
    """

    def __init__(self, mover: Mover, worker: int, number: int, params: NDArray[np.float32]) -> None:
        self.worker, self.number, self._mover, self._params = worker, number, mover, params
        self.rows, self.ages = mover.rows[worker], mover.ages[worker]
        self.memory, self.seconds = mover.memory[worker], 0.0

    def amount(self, share: float) -> int:
        """Returns how many samples are a share of an epoch's: as many for all workers, but a worker keeps one."""
        return max(min(round(share * self._mover.mean_samples), len(self.rows) - 1), 0)

    def generator(self, purpose: int = 0) -> np.random.Generator:
        """Returns random numbers of this worker's epoch, from their beginning, others for each purpose."""
        return self._mover.generator(self.number, self.worker, purpose)

    def partners(self, count: int, later: int = 0) -> Ints:
        """Returns `count` other workers, shape (count,), drawn with the same numbers for all, so that in an epoch each
        is drawn by as many as it draws; empty where there is no other.

        Args:
            count: how many.
            later: of which epoch after this one.
        """
        return self._shifted(count, later, 1)

    def askers(self, count: int, later: int = 0) -> Ints:
        """Returns those that draw this worker as their `partners`, shape (count,)."""
        return self._shifted(count, later, -1)

    def tell(self, target: int, key: Hashable, value: Any, num_bytes: float) -> None:
        """Sends something to another worker, into whose memory it comes by the key, when the bytes have passed."""
        self._mover.tell(self.worker, target, key, value, num_bytes)

    def losses(self) -> Floats:
        """Returns the loss of each of the worker's samples at its parameters, shape (m,); it takes a third of the
        seconds of their gradients.
        """
        self.seconds += self._mover.seconds(self.worker, len(self.rows)) / 3
        return self._mover.losses(self._params, self.rows)

    def gradients(self, dimensions: int) -> NDArray[np.float32]:
        """Returns the gradient of each of the worker's samples at its parameters in a random projection, the same for
        all, shape (m, dimensions); it takes the seconds of their gradients.

        References:
            Johnson and Lindenstrauss, Extensions of Lipschitz Mappings into a Hilbert Space, 1984.
        """
        self.seconds += self._mover.seconds(self.worker, len(self.rows))
        return self._mover.gradients(self._params, self.rows, dimensions)

    def held_out_loss(self) -> float:
        """Returns the held-out loss of the worker's parameters; it takes a third of the seconds of these gradients."""
        self.seconds += self._mover.seconds(self.worker, self._mover.held_out) / 3
        return self._mover.held_out_loss(self._params)

    @property
    def others(self) -> tuple[int, ...]:
        """Returns the numbers of the other workers that are there."""
        return tuple(number for number in self._mover.live() if number != self.worker)

    def _shifted(self, count: int, later: int, sign: int) -> Ints:
        live = self._mover.live()
        if len(live) < 2:
            return np.zeros(0, np.int64)
        shifts = self._mover.generator(self.number + later).integers(1, len(live), size=count)
        return np.array(live, np.int64)[(live.index(self.worker) + sign * shifts) % len(live)]


class DataMove(abc.ABC):
    """A policy of which samples a worker hands on at the end of each of its epochs, and to whom.

    Samples go over the links with their bytes while training goes on: from the sending on the sender has them no more,
    and the receiver draws from them once they have come. `alpa_dejavu.playground.testing.check_move` says if a policy
    is sound.
    """

    @abc.abstractmethod
    def choose(self, epoch: Epoch) -> Handed:
        """Returns the samples that a worker hands on now, of those that it has; at least one stays."""
