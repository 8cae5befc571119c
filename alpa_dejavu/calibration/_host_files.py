"""Rates of a folder's drives: a file written and read past the system's cache, and both at the same time.

The files have no names, so whatever ends the process, nothing of them is left in the folder.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import mmap
import os
import pathlib
import statistics
import tempfile
import time
from typing import IO, final

from alpa_dejavu._util import units
from alpa_dejavu.calibration.bench import MeasurementError

__all__ = ["file_figures"]

_BLOCK = 1 << 24
_PAGE = 4096
_IN_MEMORY = ("tmpfs", "ramfs")
_ROOM = 3
"""There must be so many times the room of a file: two are there at a time."""


def file_figures(folder: str, num_bytes: int) -> dict[str, float]:
    """Returns the seconds in which a file is written to a folder ("write_s") and read ("read_s"), both again while
    another file is read and written ("write_beside_s", "read_beside_s"), and the bytes that are free there. An empty
    folder is the system's for temporary files; MeasurementError says which folder can't be measured.
    """
    place = folder or tempfile.gettempdir()
    size = -(-num_bytes // _PAGE) * _PAGE
    try:
        _check_kind(place)
        drive = os.statvfs(place)
        free = drive.f_bavail * drive.f_frsize
        if free < _ROOM * size:
            raise MeasurementError(f"{place} has {units.size(free)} free, but needs {units.size(_ROOM * size)}")
        with _Scratch(place, size) as first, _Scratch(place, size) as second:
            figures = {"write_s": first.write(), "read_s": first.read()}
            beside = _beside(first, second)
    except OSError as error:
        raise MeasurementError(f"{place}: {error.strerror or error}; give a folder that can be written") from error
    return {**figures, **beside, "free_bytes": float(free)}


def _beside(read: _Scratch, written: _Scratch) -> dict[str, float]:
    """Reads one file again and again while another one is written."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        writing = pool.submit(written.write)
        seconds = [read.read()]
        while not writing.done():
            seconds.append(read.read())
        return {"write_beside_s": writing.result(), "read_beside_s": statistics.median(seconds)}


def _check_kind(folder: str) -> None:
    """Raises MeasurementError where a folder's files are in memory."""
    number = os.stat(folder).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            before, _, after = line.partition(" - ")
            kind = after.split(" ", 1)[0]
            if before.split()[2] == device and kind in _IN_MEMORY:
                raise MeasurementError(f"{folder} is kept in memory ({kind}); give a folder on a drive")


@final
class _Scratch:
    """A file without a name in a folder, for as long as a `with` block runs."""

    def __init__(self, folder: str, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by __exit__
        self._direct = _direct(self._file.fileno())
        # Pages of its own: reads and writes past the cache need blocks that begin with one.
        self._block = mmap.mmap(-1, min(_BLOCK, num_bytes))
        self._block[:] = os.urandom(len(self._block))

    def __enter__(self) -> _Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self) -> float:
        """Returns the seconds in which the file is written, and is on the drive."""
        number, block = self._file.fileno(), memoryview(self._block)
        started = time.perf_counter()
        place = 0
        while place < self._num_bytes:
            place += os.pwrite(number, block[: self._num_bytes - place], place)
        os.fsync(number)
        return time.perf_counter() - started

    def read(self) -> float:
        """Returns the seconds in which the file is read."""
        number, block = self._file.fileno(), memoryview(self._block)
        if not self._direct:
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        place = 0
        while place < self._num_bytes:
            got = os.preadv(number, [block[: self._num_bytes - place]], place)
            if not got:
                raise OSError(f"the file ended after {units.exact_bytes(place)}")
            place += got
        return time.perf_counter() - started


def _direct(number: int) -> bool:
    """Opens a file's reads and writes past the system's cache, and returns whether its file system can do that; if it
    can't, the cache can be asked to forget the file.
    """
    try:
        fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_DIRECT)
    except (OSError, AttributeError):
        if not hasattr(os, "posix_fadvise"):
            raise MeasurementError("files can't be read past this system's cache") from None
        return False
    return True
