"""The outcome of a simulation: who did what when, and what lay in memory."""

from __future__ import annotations

import dataclasses
import functools
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.simulation._stage_times import StageTimes
from alpa_dejavu.simulation._ticks import ticks

__all__ = ["KINDS", "Event", "Timeline", "Track"]

KINDS = ("forward", "backward", "collective", "send", "update", "bubble")
_FORWARD, _BACKWARD, _COLLECTIVE, _SEND, _UPDATE, _BUBBLE = range(6)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@final
@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that a stage does during a simulated step, or that it waits ("bubble").

    Attributes:
        stage: the index of the stage; for "send", of the one that sends.
        kind: "forward", "backward", "collective", "send", "update" or "bubble".
        micro_batch: its number, from 0; -1 for "update" and "bubble".
        start_s, end_s: when it starts and ends, in seconds from the step's start.
        receiver: the stage that a "send" goes to, otherwise None.
    """

    stage: int
    kind: str
    micro_batch: int
    start_s: float
    end_s: float
    receiver: int | None = None


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Track:
    """The events of a simulated step (what stages do, and when) as columns of shape (number of events,), ordered by
    stage, then by start.

    `kind` is an index into `KINDS`: "forward", "backward", "collective", "send", "update", "bubble". `receiver` is the
    stage that a "send" goes to, else -1.
    """

    stage: IntArray
    kind: IntArray
    micro_batch: IntArray
    receiver: IntArray
    start_s: FloatArray
    end_s: FloatArray

    def __len__(self) -> int:
        return len(self.stage)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Timeline:
    """The simulated timeline of one step of a pipeline: when each stage computes, sends and updates.

    Arrays of passes and transfers have a start and an end, in seconds, for each of S stages and B micro-batches: shape
    (S, B, 2). A transfer is in the row of its sender; start and end are NaN where there is none.

    Attributes:
        stages: the times of the S stages that were simulated.
        num_micro_batches, schedule: B, and the pipeline schedule, that were simulated.
        blocking: whether a transfer holds up both of its stages until it is done.
        step_s: the seconds of the step: when the last stage is done.
        forward_s, backward_s, forward_send_s, backward_send_s: such arrays, of the passes and of the transfers to the
            next and to the previous stage; those of backward are NaN in inference.
        update_s: shape (S, 2), start and end of each stage's update at the end of the step.
    """

    stages: tuple[StageTimes, ...]
    num_micro_batches: int
    schedule: str
    blocking: bool
    step_s: float
    forward_s: FloatArray
    backward_s: FloatArray
    forward_send_s: FloatArray
    backward_send_s: FloatArray
    update_s: FloatArray

    @property
    def num_stages(self) -> int:
        """Returns the number of the pipeline's stages, S."""
        return len(self.stages)

    @property
    def computing_s(self) -> tuple[float, ...]:
        """Returns for each of S stages the seconds of one micro-batch's passes together, collectives included, as they
        go in this step: where devices share a CPU, they take longer beside others than alone.

        The last backward pass isn't counted where there are others, as gradients are synchronised in it.
        """
        forward, backward = (np.nan_to_num(each[..., 1] - each[..., 0]) for each in (self.forward_s, self.backward_s))
        often = backward[:, : max(self.num_micro_batches - 1, 1)]
        return tuple((forward.mean(axis=1) + often.mean(axis=1)).tolist())

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """Returns all events of the simulated step (what each stage does when), bubbles included, ordered by stage and
        start.
        """
        track = self.track
        columns = (track.stage, track.kind, track.micro_batch, track.receiver, track.start_s, track.end_s)
        return tuple(
            Event(stage, KINDS[kind], batch, start, end, receiver if receiver >= 0 else None)
            for stage, kind, batch, receiver, start, end in zip(*(c.tolist() for c in columns), strict=True)
        )

    @functools.cached_property
    def track(self) -> Track:
        """Returns all events of the simulated step (what each stage does when), bubbles included, as columns.

        All collectives of a forward or backward pass are put together at its end.
        """
        num_stages, size = self.num_stages, self.num_micro_batches
        stage = np.repeat(np.arange(num_stages), size)
        batch = np.tile(np.arange(size), num_stages)
        once, none = np.arange(num_stages), np.full(num_stages, -1)
        rows = []
        for times, kind in ((self.forward_s, _FORWARD), (self.backward_s, _BACKWARD)):
            split = times[..., 1] - (times[..., 1] - times[..., 0]) * self.collective_shares(KINDS[kind])
            for part, span in ((kind, (times[..., 0], split)), (_COLLECTIVE, (split, times[..., 1]))):
                rows.append(_rows(stage, part, batch, -1, *(x.ravel() for x in span)))
        rows.append(_rows(stage, _SEND, batch, stage + 1, *self.forward_send_s.reshape(-1, 2).T))
        rows.append(_rows(stage, _SEND, batch, stage - 1, *self.backward_send_s.reshape(-1, 2).T))
        rows.append(_rows(once, _UPDATE, none, -1, *self.update_s.T))
        rows.extend(_rows(np.full(len(idle), i), _BUBBLE, -1, -1, *idle.T) for i, idle in enumerate(self._idle()))
        table = np.concatenate(rows, axis=1)
        table = table[:, table[5] > table[4]]
        table = table[:, np.lexsort((table[5], table[4], table[0]))]
        whole = [column.astype(np.int64) for column in table[:4]]
        return Track(whole[0], whole[1], whole[2], whole[3], start_s=table[4], end_s=table[5])

    def collective_shares(self, kind: str) -> FloatArray:
        """Returns the share of the time of each pass ("forward" or "backward", as `kind` says) that is spent in
        collectives; shape (S, B) for S stages and B micro-batches.
        """
        share = np.zeros((self.num_stages, self.num_micro_batches))
        for i, stage in enumerate(self.stages):
            whole, part = (
                (stage.forward_s, stage.forward_collective_s)
                if kind == "forward"
                else (stage.backward_s, stage.backward_collective_s)
            )
            share[i] = part / whole if whole > 0 else 0.0
            if kind == "backward" and whole + stage.synchronisation_s > 0:
                share[i, -1] = (part + stage.synchronisation_s) / (whole + stage.synchronisation_s)
        return share

    @functools.cached_property
    def _occupied(self) -> tuple[FloatArray, ...]:
        """Returns when each stage computes, or is held up by a transfer: shape (number, 2), by start, disjoint."""
        spans = []
        for i in range(self.num_stages):
            parts = [self.forward_s[i], self.backward_s[i], self.update_s[i : i + 1]]
            if self.blocking:
                parts += [self.forward_send_s[i], self.backward_send_s[i]]
                parts += [self.forward_send_s[i - 1]] if i else []
                parts += [self.backward_send_s[i + 1]] if i + 1 < self.num_stages else []
            busy = np.concatenate(parts)
            busy = busy[busy[:, 1] > busy[:, 0]]
            spans.append(busy[np.argsort(busy[:, 0], kind="stable")])
        return tuple(spans)

    def _idle(self) -> list[FloatArray]:
        """Returns for each stage the gaps between what occupies it, shape (number, 2)."""
        gaps = []
        for busy in self._occupied:
            edges = np.concatenate([[0.0], busy.ravel(), [self.step_s]]).reshape(-1, 2)
            gaps.append(edges[edges[:, 1] - edges[:, 0] > 1e-12 * self.step_s])
        return gaps

    @functools.cached_property
    def busy_shares(self) -> FloatArray:
        """Returns the share of the step during which each of S stages computes (collectives included), shape (S,)."""
        spans = (self.forward_s, self.backward_s, self.update_s[:, None])
        seconds = np.sum([np.nansum(span[..., 1] - span[..., 0], axis=1) for span in spans], axis=0)
        return np.asarray(seconds / self.step_s if self.step_s > 0 else np.ones(self.num_stages))

    @functools.cached_property
    def bubble_shares(self) -> FloatArray:
        """Returns the share of the step during which each of S stages waits (its bubble), shape (S,); in transfers that
        hold it up a stage is neither busy nor waiting.
        """
        seconds = np.array([float((gaps[:, 1] - gaps[:, 0]).sum()) for gaps in self._idle()])
        return np.asarray(seconds / self.step_s if self.step_s > 0 else seconds)

    @functools.cached_property
    def peak_in_flight(self) -> IntArray:
        """Returns the most micro-batches that each of S stages has in flight at a time, between forward and backward,
        shape (S,); 0 in inference.
        """
        if self.schedule == "inference":
            return np.zeros(self.num_stages, dtype=np.int64)
        return np.array([int(self._in_flight(i)[1].max()) for i in range(self.num_stages)])

    def _in_flight(self, stage: int) -> tuple[FloatArray, IntArray]:
        """Returns times, and how many micro-batches are in flight from each on.

        What ends at a time is gone before what starts then comes.
        """
        starts, ends = self.forward_s[stage, :, 0], self.backward_s[stage, :, 1]
        if self.schedule == "inference":
            return np.zeros(1), np.zeros(1, dtype=np.int64)
        times = np.concatenate([ends, starts])
        change = np.concatenate([np.full(len(ends), -1), np.full(len(starts), 1)])
        # Of a computation of 0 s, the end doesn't come before the start: the order is then that of the tasks.
        order = np.lexsort((np.concatenate([self._rank(stage, 1), self._rank(stage, 0)]), times))
        return times[order], np.cumsum(change[order])

    def _rank(self, stage: int, backward: int) -> IntArray:
        return np.asarray(ticks(self.schedule, self.num_stages, self.num_micro_batches)[backward])[stage]

    def memory_over_time(self, stage: int) -> tuple[FloatArray, FloatArray]:
        """Returns the memory in use on each device of a stage over the step: (times_s, bytes); bytes[n] hold from
        times_s[n] on.

        They are the sum of what is resident, the activations of the micro-batches in flight, and, while the stage
        computes, its temporaries.
        """
        chosen = self.stages[stage]
        times, counts = self._in_flight(stage)
        computing = np.concatenate([self.forward_s[stage], self.backward_s[stage]])
        computing = computing[computing[:, 1] > computing[:, 0]]
        edges = np.unique(np.concatenate([[0.0], times, computing.ravel(), [self.step_s]]))
        kept = np.concatenate([[0], counts])[np.searchsorted(times, edges, side="right")]
        started = np.searchsorted(np.sort(computing[:, 0]), edges, side="right")
        ended = np.searchsorted(np.sort(computing[:, 1]), edges, side="right")
        held = chosen.resident_bytes + kept * chosen.activation_bytes + (started > ended) * chosen.temporary_bytes
        return edges, held


def _rows(
    stage: IntArray, kind: int, batch: IntArray | int, receiver: IntArray | int, start: FloatArray, end: FloatArray
) -> FloatArray:
    """Columns of events as an array of shape (6, number); NaN where there is no event."""
    whole = [np.broadcast_to(np.asarray(x, dtype=np.float64), stage.shape) for x in (stage, kind, batch, receiver)]
    return np.stack([*whole, start, end])
