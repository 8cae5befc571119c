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

_BLOCK, _PAGE = 1 << 24, 4096
_IN_MEMORY = ("tmpfs", "ramfs")
_ROOM = 3
"""There must be so many times the room of a file: two are there at a time."""


def file_figures(folder: str, num_bytes: int) -> dict[str, float]:
    """Returns a folder's "write_s" and "read_s", both beside the other, too ("write_beside_s", "read_beside_s"), and
    its free bytes. An empty folder is the system's for temporary files; MeasurementError says which can't be measured.
    """
    place = folder or tempfile.gettempdir()
    size = -(-num_bytes // _PAGE) * _PAGE
    try:
        _check_kind(place)
        drive = os.statvfs(place)
        free = drive.f_bavail * drive.f_frsize
        if free < _ROOM * size:
            raise MeasurementError(f"{place} has {units.size(free)} free, but needs {units.size(_ROOM * size)}")
        with contextlib.ExitStack() as files, concurrent.futures.ThreadPoolExecutor(1) as pool:
            first, second = (
                _Scratch(files.enter_context(tempfile.TemporaryFile(dir=place, buffering=0)), size) for _ in range(2)
            )
            figures = {"write_s": first.write(), "read_s": first.read()}
            # One file is read again and again while another one is written.
            writing = pool.submit(second.write)
            seconds = [first.read()]
            while not writing.done():
                seconds.append(first.read())
            both = {"write_beside_s": writing.result(), "read_beside_s": statistics.median(seconds)}
    except OSError as error:
        raise MeasurementError(f"{place}: {error.strerror or error}; give a folder that can be written") from error
    return {**figures, **both, "free_bytes": float(free)}


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
    """A file without a name, of so many bytes."""

    def __init__(self, file: IO[bytes], num_bytes: int) -> None:
        self._num_bytes, self._number = num_bytes, file.fileno()
        self._direct = _direct(self._number)
        # Pages of its own: reads and writes past the cache need blocks that begin with one.
        block = mmap.mmap(-1, min(_BLOCK, num_bytes))
        block[:] = os.urandom(len(block))
        self._block = memoryview(block)

    def write(self) -> float:
        """Returns the seconds in which the file is written, and is on the drive."""
        started = time.perf_counter()
        place = 0
        while place < self._num_bytes:
            place += os.pwrite(self._number, self._block[: self._num_bytes - place], place)
        os.fsync(self._number)
        return time.perf_counter() - started

    def read(self) -> float:
        """Returns the seconds in which the file is read."""
        if not self._direct:
            os.posix_fadvise(self._number, 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        place = 0
        while place < self._num_bytes:
            count = os.preadv(self._number, [self._block[: self._num_bytes - place]], place)
            if not count:
                raise OSError(f"the file ended after {units.exact_bytes(place)}")
            place += count
        return time.perf_counter() - started


def _direct(number: int) -> bool:
    """Opens a file past the system's cache; returns whether that can be done, else the cache may forget it."""
    try:
        fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_DIRECT)
    except (OSError, AttributeError):
        if not hasattr(os, "posix_fadvise"):
            raise MeasurementError("files can't be read past this system's cache") from None
        return False
    return True
