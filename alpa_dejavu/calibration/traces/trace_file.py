"""Reads profilers' traces in the Trace Event Format, as PyTorch's and jax's profilers write them: data, never code.

A trace is decoded straight into the few fields that are read, so one of 500 MB needs little more than its own size.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import warnings
import zlib
from collections.abc import Sequence
from typing import Any, Literal, final

import msgspec

from alpa_dejavu._util import units

MOST_BYTES = 2 * 2**30
"""So large may a trace be at the most, unpacked."""
S_IN_US, _NS_IN_US = 1e-6, 1e3
_TRIES = 64
"""So many ends of events are tried, the last first, where a trace is cut off."""
_GZIP = b"\x1f\x8b"


class EventDetails(msgspec.Struct, frozen=True):
    """The arguments of an event that are read. Shapes stay as the JSON text that they are, until somebody asks."""

    external_id: int | None = msgspec.field(name="External id", default=None)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    elements_in: int | None = msgspec.field(name="In msg nelems", default=None)
    elements_out: int | None = msgspec.field(name="Out msg nelems", default=None)
    group_size: int | None = msgspec.field(name="Group size", default=None)
    dtype: str | None = None
    hlo_op: str | None = None
    device_ordinal: int | str | None = None
    step_num: int | str | None = None
    name: str | None = None


class TraceEvent(msgspec.Struct, frozen=True):
    """An event of a trace: its name, its category, where it ran and when; times are in microseconds, as in the file."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: EventDetails | None = None

    @property
    def seconds(self) -> float:
        """Returns how long it lasts."""
        return self.dur * S_IN_US

    @property
    def lane(self) -> tuple[int | str, int | str]:
        """Returns the process and the thread, or the device and the stream, on which it ran."""
        return self.pid, self.tid

    def shapes(self) -> list[tuple[int, ...]]:
        """Returns the shapes of its operands, as far as they were recorded; of lists of tensors the first ones'."""
        if self.args is None or not self.args.input_dims:
            return []
        return [_shape(dims) for dims in msgspec.json.decode(self.args.input_dims)]

    def dtypes(self) -> list[str]:
        """Returns the types of its operands by the names that the framework has for them, as far as recorded."""
        if self.args is None or not self.args.input_type:
            return []
        return [kind if isinstance(kind, str) else "" for kind in msgspec.json.decode(self.args.input_type)]


def _shape(dims: Any) -> tuple[int, ...]:
    while isinstance(dims, list) and dims and isinstance(dims[0], list):
        dims = dims[0]
    return tuple(size for size in dims if isinstance(size, int)) if isinstance(dims, list) else ()


class _Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None


class _TraceFile(msgspec.Struct):
    events: list[TraceEvent] = msgspec.field(name="traceEvents")
    version: int | None = msgspec.field(name="schemaVersion", default=None)
    distributed: _Distributed | None = msgspec.field(name="distributedInfo", default=None)


@final
@dataclasses.dataclass(frozen=True)
class StepTrace:
    """The events of one rank, or of one process with several devices.

    Attributes:
        profiler: which profiler wrote it: PyTorch's ("torch") or jax's ("jax").
        rank: the rank of its process; 0 where the file doesn't say it.
        events: those that last, in the order of their start.
        names: what processes and threads are called, by their numbers in the file.
        notes: sentences that say what is missing.
    """

    path: pathlib.Path
    profiler: Literal["torch", "jax"]
    rank: int
    world_size: int
    events: Sequence[TraceEvent]
    names: dict[tuple[int | str, int | str | None], str]
    notes: tuple[str, ...] = ()


def read_trace(path: pathlib.Path) -> StepTrace:
    """Reads a trace: PyTorch's Chrome trace, gzipped or not, or what `jax.profiler` writes: `*.trace.json.gz`, or
    `*.xplane.pb` where the jax that is installed can read it.

    A trace that is cut off is read as far as it goes, and a note says so.

    Raises:
        ValueError: if it is no such trace, is larger than 2 GiB, or has no event that lasts.

    References:
        Duca and Sinclair, Trace Event Format, Google, 2016: complete ("X") and metadata ("M") events.
    """
    if path.name.endswith(".xplane.pb"):
        return _read_xplane(path)
    content, whole = _unpacked(path)
    notes = [] if whole else [f"{path.name} is cut off: its events are read as far as they go"]
    decoder = msgspec.json.Decoder(_TraceFile)
    try:
        file = decoder.decode(content)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path} is no trace of a profiler: {error}; give what PyTorch's or jax's wrote") from None
    except msgspec.DecodeError as error:
        file = _as_far_as_it_goes(content, decoder, path, error)
        notes = [f"{path.name} is cut off: its events are read as far as they go"]
    lasting = sorted((event for event in file.events if event.ph == "X" and event.dur >= 0), key=lambda event: event.ts)
    if not lasting:
        raise ValueError(f"{path} has no event that lasts; record at least one whole step")
    names = {
        (event.pid, event.tid if event.name == "thread_name" else None): event.args.name or ""
        for event in file.events
        if event.ph == "M" and event.name in ("process_name", "thread_name") and event.args is not None
    }
    if file.version not in (None, 1):
        notes.append(f"{path.name} is of version {file.version}, and 1 was tried: names may differ")
    distributed = file.distributed or _Distributed()
    rank = distributed.rank if distributed.rank is not None else _rank_in_name(path)
    is_torch = file.version is not None or any(event.cat in ("cpu_op", "kernel") for event in lasting)
    profiler: Literal["torch", "jax"] = "torch" if is_torch else "jax"
    return StepTrace(path, profiler, rank, distributed.world_size or 1, lasting, names, tuple(notes))


def _read_xplane(path: pathlib.Path) -> StepTrace:
    """Reads the protocol buffer of `jax.profiler` by the class that newer versions of jax have for it."""
    import jax.profiler

    reader = getattr(jax.profiler, "ProfileData", None)
    if reader is None:
        raise ValueError(
            f"{path} needs a newer jax than {jax.__version__}; give the *.trace.json.gz that lies beside it"
        )
    try:
        planes = list(reader.from_serialized_xspace(path.read_bytes()).planes)
    except Exception as error:  # the reader's own errors have no type in common
        raise ValueError(f"{path} is no trace of jax: {error}; record it again") from None
    # Types of the reader lack a module, of which Python warns; as an error the warning would end the process.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        events = [_xplane_event(plane.name, line.name, event)
                  for plane in planes for line in plane.lines for event in line.events]  # fmt: skip
        ends = [(plane.name, line.name) for plane in planes for line in plane.lines]
    names: dict[tuple[int | str, int | str | None], str] = {(plane, None): plane for plane, _ in ends}
    names |= {(plane, line): line for plane, line in ends}
    if not events:
        raise ValueError(f"{path} has no event that lasts; record at least one whole step")
    return StepTrace(path, "jax", _rank_in_name(path), 1, sorted(events, key=lambda event: event.ts), names)


def _xplane_event(plane: str, line: str, event: Any) -> TraceEvent:
    stats = {name: value for name, value in event.stats if isinstance(name, str)}
    step = stats.get("step_num")
    details = EventDetails(
        hlo_op=stats.get("hlo_op"), device_ordinal=stats.get("device_ordinal"),
        step_num=None if step is None else int(step),
    )  # fmt: skip
    return TraceEvent(
        "X", event.name, "", event.start_ns / _NS_IN_US, event.duration_ns / _NS_IN_US, plane, line, details
    )


def _rank_in_name(path: pathlib.Path) -> int:
    match = re.search(r"rank[-_]?(\d+)", path.name)
    return int(match[1]) if match else 0


def _unpacked(path: pathlib.Path) -> tuple[bytes, bool]:
    """Returns a file's bytes, unpacked if they are gzipped, and whether they are all there."""
    packed = path.read_bytes() if path.stat().st_size <= MOST_BYTES else b""
    content, whole = packed, True
    if packed.startswith(_GZIP):
        unpacking = zlib.decompressobj(wbits=31)
        try:
            content = unpacking.decompress(packed, MOST_BYTES + 1)
        except zlib.error as error:
            raise ValueError(f"{path} is no gzipped file: {error}; record the trace again") from None
        whole = unpacking.eof
    if not packed or len(content) > MOST_BYTES:
        raise ValueError(
            f"{path} is larger than {units.size(MOST_BYTES)} or empty; record one or two steps of one rank a file"
        )
    return content, whole


def _as_far_as_it_goes(
    content: bytes, decoder: msgspec.json.Decoder[_TraceFile], path: pathlib.Path, error: msgspec.DecodeError
) -> _TraceFile:
    """Decodes a trace that is cut off, up to the last event that is whole."""
    end = len(content)
    for _ in range(_TRIES if b'"traceEvents"' in content else 0):
        end = content.rfind(b"}", 0, end)
        if end < 0:
            break
        try:
            return decoder.decode(content[: end + 1] + b"]}")
        except msgspec.DecodeError:
            continue
    raise ValueError(f"{path} is no trace of a profiler: {error}; give what PyTorch's or jax's wrote") from None
