"""The outcome of a simulation: who did what when, and what lay in memory."""

from __future__ import annotations

import dataclasses
import functools
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.schedules import Schedule
from alpa_dejavu.simulation._events import (
    BACKWARD,
    BUBBLE,
    COLLECTIVE,
    FORWARD,
    KINDS,
    SEND,
    UPDATE,
    Event,
    Track,
    rows_of,
)  # fmt: skip
from alpa_dejavu.simulation._stage_times import StageTimes

__all__ = ["Timeline"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Timeline:
    """The simulated timeline of one step of a pipeline: when each stage computes, sends and updates.

    Arrays of passes and transfers have a start and an end, in seconds, for each of S stages and B micro-batches: shape
    (S, B, 2). A transfer is in the row of its sender; start and end are NaN where there is none.

    Attributes:
        stages: the times of the S stages that were simulated.
        schedule: the pipeline schedule that was simulated, with S stages, B micro-batches and D devices.
        blocking: whether a transfer holds up both of its stages until it is done.
        step_s: the seconds of the step: when the last stage is done.
        forward_s, backward_s, forward_send_s, backward_send_s: such arrays, of the passes and of the transfers to the
            next and to the previous stage; those of backward are NaN in inference. Where a backward pass is split,
            `backward_s` has its part by inputs.
        update_s: shape (S, 1, 2), or (S, B, 2) where each micro-batch updates the weights: start and end of updates.
        by_weight_s: such an array, of the backward passes by weights; NaN where they aren't split. None: no one is.
    """

    stages: tuple[StageTimes, ...]
    schedule: Schedule
    blocking: bool
    step_s: float
    forward_s: FloatArray
    backward_s: FloatArray
    forward_send_s: FloatArray
    backward_send_s: FloatArray
    update_s: FloatArray
    by_weight_s: FloatArray | None = None

    @property
    def num_stages(self) -> int:
        """Returns the number of stages, S."""
        return len(self.stages)

    @property
    def num_micro_batches(self) -> int:
        """Returns the number of micro-batches, B."""
        return self.schedule.num_micro_batches

    @functools.cached_property
    def weight_s(self) -> FloatArray:
        """Returns start and end of each backward pass by weights, shape (S, B, 2); NaN where it isn't split off."""
        return np.full_like(self.forward_s, np.nan) if self.by_weight_s is None else self.by_weight_s

    @property
    def computing_s(self) -> tuple[float, ...]:
        """Returns for each of S stages the seconds of one micro-batch's passes together, collectives included, as they
        go in this step: where devices share a CPU, they take longer beside others than alone.

        The last gradients aren't counted where there are others, as they are synchronised in their pass.
        """
        passes = (self.forward_s, self.backward_s, self.weight_s)
        seconds = np.sum([np.nan_to_num(span[..., 1] - span[..., 0]) for span in passes], axis=0)
        if not self.schedule.trains or self.num_micro_batches == 1:
            return tuple(seconds.mean(axis=1).tolist())
        last = np.array(self.schedule.last_gradients)[:, None]
        often = np.arange(self.num_micro_batches)[None] != last
        return tuple((seconds.sum(axis=1, where=often) / often.sum(axis=1)).tolist())

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """Returns all events of the step, bubbles included, ordered by stage and start."""
        track = self.track
        columns = (track.stage, track.kind, track.micro_batch, track.receiver, track.start_s, track.end_s)
        return tuple(
            Event(stage, KINDS[kind], batch, start, end, receiver if receiver >= 0 else None)
            for stage, kind, batch, receiver, start, end in zip(*(c.tolist() for c in columns), strict=True)
        )

    @functools.cached_property
    def track(self) -> Track:
        """Returns all events of the step, bubbles included, as columns. All collectives of a pass are put together at
        its end. A bubble is in the row of its device's first stage.
        """
        num_stages, size = self.num_stages, self.num_micro_batches
        stage = np.repeat(np.arange(num_stages), size)
        batch = np.tile(np.arange(size), num_stages)
        rows = []
        passes = ((self.forward_s, FORWARD, "forward"), (self.backward_s, BACKWARD, "backward"))
        for times, kind, name in (*passes, (self.weight_s, BACKWARD, "weight")):
            split = times[..., 1] - (times[..., 1] - times[..., 0]) * self.collective_shares(name)
            for part, span in ((kind, (times[..., 0], split)), (COLLECTIVE, (split, times[..., 1]))):
                rows.append(rows_of(stage, part, batch, -1, *(x.ravel() for x in span)))
        rows.append(rows_of(stage, SEND, batch, stage + 1, *self.forward_send_s.reshape(-1, 2).T))
        rows.append(rows_of(stage, SEND, batch, stage - 1, *self.backward_send_s.reshape(-1, 2).T))
        updates = self.update_s.shape[1]
        once = np.repeat(np.arange(num_stages), updates)
        which = np.tile(np.arange(updates), num_stages) if updates > 1 else -1
        rows.append(rows_of(once, UPDATE, which, -1, *self.update_s.reshape(-1, 2).T))
        for stages, idle in zip(self.schedule.stages_on, self._idle(), strict=True):
            rows.append(rows_of(np.full(len(idle), stages[0]), BUBBLE, -1, -1, *idle.T))
        table = np.concatenate(rows, axis=1)
        table = table[:, table[5] > table[4]]
        table = table[:, np.lexsort((table[5], table[4], table[0]))]
        whole = [column.astype(np.int64) for column in table[:4]]
        return Track(whole[0], whole[1], whole[2], whole[3], start_s=table[4], end_s=table[5])

    def collective_shares(self, kind: str) -> FloatArray:
        """Returns the share of the time of each pass ("forward", "backward" or "weight", as `kind` says) that is spent
        in collectives; shape (S, B). Gradients are synchronised in the last pass that computes them, which is a
        backward pass "by weight" where that is split off.
        """
        share = np.zeros((self.num_stages, self.num_micro_batches))
        split = ~np.isnan(self.weight_s[..., 0])
        for i, stage in enumerate(self.stages):
            if kind == "forward":
                share[i] = _share(stage.forward_collective_s, stage.forward_s)
                continue
            whole = np.where(split[i], stage.backward_s - stage.backward_weight_s, stage.backward_s)
            whole, part = (
                (whole, np.full_like(whole, stage.backward_collective_s))
                if kind == "backward"
                else (np.full_like(whole, stage.backward_weight_s), np.zeros_like(whole))
            )
            if self.schedule.trains:
                last = self.schedule.last_gradients[i]
                joined = stage.synchronisation_s * (split[i, last] == (kind == "weight"))
                whole[last], part[last] = whole[last] + joined, part[last] + joined
            share[i] = [_share(*pair) for pair in zip(part.tolist(), whole.tolist(), strict=True)]
        return share

    @functools.cached_property
    def _occupied(self) -> tuple[FloatArray, ...]:
        """When each device computes, or is held up by a transfer: shape (number, 2), by start, disjoint."""
        spans = []
        for stages in self.schedule.stages_on:
            parts = [
                span[i] for i in stages for span in (self.forward_s, self.backward_s, self.weight_s, self.update_s)
            ]
            for i in stages if self.blocking else ():
                parts += [self.forward_send_s[i], self.backward_send_s[i]]
                parts += [self.forward_send_s[i - 1]] if i else []
                parts += [self.backward_send_s[i + 1]] if i + 1 < self.num_stages else []
            busy = np.concatenate(parts)
            busy = busy[busy[:, 1] > busy[:, 0]]
            spans.append(busy[np.argsort(busy[:, 0], kind="stable")])
        return tuple(spans)

    def _idle(self) -> list[FloatArray]:
        """For each device the gaps between what occupies it, shape (number, 2)."""
        gaps = []
        for busy in self._occupied:
            edges = np.concatenate([[0.0], busy.ravel(), [self.step_s]]).reshape(-1, 2)
            gaps.append(edges[edges[:, 1] - edges[:, 0] > 1e-12 * self.step_s])
        return gaps

    @functools.cached_property
    def busy_shares(self) -> FloatArray:
        """Returns the share of the step during which each of D devices computes (collectives included), shape (D,)."""
        spans = (self.forward_s, self.backward_s, self.weight_s, self.update_s)
        of_stages = np.sum([np.nansum(span[..., 1] - span[..., 0], axis=1) for span in spans], axis=0)
        seconds = np.array([of_stages[list(stages)].sum() for stages in self.schedule.stages_on])
        return np.asarray(seconds / self.step_s if self.step_s > 0 else np.ones(len(seconds)))

    @functools.cached_property
    def bubble_shares(self) -> FloatArray:
        """Returns the share of the step during which each of D devices waits (its bubble), shape (D,); in transfers
        that hold it up a device is neither busy nor waiting.
        """
        seconds = np.array([float((gaps[:, 1] - gaps[:, 0]).sum()) for gaps in self._idle()])
        return np.asarray(seconds / self.step_s if self.step_s > 0 else seconds)

    @property
    def peak_in_flight(self) -> IntArray:
        """Returns the most micro-batches that each stage has in flight at a time, shape (S,); 0 in inference."""
        return self.schedule.peak_in_flight

    def memory_over_time(self, device: int) -> tuple[FloatArray, FloatArray]:
        """Returns the memory in use on each device of a submesh over the step: (times_s, bytes); bytes[n] hold from
        times_s[n] on.

        They are the sum of what is resident, the activations of the micro-batches in flight, and, while one of its
        stages computes, that one's temporaries. `device` is the submesh's index in the schedule.
        """
        times, in_flight, computing = self._in_use(device)
        return times, self._used(device, in_flight, computing)

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """Returns the most memory in use at a time on each device of each of D submeshes, in bytes, shape (D,)."""
        return tuple(float(self.memory_over_time(n)[1].max()) for n in range(self.schedule.num_devices))

    def at_peak(self, device: int) -> dict[int, tuple[int, bool]]:
        """Returns for each stage on a submesh, when the memory in use there is at its peak, how many of its
        micro-batches are in flight, and whether it computes.
        """
        _, in_flight, computing = self._in_use(device)
        peak = int(self._used(device, in_flight, computing).argmax())
        stages = self.schedule.stages_on[device]
        return {i: (int(in_flight[n, peak]), bool(computing[n, peak])) for n, i in enumerate(stages)}

    def _in_use(self, device: int) -> tuple[FloatArray, IntArray, NDArray[np.bool_]]:
        """Returns the T times at which the use of memory changes on a submesh; how many micro-batches each of its S
        stages has in flight from then on, shape (S, T); and whether the stage computes, shape (S, T).
        """
        spans = []
        for i in self.schedule.stages_on[device]:
            passes = np.concatenate([span[i] for span in (self.forward_s, self.backward_s, self.weight_s)])
            spans.append((self._kept(i), passes[passes[:, 1] > passes[:, 0]]))
        times = np.unique(np.concatenate([[0.0, self.step_s], *(span.ravel() for pair in spans for span in pair)]))
        in_flight = np.stack([_under_way(kept, times) for kept, _ in spans])
        return times, in_flight, np.stack([_under_way(passes, times) > 0 for _, passes in spans])

    def _used(self, device: int, in_flight: IntArray, computing: NDArray[np.bool_]) -> FloatArray:
        total = np.zeros(in_flight.shape[1])
        for n, i in enumerate(self.schedule.stages_on[device]):
            chosen = self.stages[i]
            total += chosen.resident_bytes + computing[n] * chosen.temporary_bytes
            total += in_flight[n] * chosen.activation_bytes
        return total

    def _kept(self, stage: int) -> FloatArray:
        """From when to when each micro-batch's activations are kept, shape (B, 2); (0, 2) in inference."""
        if not self.schedule.trains:
            return np.zeros((0, 2))
        whole, split = self.backward_s[stage, :, 1], self.weight_s[stage, :, 1]
        return np.stack([self.forward_s[stage, :, 0], np.where(np.isnan(split), whole, split)], axis=1)


def _under_way(spans: FloatArray, times: FloatArray) -> IntArray:
    """How many spans, of shape (number, 2), have begun and not yet ended right after each time."""
    begun, ended = (np.searchsorted(np.sort(spans[:, n]), times, side="right") for n in (0, 1))
    return begun - ended


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
