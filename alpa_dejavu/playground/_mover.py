"""The samples of each worker while a run goes, and their way over the links, beside the exchange's messages."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util import units
from alpa_dejavu.playground._batches import draws
from alpa_dejavu.playground._data_move import DataMove, Epoch, Handed
from alpa_dejavu.playground._worker import Program, Worker
from alpa_dejavu.playground.job import Job

if TYPE_CHECKING:
    from alpa_dejavu.playground._virtual_world import VirtualWorld

__all__ = ["Mover"]

Ints = NDArray[np.int64]
_TAG = "moved samples"
_LONG = 2**31
"""The age of samples that a worker had from the beginning."""


@final
class Mover:
    """The samples of all workers, and a policy that moves them.

    Args:
        job: the job, whose shards are settled.
        policy: the policy.
        seed: of what is drawn.
        world: the workers and their links.

    Attributes:
        rows: for each worker the indices of the samples that it has now; arrays are replaced, not changed.
        ages: for how many ends of epochs the worker has had each of these.
        memory: for each worker what policies keep there, by key.
        mean_samples: samples of a worker at the beginning, on the mean.
        held_out: the number of held-out samples.
    """

    def __init__(self, job: Job, policy: DataMove, seed: int, world: VirtualWorld) -> None:
        assert job.problem is not None, "the job has checked it"
        self._policy, self._seed, self._world = policy, seed, world
        self.rows: list[Ints] = world.learner.shards
        self.ages: list[Ints] = [np.full(len(rows), _LONG) for rows in self.rows]
        self.memory: list[dict[Hashable, Any]] = [{} for _ in self.rows]
        self._samples = sum(map(len, self.rows))
        self.mean_samples, self.held_out = self._samples / len(self.rows), len(job.problem.held_out[0])
        self._every = max(round(self.mean_samples / float(np.mean(job.batch))), 1)
        self._sample_bytes = job.bytes_of_a_sample()
        self._moved, self._different, self._told_bytes = 0, set[int](), 0.0
        self._directions: dict[tuple[int, int], NDArray[np.float32]] = {}

    def receive(self, worker: Worker) -> Program:
        """Runs beside a worker's own program: takes samples that come, and what others tell."""
        while True:
            for message in (yield worker.receive(_TAG)):
                kind, content = message.payload
                if kind == "samples":
                    number, young = worker.number, np.zeros(len(content), np.int64)
                    self.rows[number] = np.concatenate([self.rows[number], content])
                    self.ages[number] = np.concatenate([self.ages[number], young])
                else:
                    key, value = content
                    self.memory[worker.number][key] = value

    def before(self, worker: Worker, step: int) -> float:
        """Moves samples of a worker that is to begin a gradient, if an epoch is over; returns how many seconds it
        computes for that.

        Args:
            worker: the worker.
            step: how many gradients it has begun.

        Raises:
            ValueError: the policy hands on samples that the worker hasn't, or all that it has.
        """
        if not step or step % self._every:
            return 0.0
        epoch = Epoch(self, worker.number, step // self._every, worker.params)
        self._hand_on(worker.number, self._policy.choose(epoch))
        self.ages[worker.number] = self.ages[worker.number] + 1
        return epoch.seconds

    def _hand_on(self, number: int, handed: Handed) -> None:
        own = self.rows[number]
        places = _places(own, handed.rows)
        if places is None or len(places) >= len(own) or len(handed.rows) != len(handed.targets):
            raise ValueError(f"{self._policy!r}: worker {number} hands on {len(handed.rows)} samples, but must keep "
                             f"one of its {len(own)}, and hand on those alone, each once; mend choose")  # fmt: skip
        self.rows[number], self.ages[number] = np.delete(own, places), np.delete(self.ages[number], places)
        for target in np.unique(handed.targets).tolist():
            rows = handed.rows[handed.targets == target]
            self._world.send(number, target, _TAG, ("samples", rows), self._sample_bytes * len(rows), beside=True)
            self._moved += len(rows)
            self._different |= {*rows.tolist()}

    def note(self) -> None:
        """Notes how many samples and bytes were moved, and how many samples nobody has at the end."""
        sizes = units.traffic(self._moved * self._sample_bytes), units.traffic(self._told_bytes)
        self._world.recorder.note(f"samples moved: {self._moved}, {len(self._different)} different ones, {sizes[0]}, "
                                  f"and {sizes[1]} to choose them")  # fmt: skip
        missing = self._samples - sum(map(len, self.rows))
        if missing:
            self._world.recorder.note(f"{missing} samples are on their way at the end, or were lost with messages")

    # What policies use.

    def live(self) -> tuple[int, ...]:
        """Returns the numbers of the workers that are there."""
        return self._world.live

    def generator(self, *name: int) -> np.random.Generator:
        """Returns the random numbers of a name, such as an epoch's."""
        return draws(self._seed, 7 + len(name), *name)

    def tell(self, source: int, target: int, key: Hashable, value: Any, num_bytes: float) -> None:
        """Sends something to the memory of another worker."""
        self._told_bytes += num_bytes
        self._world.send(source, target, _TAG, ("told", (key, value)), num_bytes, beside=True)

    def seconds(self, number: int, samples: int) -> float:
        """Returns how many seconds a worker computes the gradients of some samples."""
        return self._world.compute_seconds(number, samples)

    def losses(self, params: NDArray[np.float32], rows: Ints) -> NDArray[np.float64]:
        """Returns the loss of each of some samples, shape (samples,)."""
        return self._world.learner.losses(params, _padded(rows))[: len(rows)]

    def gradients(self, params: NDArray[np.float32], rows: Ints, dimensions: int) -> NDArray[np.float32]:
        """Returns the gradients of samples in a random projection, shape (samples, dimensions)."""
        found = self._world.learner.each(params, _padded(rows))[: len(rows)]
        form = found.shape[1], dimensions
        if form not in self._directions:
            self._directions[form] = draws(self._seed, 7).standard_normal(form).astype(np.float32)
        return np.asarray(found @ self._directions[form])

    def held_out_loss(self, params: NDArray[np.float32]) -> float:
        """Returns the held-out loss."""
        return self._world.learner.score(params)[0]


def _places(own: Ints, rows: Ints) -> Ints | None:
    """The places of some samples among those of a worker, which may have copies; None where it hasn't all of them."""
    order, wanted = np.argsort(own, kind="stable"), np.sort(rows)
    copies = np.arange(len(wanted)) - np.searchsorted(wanted, wanted)
    places = np.searchsorted(own[order], wanted) + copies
    if (places >= len(own)).any() or (own[order][places] != wanted).any():
        return None
    return order[places]


def _padded(rows: Ints) -> Ints:
    """Rows and repetitions of the last one, of one of few lengths: few sizes are few compilations."""
    length: int = 2 ** (len(rows) - 1).bit_length()
    return np.concatenate([rows, np.repeat(rows[-1:], length - len(rows))])
