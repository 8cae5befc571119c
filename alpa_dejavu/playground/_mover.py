"""The samples of each worker while a run goes, and their way over the links, beside the exchange's messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu.playground._arrays import Counts, Figures, Rows
from alpa_dejavu.playground._data import DataMove, Epoch, Handed
from alpa_dejavu.playground._world import Program, Worker, World
from alpa_dejavu.playground.job import Job

_TAG = "moved samples"
_LONG = 2**31
"""The age of samples that a worker had from the beginning."""


@final
class Mover:
    """The samples of all workers, and a policy that moves them; they are sent beside the exchange's messages."""

    def __init__(self, job: Job, policy: DataMove, seed: int, world: World, send: Callable[..., None]) -> None:
        self._policy, self._seed, self._world, self._send = policy, seed, world, send
        self._rows: list[Rows] = world.learner.shards  # arrays are replaced, not changed
        self._ages: list[Counts] = [np.full(len(rows), _LONG) for rows in self._rows]
        self._samples = sum(map(len, self._rows))
        self._mean_samples = self._samples / len(self._rows)
        self._every = max(round(self._mean_samples / float(np.mean(job.batch))), 1)
        self._sample_bytes = job.bytes_of_a_sample()
        self._moved, self._different = 0, set[int]()

    def receive(self, worker: Worker) -> Program:
        """Runs beside a worker's own program: takes samples that come."""
        number = worker.number
        while True:
            for message in (yield worker.receive(_TAG)):
                young = np.zeros(len(message.payload), np.int64)
                self._rows[number] = np.concatenate([self._rows[number], message.payload])
                self._ages[number] = np.concatenate([self._ages[number], young])

    def before(self, worker: Worker, step: int) -> float:
        """Moves samples of a worker if an epoch is over; returns the seconds that it computes for that."""
        if not step or step % self._every:
            return 0.0
        number, rows, computed_s = worker.number, self._rows[worker.number], [0.0]

        def losses() -> Figures:
            computed_s[0] += self._world.compute_seconds(number, len(rows)) / 3
            return self._world.learner.losses(worker.params, _padded(rows))[: len(rows)]

        epoch = Epoch(number, step // self._every, rows, self._ages[number], self._world.live, self._mean_samples,
                      self._draws, losses)  # fmt: skip
        self._hand_on(number, self._policy.choose(epoch))
        self._ages[number] = self._ages[number] + 1
        return computed_s[0]

    def _draws(self, *name: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, 7 + len(name), *name])

    def _hand_on(self, number: int, handed: Handed) -> None:
        own = self._rows[number]
        places = _places(own, handed.rows)
        if places is None or len(places) >= len(own) or len(handed.rows) != len(handed.targets):
            raise ValueError(f"{self._policy!r}: worker {number} hands on {len(handed.rows)} samples, but must keep "
                             f"one of its {len(own)}, and hand on those alone, each once; mend choose")  # fmt: skip
        self._rows[number], self._ages[number] = np.delete(own, places), np.delete(self._ages[number], places)
        for target in np.unique(handed.targets).tolist():
            rows = handed.rows[handed.targets == target]
            self._send(number, target, _TAG, rows, self._sample_bytes * len(rows))
            self._moved += len(rows)
            self._different |= {*rows.tolist()}

    def note(self) -> None:
        """Notes how many samples and bytes were moved, and how many samples nobody has at the end."""
        num_bytes = units.traffic(self._moved * self._sample_bytes)
        self._world.recorder.note(f"samples moved: {self._moved}, {len(self._different)} different ones, {num_bytes}")
        missing = self._samples - sum(map(len, self._rows))
        if missing:
            self._world.recorder.note(f"{missing} samples are on their way at the end, or were lost with messages")


def _places(own: Rows, rows: Rows) -> Counts | None:
    """The places of some samples among those of a worker, which may have copies; None where it hasn't all of them."""
    order, wanted = np.argsort(own, kind="stable"), np.sort(rows)
    copies = np.arange(len(wanted)) - np.searchsorted(wanted, wanted)
    places = np.searchsorted(own[order], wanted) + copies
    if (places >= len(own)).any() or (own[order][places] != wanted).any():
        return None
    return order[places]


def _padded(rows: Rows) -> Rows:
    """Rows and repetitions of the last one, of one of few lengths: few sizes are few compilations."""
    length: int = 2 ** (len(rows) - 1).bit_length()
    return np.concatenate([rows, np.repeat(rows[-1:], length - len(rows))])
