"""JSON as compressed bytes, and back, with a bound on what it unpacks to."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

MOST_BYTES = 2**26
"""No file is unpacked to more; none of the known models takes a tenth of it."""
_GZIP = zlib.MAX_WBITS | 16


def packed_json(data: Any) -> bytes:
    """JSON in gzip's format; the same data give the same bytes.

    Raises:
        ValueError: there is more of it than could be unpacked again.
    """
    text = json.dumps(data, separators=(",", ":")).encode()
    if len(text) > MOST_BYTES:
        raise ValueError(f"the data take {len(text)} bytes, but must take at most {MOST_BYTES}; keep less of them")
    return gzip.compress(text, compresslevel=1, mtime=0)


def unpacked_json(content: bytes) -> Any:
    """The data that `packed_json` has made such bytes of.

    Raises:
        ValueError: they aren't such bytes, or not all of them.
    """
    unpacking = zlib.decompressobj(_GZIP)
    try:
        text = unpacking.decompress(content, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"this isn't gzip's format: {error}") from None
    if not unpacking.eof:
        raise ValueError(f"it ends too early, or unpacks to more than {MOST_BYTES} bytes")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists in lists without an end") from None
