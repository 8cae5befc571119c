"""Names that a wrong name is near to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(name: str, names: Iterable[str]) -> str:
    """Returns a question that suggests the known names nearest to a wrong name, or "" if none is near.

    >>> near("memery", ["memory", "device"])
    "; did you mean 'memory'?"
    """
    close = difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
