"""A cluster as a command line names it among several: how many machines, and of which type."""

from __future__ import annotations

import os
import re

__all__ = ["counted_machine"]

_COUNTED = re.compile(r"(\d+)\s*x\s*(\S.*)")


def counted_machine(text: str) -> tuple[str, int]:
    """Returns the machine or file that a text names, and how many hosts of it; without a number there is one.

    >>> counted_machine("2 x p3.16xlarge"), counted_machine("p3.16xlarge")
    (('p3.16xlarge', 2), ('p3.16xlarge', 1))
    """
    found = _COUNTED.fullmatch(text.strip())
    return (text, 1) if found is None or os.path.exists(text) else (found[2], int(found[1]))
