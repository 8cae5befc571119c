"""A cluster in one text: how many machines, and of which type."""

from __future__ import annotations

import os
import re

__all__ = ["counted_machine"]

_COUNTED = re.compile(r"(\d{1,9})\s*x\s*(\S.*)")


def counted_machine(text: str) -> tuple[str, int | None]:
    """Returns the machine or file that a text names, and how many hosts of it; None where the text has no number.

    >>> counted_machine("2 x p3.16xlarge"), counted_machine("p3.16xlarge")
    (('p3.16xlarge', 2), ('p3.16xlarge', None))
    """
    parts = _COUNTED.fullmatch(text.strip())
    return (text, None) if parts is None or os.path.exists(text) else (parts[2], int(parts[1]))
