"""Results of a run that was interrupted, kept in a folder in the order in which they were computed.

A simulation asks for the same things in the same order each time, so a run that begins again takes what is kept, and
computes from there on. Files are written whole; an interrupted one isn't there.
"""

from __future__ import annotations

import io
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.json_file import write_whole, write_whole_bytes

Arrays = tuple[np.ndarray, ...]
_FILE_BYTES, _FILE_S = 2**26, 10.0
"""A file is written once it has so many bytes, or after so many seconds."""


@final
class Journal:
    """A list of results; those that are kept in a folder are read instead of computed. The results depend on `run`.

    Raises:
        ValueError: the folder holds another run, or isn't there.
    """

    def __init__(self, folder: pathlib.Path | None, run: dict[str, object]) -> None:
        self._folder, self._new, self._bytes, self._written_s = folder, list[Arrays](), 0, time.monotonic()
        self._kept, self._files, self.replayed = iter(()), 0, 0  # type: Iterator[Arrays], int, int
        if folder is None:
            return
        if not folder.is_dir():
            raise ValueError(f"folder is {str(folder)!r}, but must be a folder that is there; make it first")
        text, head = json.dumps(run, sort_keys=True, default=str), folder / "run.json"
        self._head, self._run = head, text
        if head.exists() and (kept := head.read_text(encoding="utf-8")) != text:
            raise ValueError(f"{folder} holds the run {kept}, not {text}; give another folder")
        files = sorted(folder.glob("results-*.npz"))
        self._files, self._kept = len(files), _read(files)

    def next(self, compute: Callable[[], Sequence[np.ndarray]]) -> Arrays:
        """Returns the next result: the kept one, or the computed one, which is kept."""
        if self._folder is None:
            return tuple(compute())
        kept = next(self._kept, None)
        if kept is not None:
            self.replayed += 1
            return kept
        result = tuple(compute())
        self._new.append(result)
        self._bytes += sum(array.nbytes for array in result)
        if self._bytes > _FILE_BYTES or time.monotonic() - self._written_s > _FILE_S:
            self.write()
        return result

    def write(self) -> None:
        """Writes what isn't kept yet."""
        if self._folder is None or not self._new:
            return
        if not self._files:
            write_whole(self._head, self._run)
        content = io.BytesIO()
        named = {f"{n}-{k}": array for n, arrays in enumerate(self._new) for k, array in enumerate(arrays)}
        np.savez(content, **named)
        write_whole_bytes(self._folder / f"results-{self._files:06d}.npz", content.getvalue())
        self._files, self._new, self._bytes, self._written_s = self._files + 1, [], 0, time.monotonic()


def _read(files: Sequence[pathlib.Path]) -> Iterator[Arrays]:
    for path in files:
        with np.load(path, allow_pickle=False) as file:
            parts: dict[int, list[np.ndarray]] = {}
            for name in file.files:
                parts.setdefault(int(name.partition("-")[0]), []).append(file[name])
        yield from (tuple(parts[n]) for n in sorted(parts))
