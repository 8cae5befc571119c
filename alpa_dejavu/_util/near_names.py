"""Names: those that a wrong one is near to, and numbered ones in the short form that Slurm and pdsh have for hosts."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable


def near(name: str, names: Iterable[str]) -> str:
    """Returns a question that suggests the known names nearest to a wrong name, or "" if none is near.

    >>> near("memery", ["memory", "device"])
    "; did you mean 'memory'?"
    """
    close = difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)")


def name_ranges(names: Iterable[str]) -> str:
    """Returns names as a text in which numbered ones that begin alike stand together, sorted by their numbers.

    >>> name_ranges(["p3.16xlarge-7", "p3.16xlarge-6", "p3.16xlarge-5", "a-0", "a-2", "login"])
    'p3.16xlarge-[5-7] a-[0,2] login'
    """
    numbers: dict[str, list[int] | None] = {}
    for name in dict.fromkeys(names):
        parts = _NUMBERED.fullmatch(name)
        if parts is None:
            numbers[name] = None
        else:
            of_prefix = numbers.setdefault(parts[1], [])
            if of_prefix is not None:
                of_prefix.append(int(parts[2]))
    return " ".join(name if of is None else name + _ranges(sorted(of)) for name, of in numbers.items())


def _ranges(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    # Numbers that follow each other are as far from their places in the list.
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return f"[{','.join(str(run[0]) if len(run) == 1 else f'{run[0]}-{run[-1]}' for run in runs)}]"
