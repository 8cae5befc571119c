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
_ANEW = "begin anew without --resume"
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
    """The figures of a probe at a place of a cluster, by name; or none, and the reason why it failed."""

    place: ProbePlace
    probe: Probe
    seconds: Mapping[str, float]
    error: str = ""


@final
class Measurements:
    """The measurements that a calibration is made of, in a file with a line for each, which `resume` keeps.

    `cluster` has what tells the cluster from others; "devices" lists its kinds. ValueError where the file can't be
    written, or the one to go on with is of another cluster or broken; it says which line.
    """

    def __init__(self, path: pathlib.Path, cluster: Mapping[str, Any], resume: bool) -> None:
        self.path = path
        self._rows: list[Measurement] = []
        if resume and path.exists():
            file = _MeasurementLines(path)
            if file.half:
                half = units.exact_bytes(file.half)
                _log.warning("%s: the last line was written by half (%s) and is dropped", path, half)
                with path.open("r+b") as whole:
                    whole.truncate(path.stat().st_size - file.half)
            file.check_cluster(cluster)
            # Failed ones are left out: they are tried again.
            self._rows = [row for _, row in file.rows(cluster["devices"]) if not row.error]
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
        """Returns the seconds measured at a place, by probe and the names it gives; the last of several counts."""
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
    """Returns a file's measurements that didn't fail, but for half a line at its end; ValueError says what is wrong."""
    file = _MeasurementLines(path)
    return [row for _, row in file.rows(file.cluster().get("devices", ())) if not row.error]


@final
class _MeasurementLines:
    """The whole lines of a file of measurements. ValueError says which line is wrong, and what to do."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path} can't be read: {error.strerror or error}; {_ANEW}") from None
        end = content.rfind(b"\n") + 1
        self.lines, self.half = content[:end].decode("utf-8", errors="replace").splitlines(), len(content) - end
        if not self.lines:
            raise ValueError(f"{path} has no first line that says which cluster it is of; {_ANEW}")

    def cluster(self) -> dict[str, Any]:
        """Returns the data of the cluster that the first line has."""
        header = self._object(1)
        if header.get("version") != _VERSION:
            version = f"is of version {header.get('version')!r}, but this program reads {_VERSION}"
            raise ValueError(f"{self.path}, line 1: {version}; {_ANEW}")
        cluster = header.get("cluster")
        if not isinstance(cluster, dict):
            raise ValueError(f"{self.path}, line 1: doesn't say which cluster it is of; {_ANEW}")
        return cluster

    def check_cluster(self, cluster: Mapping[str, Any]) -> None:
        """Raises ValueError unless the measurements are of such a cluster."""
        of_file = self.cluster()
        differences = [
            f"{name} is {of_file.get(name)!r} there and {cluster.get(name)!r} here"
            for name in sorted({*of_file, *cluster})
            if of_file.get(name) != cluster.get(name)
        ]
        if differences:
            fault = f"is of another cluster: {'; '.join(differences)}"
            raise ValueError(f"{self.path} {fault}; connect to that one, or {_ANEW}")

    def rows(self, devices: Sequence[str]) -> list[tuple[int, Measurement]]:
        """Returns the measurements and their lines; of those there twice the last counts, with a warning."""
        numbers = range(2, len(self.lines) + 1)
        rows = [(n, row) for n in numbers if (row := self._measurement(n, devices)) is not None]
        seen: dict[tuple[ProbePlace, Probe], int] = {}
        for number, row in rows:
            earlier = number if row.error else seen.setdefault((row.place, row.probe), number)
            if earlier != number:
                _log.warning(
                    "%s, line %d: measures the same as line %d (%s: %s); the last one counts: take the wrong one out",
                    self.path, number, earlier, row.place, row.probe,
                )  # fmt: skip
        return rows

    def _wrong(self, number: int, fault: str) -> ValueError:
        return ValueError(f"{self.path}, line {number}: {fault}; take the line out, or {_ANEW}")

    def _measurement(self, number: int, devices: Sequence[str]) -> Measurement | None:
        row = self._object(number)
        what: Any = row.get("what")
        where, fields = row.get("where"), row.get("probe")
        if what in _OF_BEFORE:
            return None
        if what not in _KINDS or not isinstance(where, str) or not isinstance(fields, dict):
            choices = f"one of {', '.join(_KINDS)}, with 'where' and 'probe' beside it"
            raise self._wrong(number, f"what is {what!r}, which must be {choices}")
        places = devices if what == HOST_MEMORY else [WITHIN, BETWEEN]
        if where not in places:
            choices = f"the cluster has {', '.join(map(repr, places))}"
            raise self._wrong(number, f"where is {where!r}{near(where, places)}, but {choices}")
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in fields.items()}
        try:
            probe = _KINDS[what](**values)
        except (TypeError, ValueError) as error:
            raise self._wrong(number, f"the probe is {fields!r}: {error}") from None
        if isinstance(row.get("error"), str) and row["error"]:
            return Measurement(ProbePlace(what, where), probe, {}, row["error"])
        seconds = row.get("seconds")
        if not isinstance(seconds, dict) or set(seconds) != set(probe.names):
            raise self._wrong(number, f"seconds is {seconds!r}, but must have {', '.join(sorted(probe.names))}")
        for name, value in seconds.items():
            plain = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (plain and math.isfinite(value) and value > 0):
                raise self._wrong(number, f"{name} is {value!r}, but must be a finite number above 0")
        return Measurement(ProbePlace(what, where), probe, seconds)

    def _object(self, number: int) -> dict[str, Any]:
        line = self.lines[number - 1]
        try:
            row = strict_json(line, finite=False)
        except ValueError as error:
            why = f"this isn't JSON: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise self._wrong(number, why) from None
        if not isinstance(row, dict):
            raise self._wrong(number, f"is {line[:40]!r}, but must be an object")
        return row
