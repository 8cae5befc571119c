"""A step as a trace has it: for each rank the seconds of each kind of work, and which of them nothing hides.

An instant belongs to the first kind of work, in the order of `work_kinds.KINDS`, that goes on in it anywhere on the
rank; so an exchange is exposed where nothing is computed beside it, and the kinds add up to the step. On a processor
operators are nested: an instant is the outermost operator's that tells its kind, as all that an optimizer calls is its.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.calibration.traces.trace_file import S_IN_US, StepTrace, TraceEvent
from alpa_dejavu.calibration.traces.work_kinds import KINDS, WorkKind, collective_of, kind_of

_ON_DEVICES = ("kernel", "gpu_memcpy", "gpu_memset")
_BYTES = {"bfloat": 2, "half": 2, "float": 4, "double": 8, "long": 8, "int": 4, "char": 1, "byte": 1, "bool": 1, "8": 1}
_WITHOUT_OWN = ("dispatch", "untold")
"""Kinds whose nested operators tell their own."""
_Segments: TypeAlias = dict[str, list[tuple[float, float]]]


@final
@dataclasses.dataclass(frozen=True)
class KindTime:
    """The seconds of a kind of work in a step: those for which it goes on, and those that no earlier kind hides."""

    busy_s: float
    exposed_s: float
    events: int


@final
@dataclasses.dataclass(frozen=True)
class TracedExchange:
    """A collective or a transfer of a rank, in the order of the trace."""

    kind: str
    num_bytes: float
    group_size: int
    seconds: float


@final
@dataclasses.dataclass(frozen=True)
class TracedOperator:
    """Operators of one kind, name, shapes and type in a step: how often they ran, for how many seconds in all.

    Attributes:
        flop: of one of them; 0 where its shapes tell none.
    """

    kind: WorkKind
    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    count: int
    seconds: float
    flop: float


@final
@dataclasses.dataclass(frozen=True)
class MeasuredStep:
    """A step of one rank.

    Attributes:
        number: the step's, as the profiler counts.
        times: by kind of work; those of "exchanges" are told apart as "exchanges: all_reduce".
        longest_gap_s: the longest time for which nothing that the trace has went on.
    """

    rank: int
    number: int
    seconds: float
    times: Mapping[str, KindTime]
    exchanges: tuple[TracedExchange, ...]
    operators: tuple[TracedOperator, ...]
    longest_gap_s: float

    @property
    def gaps_s(self) -> float:
        """Returns the seconds in which nothing that the trace has went on: the host prepares, or sleeps."""
        return self.seconds - sum(time.exposed_s for time in self.times.values())

    def exposed_s(self, kind: str) -> float:
        """Returns the exposed seconds of a kind of work, or of all exchanges by "exchanges"."""
        return sum(time.exposed_s for name, time in self.times.items() if name.split(":")[0] == kind)

    @property
    def computing_s(self) -> float:
        """Returns the seconds in which the rank computes: all but exchanges, waiting, data and gaps."""
        return sum(self.exposed_s(kind) for kind in KINDS[: KINDS.index("exchanges")])


def measured_steps(trace: StepTrace) -> tuple[list[MeasuredStep], list[str]]:
    """Returns the steps of a trace, of each of its devices where one process has several, and what it lacks."""
    notes = list(trace.notes)
    spans = _spans(trace)
    if not spans:
        spans = [(0, trace.events[0].ts, max(event.ts + event.dur for event in trace.events))]
        notes.append(
            f"{trace.path.name} marks no steps, so all of it is taken for one; mark them by `profiler.step()` in "
            "torch, or by `jax.profiler.StepTraceAnnotation`"
        )
    devices = _devices(trace)
    if not devices:
        notes.append(f"{trace.path.name} has no operators, only whole programs; record it with jax 0.5 or newer")
    if trace.profiler == "torch" and not any(event.args and event.args.input_dims for event in trace.events):
        notes.append(f"{trace.path.name} has no shapes, so no operations are counted; record with record_shapes=True")
    several, launches = len(devices) > 1, _launches(trace)
    steps = []
    for device, events in (devices or {0: []}).items():
        starts = np.array([event.ts for event in events])
        ends = starts + np.array([event.dur for event in events])
        for number, start, end in spans:
            within = [events[n] for n in np.flatnonzero((starts < end) & (ends > start)).tolist()]
            rank = device if several else trace.rank
            steps.append(_step(within, launches, trace.world_size, rank, number, start, end))
    return steps, notes


def median_step(steps: Sequence[MeasuredStep]) -> tuple[MeasuredStep, ...]:
    """Returns the step of each rank, of the number whose slowest rank is the median of all that every rank has.

    Raises ValueError if the ranks have no step in common.
    """
    ranks = sorted({step.rank for step in steps})
    by_number = {number: [step for step in steps if step.number == number] for number in {s.number for s in steps}}
    common = {number: own for number, own in by_number.items() if {step.rank for step in own} == set(ranks)}
    if not common:
        raise ValueError(f"the ranks {', '.join(map(str, ranks))} have no step in common; record the same steps of all")
    slowest = {number: max(step.seconds for step in own) for number, own in common.items()}
    middle = sorted(slowest, key=lambda number: slowest[number])[(len(slowest) - 1) // 2]
    return tuple(sorted({step.rank: step for step in common[middle]}.values(), key=lambda step: step.rank))


def waiting_s(ranks: Sequence[MeasuredStep]) -> list[float]:
    """Returns for each rank the seconds within exchanges in which it waits for ranks that come later.

    An exchange ends on all ranks at once, so the rank that comes last has it shortest, and waits for none. Clocks of
    ranks needn't agree for that.
    """
    alike = len(ranks) > 1 and len({tuple((e.kind, e.num_bytes) for e in step.exchanges) for step in ranks}) == 1
    if not alike:
        return [0.0] * len(ranks)
    shortest = [min(step.exchanges[n].seconds for step in ranks) for n in range(len(ranks[0].exchanges))]
    return [
        math.fsum(own.seconds - least for own, least in zip(step.exchanges, shortest, strict=True)) for step in ranks
    ]


def _spans(trace: StepTrace) -> list[tuple[int, float, float]]:
    """Returns each marked step with its start and its end in microseconds."""
    spans = []
    for event in trace.events:
        if event.name.startswith("ProfilerStep#") and event.cat == "user_annotation":
            spans.append((int(event.name.partition("#")[2]), event.ts, event.ts + event.dur))
        elif trace.profiler == "jax" and event.args is not None and event.args.step_num is not None:
            spans.append((int(event.args.step_num), event.ts, event.ts + event.dur))
    return spans


def _devices(trace: StepTrace) -> dict[int, list[TraceEvent]]:
    """Returns the events of work by device: those on accelerators if there are some, else those on processors."""
    if trace.profiler == "torch":
        on_devices = [event for event in trace.events if event.cat in _ON_DEVICES or event.cat == "gpu_user_annotation"]
        if any(event.cat in _ON_DEVICES for event in on_devices):
            return {0: on_devices}
        return {0: [event for event in trace.events if event.cat in ("cpu_op", "user_annotation")]}
    devices = collections.defaultdict[int, list[TraceEvent]](list)
    pids = (pid for (pid, tid), name in trace.names.items() if tid is None and "/device:" in name)
    accelerators = {pid: number for number, pid in enumerate(sorted(pids, key=str))}
    for event in trace.events:
        if event.pid in accelerators:
            thread = trace.names.get(event.lane, "")
            if "Ops" in thread or "Stream" in thread:
                devices[accelerators[event.pid]].append(event)
        elif not accelerators and event.args is not None and event.args.hlo_op is not None:
            devices[int(event.args.device_ordinal or 0)].append(event)
    return dict(devices)


def _launches(trace: StepTrace) -> dict[int, TraceEvent]:
    """Returns the operators that launch kernels on accelerators, by the number that both have."""
    return {
        event.args.external_id: event
        for event in trace.events
        if event.cat == "cpu_op" and event.args is not None and event.args.external_id is not None
    }


def _step(
    events: Sequence[TraceEvent], launches: Mapping[int, TraceEvent], world_size: int, rank: int, number: int,
    start: float, end: float,
) -> MeasuredStep:  # fmt: skip
    lanes = collections.defaultdict[object, list[TraceEvent]](list)
    for event in events:
        lanes[event.lane].append(event)
    segments: _Segments = collections.defaultdict(list)
    outermost: list[tuple[WorkKind, TraceEvent]] = []
    for lane in lanes.values():
        outermost.extend(_leaves(lane, start, end, segments))
    counts = collections.Counter(_key(kind, event) for kind, event in outermost)
    times, gap = _painted(segments, counts, start, end)
    exchanges = tuple(
        TracedExchange(collective_of(event.name), _num_bytes(event), _group_size(event, world_size), event.seconds)
        for kind, event in sorted(outermost, key=lambda item: item[1].ts)
        if kind == "exchanges"
    )
    return MeasuredStep(
        rank, number, (end - start) * S_IN_US, times, exchanges, tuple(_operators(launches, outermost)), gap * S_IN_US
    )


def _key(kind: WorkKind, event: TraceEvent) -> str:
    return f"{kind}: {collective_of(event.name) or 'other'}" if kind == "exchanges" else kind


def _leaves(
    lane: Sequence[TraceEvent], start: float, end: float, segments: _Segments
) -> Iterator[tuple[WorkKind, TraceEvent]]:
    """Adds the segments of a lane's innermost events to those of their kinds; yields the outermost of each kind."""
    stack: list[tuple[float, str | None, WorkKind | None]] = []
    time = start

    def pass_to(moment: float) -> None:
        nonlocal time
        key = stack[-1][1]
        moment = min(moment, end)
        if key is not None and moment > time:
            segments[key].append((time, moment))
        time = max(time, moment)

    for event in sorted(lane, key=lambda event: (event.ts, -event.dur)):
        while stack and stack[-1][0] <= event.ts:
            pass_to(stack[-1][0])
            stack.pop()
        if stack:
            pass_to(event.ts)
        time = max(start, event.ts)
        until = min(event.ts + event.dur, stack[-1][0] if stack else math.inf)
        of_parent = stack[-1][2] if stack else None
        if of_parent is not None and of_parent not in _WITHOUT_OWN:
            stack.append((until, stack[-1][1] or of_parent, of_parent))
            continue
        kind = kind_of(event.name)
        # An annotation is no work itself; it may only say whose the work within it is.
        if event.cat.endswith("user_annotation") and kind not in ("exchanges", "data"):
            stack.append((until, None, kind if kind == "optimizer" else None))
            continue
        if event.ts >= start:
            yield kind, event
        stack.append((until, _key(kind, event), kind))
    while stack:
        pass_to(stack[-1][0])
        stack.pop()


def _painted(
    segments: _Segments, counts: Mapping[str, int], start: float, end: float
) -> tuple[dict[str, KindTime], float]:
    """Returns the times of each kind, the earlier kinds painted first, and the longest gap that is left, in us."""
    times: dict[str, KindTime] = {}
    painted: NDArray[np.float64] = np.empty((0, 2))
    length = 0.0
    for key in sorted(segments, key=lambda key: (KINDS.index(key.split(":")[0]), key)):
        own = _merged(np.array(segments[key]))
        painted = _merged(np.concatenate([painted, own]))
        whole = float((painted[:, 1] - painted[:, 0]).sum())
        busy = float((own[:, 1] - own[:, 0]).sum())
        times[key] = KindTime(busy * S_IN_US, (whole - length) * S_IN_US, counts.get(key, 0))
        length = whole
    edges = np.concatenate([[start], painted.ravel(), [end]]).reshape(-1, 2)
    return times, float((edges[:, 1] - edges[:, 0]).max())


def _merged(spans: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the union of spans, shape (spans, 2), as spans that are apart, in order."""
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    ends = np.maximum.accumulate(spans[:, 1])
    first = np.concatenate([[True], spans[1:, 0] > ends[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([spans[first, 0], ends[last]], axis=1)


def _operators(
    launches: Mapping[int, TraceEvent], outermost: Iterable[tuple[WorkKind, TraceEvent]]
) -> Iterator[TracedOperator]:
    """Yields operators that compute, by name, shapes and type; on accelerators their shapes are their launches'."""
    totals = collections.defaultdict[tuple[WorkKind, str, tuple[tuple[int, ...], ...], str], list[float]](list)
    launched: dict[int, list[float]] = {}
    for kind, event in outermost:
        if kind in ("exchanges", "waiting", "data", "dispatch"):
            continue
        number = event.args.external_id if event.cat in _ON_DEVICES and event.args is not None else None
        if number in launched:  # a further kernel of the same operator
            launched[number][-1] += event.seconds
            continue
        source = event if number is None else launches.get(number, event)
        own = totals[kind, source.name, tuple(source.shapes()), next(filter(None, source.dtypes()), "")]
        own.append(event.seconds)
        if number is not None:
            launched[number] = own
    for (kind, name, shapes, dtype), seconds in totals.items():
        yield TracedOperator(kind, name, shapes, dtype, len(seconds), math.fsum(seconds), flop_of(name, shapes))


def flop_of(name: str, shapes: Sequence[tuple[int, ...]]) -> float:
    """Returns the operations of a matrix product by PyTorch's name and its operands' shapes; 0 where they aren't told.

    >>> flop_of("aten::addmm", [(8,), (4, 16), (16, 8)])
    1024.0
    """
    operator = name.removeprefix("aten::")
    if operator in ("addmm", "baddbmm", "addbmm"):
        shapes = shapes[1:]
    if operator not in ("mm", "bmm", "addmm", "baddbmm", "addbmm", "_scaled_mm", "_int_mm", "matmul"):
        return 0.0
    if len(shapes) < 2 or len(shapes[0]) < 2 or len(shapes[1]) < 2:
        return 0.0
    return 2.0 * math.prod(shapes[0]) * shapes[1][-1]


def _num_bytes(event: TraceEvent) -> float:
    if event.args is None:
        return 0.0
    if event.args.elements_in is not None:
        elements = max(event.args.elements_in, event.args.elements_out or 0)
        return float(elements * _type_bytes(event.args.dtype or ""))
    shapes, dtypes = event.shapes(), event.dtypes()
    return float(math.prod(shapes[0]) * _type_bytes(dtypes[0] if dtypes else "")) if shapes else 0.0


def _type_bytes(dtype: str) -> int:
    return next((size for name, size in _BYTES.items() if name in dtype.lower()), 4)


def _group_size(event: TraceEvent, world_size: int) -> int:
    size = event.args.group_size if event.args is not None else None
    return size if size is not None else world_size
