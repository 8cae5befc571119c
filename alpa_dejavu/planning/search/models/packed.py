"""JSON as compressed bytes, and back, with a bound on what it unpacks to."""

from __future__ import annotations

import gzip
import json
import math
import pathlib
import zlib
from typing import Any

from alpa_dejavu._util import units
from alpa_dejavu._util.file_size import VARIABLE, most_bytes

_GZIP = zlib.MAX_WBITS | 16
_ROOM = 16
"""The memory of JSON's objects as a multiple of their text, about; it is more where there is little in each."""


def packed_json(data: Any) -> bytes:
    """Returns data as gzipped JSON bytes; the same data always give the same bytes.

    Raises:
        ValueError: the JSON is longer than `unpacked_json` would unpack.
    """
    text, most = json.dumps(data, separators=(",", ":")).encode(), _most_text()
    if len(text) > most:
        took, limit = units.traffic(len(text)), units.traffic(most)
        raise ValueError(f"the data take {took} of JSON, but must take at most {limit}; {_remedy(len(text))}")
    return gzip.compress(text, compresslevel=1, mtime=0)


def unpacked_json(content: bytes) -> Any:
    """Returns the data of gzipped JSON bytes that `packed_json` made.

    Raises:
        ValueError: they aren't gzipped JSON, end too early, or unpack to more than the environment variable
            ALPA_DEJAVU_FILE_MIB allows.
    """
    unpacking, most = zlib.decompressobj(_GZIP), _most_text()
    try:
        text = unpacking.decompress(content, most + 1)
    except zlib.error as error:
        raise ValueError(f"this isn't gzip's format: {error}") from None
    if len(text) > most:
        raise ValueError(f"it unpacks to more than {units.traffic(most)} of JSON; {_remedy(2 * most)}")
    if not unpacking.eof:
        raise ValueError("it ends too early")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists in lists without an end") from None


def read_packed(path: pathlib.Path) -> Any:
    """Reads the data of a gzipped JSON file; one that is too large, or is no regular file, is refused unread.

    Raises:
        OSError: the file can't be read.
        ValueError: it is no regular file, is too large, or isn't gzipped JSON; or it unpacks to too much.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    size, most = path.stat().st_size, _most_text()
    if size > most:
        has, limit = units.traffic(size), units.traffic(most)
        raise ValueError(f"it has {has}, but must have at most {limit}; {_remedy(2 * size)}")
    return unpacked_json(path.read_bytes())


def _most_text() -> int:
    return int(most_bytes() / _ROOM)


def _remedy(text_bytes: int) -> str:
    mebibytes = math.ceil(text_bytes * _ROOM / 2**20)
    return f"if that is meant, set {VARIABLE} to {mebibytes} (MiB in memory)"
