"""Measurements beside the calibration that is made of them: a line of JSON each, on disk before the next is made.

The first line says which cluster they are of. A crash can leave half a line at the end, which is dropped with a note;
whatever else is wrong is an error.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, final

from alpa_dejavu._util import units
from alpa_dejavu._util.json_text import strict_json
from alpa_dejavu._util.near_names import near
from alpa_dejavu.calibration.bench import (
    BETWEEN,
    HOST_MEMORY,
    WITHIN,
    CollectiveProbe,
    Flows,
    HostProbe,
    PipelineProbe,
    Probe,
    ProbePlace,
)

_log = logging.getLogger(__name__)
_VERSION = 2
_KINDS: Mapping[str, type[Probe]] = {
    "collectives": CollectiveProbe,
    "pipelines": PipelineProbe,
    "links": Flows,
    HOST_MEMORY: HostProbe,
}
_OF_BEFORE = ("programs", "stages")
"""Earlier releases measured these too, to fit the rates of devices; they are passed over."""


@final
@dataclasses.dataclass(frozen=True)
class Measurement:
    """The seconds, by name, that a probe (a collective, a pipeline or messages) took at a place of a cluster, or the
    bytes that it found there; if it failed, none and the reason.
    """

    place: ProbePlace
    probe: Probe
    seconds: Mapping[str, float]
    error: str = ""


@final
class Measurements:
    """The measurements that a calibration is made of, kept in a file with a line for each.

    `cluster` has the data that tell the cluster from others, by name; "devices" lists its kinds of devices. With
    `resume` the measurements in the file are kept; otherwise it is begun anew.

    Raises:
        ValueError: the file can't be written, or the one to go on with is of another cluster or broken; says which
            line.
    """

    def __init__(self, path: pathlib.Path, cluster: Mapping[str, Any], resume: bool) -> None:
        self.path = path
        self._rows: list[Measurement] = []
        devices = cluster["devices"]
        if resume and path.exists():
            self._rows = _read(path, cluster, devices)
        else:
            self._write(path, "w", {"version": _VERSION, "cluster": dict(cluster)})

    def add(self, measurement: Measurement) -> None:
        """Appends a measurement to the measurements and to their file; it is on disk when this returns."""
        self._rows.append(measurement)
        place, outcome = measurement.place, {"seconds": dict(measurement.seconds), "error": measurement.error}
        del outcome["seconds" if measurement.error else "error"]
        probe = dataclasses.asdict(measurement.probe)
        self._write(self.path, "a", {"what": place.what, "where": place.where, "probe": probe, **outcome})

    def at(self, place: ProbePlace) -> dict[Probe, Mapping[str, float]]:
        """Returns the seconds that were measured at a place, such as the links between hosts, by probe and by the names
        that the probe gives its seconds; of several measurements of a probe the last one counts.
        """
        return {row.probe: row.seconds for row in self._rows if row.place == place and not row.error}

    def failed_at(self, place: ProbePlace) -> dict[Probe, str]:
        """Returns the probes that have failed at a place since the file was opened, with the reasons."""
        return {row.probe: row.error for row in self._rows if row.place == place and row.error}

    def __len__(self) -> int:
        return sum(not row.error for row in self._rows)

    @staticmethod
    def _write(path: pathlib.Path, mode: str, line: Mapping[str, Any]) -> None:
        try:
            with path.open(mode, encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"{path} can't be written: {why}; make room, or give another path") from None


def kept_measurements(path: pathlib.Path) -> list[Measurement]:
    """Reads the file of measurements that a calibration was made of, and returns those that didn't fail, of whichever
    cluster; half a line at its end is passed over, and ValueError says which line is wrong.
    """
    lines = _whole_lines(path)[0]
    header = _object(path, 1, lines[0]) if lines else {}
    cluster = header.get("cluster")
    _check_header(path, lines[0] if lines else "{}", cluster if isinstance(cluster, dict) else {})
    devices = list(cluster.get("devices", ())) if isinstance(cluster, dict) else []
    return [row for _, row in _numbered(path, lines, devices) if not row.error]


def _read(path: pathlib.Path, cluster: Mapping[str, Any], devices: list[str]) -> list[Measurement]:
    """Reads the measurements and takes half a line at the end away. Failed ones are left out: they are tried again."""
    lines, half = _whole_lines(path)
    if half:
        _log.warning("%s: the last line was written by half (%s) and is dropped", path, units.exact_bytes(half))
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - half)
    if not lines:
        raise ValueError(f"{path} has no first line that says which cluster it is of; begin anew without --resume")
    _check_header(path, lines[0], cluster)
    rows = _numbered(path, lines, devices)
    _warn_of_repeats(path, rows)
    return [row for _, row in rows if not row.error]


def _numbered(path: pathlib.Path, lines: Sequence[str], devices: list[str]) -> list[tuple[int, Measurement]]:
    """Returns the measurements in a file's lines behind the first, each with the number of its line."""
    read = ((n, _measurement(path, n, line, devices)) for n, line in enumerate(lines[1:], 2))
    return [(n, row) for n, row in read if row is not None]


def _whole_lines(path: pathlib.Path) -> tuple[list[str], int]:
    """Returns the lines, and how many bytes there are of one that was written by half."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror or error}; begin anew without --resume") from None
    end = content.rfind(b"\n") + 1
    return content[:end].decode("utf-8", errors="replace").splitlines(), len(content) - end


def _warn_of_repeats(path: pathlib.Path, rows: Sequence[tuple[int, Measurement]]) -> None:
    """Warns of probes that are there twice: what was measured is never measured again, so they were copied."""
    seen: dict[tuple[ProbePlace, Probe], int] = {}
    for number, row in rows:
        earlier = None if row.error else seen.setdefault((row.place, row.probe), number)
        if earlier not in (None, number):
            _log.warning(
                "%s, line %d: measures the same as line %d (%s: %s); the last one counts: take the wrong one out",
                path, number, earlier, row.place, row.probe,
            )  # fmt: skip


def _check_header(path: pathlib.Path, line: str, cluster: Mapping[str, Any]) -> None:
    header = _object(path, 1, line)
    if header.get("version") != _VERSION:
        raise ValueError(
            f"{path}, line 1: is of version {header.get('version')!r}, but this program reads {_VERSION}; begin anew "
            "without --resume"
        )
    of_file = header.get("cluster")
    if not isinstance(of_file, dict):
        raise ValueError(f"{path}, line 1: doesn't say which cluster it is of; begin anew without --resume")
    differences = [
        f"{name} is {of_file.get(name)!r} there and {cluster.get(name)!r} here"
        for name in sorted({*of_file, *cluster})
        if of_file.get(name) != cluster.get(name)
    ]
    if differences:
        raise ValueError(
            f"{path} is of another cluster: {'; '.join(differences)}; connect to that one, or begin anew without "
            "--resume"
        )


def _measurement(path: pathlib.Path, number: int, line: str, devices: list[str]) -> Measurement | None:
    row = _object(path, number, line)
    if row.get("what") in _OF_BEFORE:
        return None

    def wrong(fault: str) -> ValueError:
        return ValueError(f"{path}, line {number}: {fault}; take the line out, or begin anew without --resume")

    what, where, fields_read = row.get("what"), row.get("where"), row.get("probe")
    if (
        not isinstance(what, str)
        or what not in _KINDS
        or not isinstance(where, str)
        or not isinstance(fields_read, dict)
    ):
        raise wrong(f"what is {what!r}, which must be one of {', '.join(_KINDS)}, with 'where' and 'probe' beside it")
    places = devices if what == HOST_MEMORY else [WITHIN, BETWEEN]
    if where not in places:
        raise wrong(f"where is {where!r}{near(where, places)}, but the cluster has {', '.join(map(repr, places))}")
    try:
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields_read.items()
        }
        probe = _KINDS[what](**fields)
    except (TypeError, ValueError) as error:
        raise wrong(f"the probe is {fields_read!r}: {error}") from None
    if isinstance(row.get("error"), str) and row["error"]:
        return Measurement(ProbePlace(what, where), probe, {}, row["error"])
    seconds, names = row.get("seconds"), set(probe.names)
    if not isinstance(seconds, dict) or set(seconds) != names:
        raise wrong(f"seconds is {seconds!r}, but must have {', '.join(sorted(names))}")
    for name, value in seconds.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
            raise wrong(f"{name} is {value!r}, but must be a finite number above 0")
    return Measurement(ProbePlace(what, where), probe, seconds)


def _object(path: pathlib.Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = strict_json(line, finite=False)
    except ValueError as error:
        why = f"this isn't JSON: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(f"{path}, line {number}: {why}; take the line out, or begin anew without --resume") from None
    if not isinstance(row, dict):
        raise ValueError(
            f"{path}, line {number}: is {line[:40]!r}, but must be an object; take the line out, or begin anew without "
            "--resume"
        )
    return row
