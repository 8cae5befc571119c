"""The layout of stages in Megatron-Core, as `Et*3|(tt|)*2tL`: E embeddings, t a block, L the loss, | ends a stage."""

from __future__ import annotations

import re
from collections.abc import Sequence

from alpa_dejavu.exports._foreign import short
from alpa_dejavu.exports._outline import runs

__all__ = ["blocks_of_layout", "layout_of"]

_GROUP, _TIMES = re.compile(r"\(([^()]+)\)\*(\d{1,5})"), re.compile(r"([^()*])\*(\d{1,5})")
_MOST = 100_000


def layout_of(blocks: Sequence[int]) -> str:
    """Returns the layout of stages with so many blocks, where embeddings are in the first and the loss in the last one.

    >>> layout_of([3, 2, 2, 1])
    'Et*3|(t*2|)*2tL'
    """
    stages = [_times("t", number) for number in blocks]
    stages[0] = f"E{stages[0]}"
    *before, last = stages
    text = ""
    for stage, number in runs(before):
        text += f"({stage}|)*{number}" if number > 1 else f"{stage}|"
    return f"{text}{last}L"


def _times(letter: str, number: int) -> str:
    return letter * number if number < 2 else f"{letter}*{number}"


def blocks_of_layout(layout: str) -> tuple[int, ...]:
    """Returns the number of blocks of each stage of a layout.

    Raises:
        ValueError: the layout hasn't one E in the beginning and one L in the end, or has other letters than these and
            t; says what is wrong.

    >>> blocks_of_layout("Et*3|(tt|)*2,tL")
    (3, 2, 2, 1)
    """
    plain = layout.replace(",", "")
    for pattern in (_GROUP, _TIMES):
        plain = pattern.sub(lambda found: found[1] * min(int(found[2]), _MOST), plain)
        if len(plain) > _MOST:
            raise ValueError(f"layout is {short(layout)}, but must have at most {_MOST} layers; give fewer")
    letters = plain.replace("|", "")
    wrong = sorted(set(letters) - set("EtL"))
    if wrong:
        hint = ": multi-token prediction isn't planned" if "m" in wrong else ""
        said = f"layout is {short(layout)}, but must have the letters E, t and L alone, not {wrong[0]!r}{hint}"
        raise ValueError(said)
    if letters != "E" + "t" * letters.count("t") + "L":
        said = f"layout is {short(layout)}, but must begin with the one E and end with the one L; move them there"
        raise ValueError(said)
    return tuple(stage.count("t") for stage in plain.split("|"))
