"""Which versions of Ray fit, and the error for those that don't."""

from __future__ import annotations

import re

__all__ = ["NEWEST", "OLDEST", "check_version"]

OLDEST = (2, 10)
NEWEST = (2, 60)


def check_version(version: str) -> None:
    """Raises RuntimeError, before anything is started, if this version of Ray is outside the supported range.

    Args:
        version: as in `ray.__version__`, for example "2.60.0".

    Examples:
        >>> check_version("2.60.0")
        >>> check_version("1.13.0")
        Traceback (most recent call last):
        ...
        RuntimeError: Ray 1.13.0 doesn't fit: Alpa runs on Ray 2.10 to 2.60; pip install "ray>=2.10,<2.61"
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is not None and OLDEST <= (int(match[1]), int(match[2])) <= NEWEST:
        return
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
    raise RuntimeError(
        f"Ray {version} doesn't fit: Alpa runs on Ray {oldest} to {newest}; "
        f'pip install "ray>={oldest},<{NEWEST[0]}.{NEWEST[1] + 1}"'
    )
