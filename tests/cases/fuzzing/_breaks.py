"""Ways in which files are broken, as strategies: what JSON holds, its text, and bytes of any kind."""

from __future__ import annotations

import copy
import json
import re
from typing import Any, TypeAlias

from hypothesis import strategies as st

Contents: TypeAlias = "st.SearchStrategy[bytes]"

_TWICE, _DEEP = "\x01twice:", "\x01deep:"
"""Marks of what JSON's writer wouldn't write: a key once more, and lists in lists."""

NAMES = ("", "x", "0", "..", "名前", "Ελλάδα", "\x1b[31mred", "a\nb", "\x00", "\ud800", "x" * 10_000, "trap:run")
NUMBERS = (
    0, -1, 1, 2, 1000, 10**9, 2**60, -(2**63), 10**400, 0.5, 1.5, -0.0, 1e-320, 1e9, 1e300, -1e308, float("nan"),
    float("inf"), float("-inf"),
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [1], ["x"], {"a": 1}, f"{_DEEP}100", f"{_DEEP}900", f"{_DEEP}100000",
)  # fmt: skip
ENCODINGS = ("utf-8",) * 12 + ("utf-16", "utf-8-sig", "latin-1", "cp037")


@st.composite
def broken_json(draw: st.DrawFn, content: bytes) -> bytes:
    """The text of a JSON file in which one to three places are changed."""
    data = json.loads(content)
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, data)
    return json_bytes(data, draw(st.booleans()), draw(st.sampled_from(ENCODINGS)))


def broken_text(content: bytes) -> Contents:
    """A JSON file with other places, or with other bytes."""
    return st.one_of(*[broken_json(content)] * 4, broken_bytes(content))


@st.composite
def broken_lines(draw: st.DrawFn, content: bytes) -> bytes:
    """A file of a line of JSON each, of which one is changed."""
    lines = content.splitlines()
    place = draw(st.integers(0, len(lines) - 1))
    lines[place] = draw(broken_json(lines[place]) | broken_bytes(lines[place]))
    return b"\n".join(lines) + b"\n"


@st.composite
def broken_words(draw: st.DrawFn, content: bytes) -> bytes:
    """A text, such as a script, of which words or lines are others, are gone, or are there again, even very often."""
    if draw(st.integers(0, 4)) == 0:
        return draw(broken_bytes(content))
    words = re.findall(r"[\w.]+|\n|[^\w.\n]+", content.decode("utf-8"))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(words) - 1))
        way = draw(st.sampled_from(("drop", "again", "often", "swap", "other", "other")))
        other = draw(st.integers(0, len(words) - 1))
        if way == "swap":
            words[place], words[other] = words[other], words[place]
        else:
            there = {"drop": "", "again": 2 * words[place], "often": 10_000 * words[place]}
            signs = ("$A", "`a`", "'", '"', "[", "{", "*", "&x", "- ", ": ", "9" * 400)
            known = (*NAMES, *map(repr, NUMBERS[:-10]), *signs)
            words[place] = there.get(way) if way in there else draw(st.sampled_from(known))
    return "".join(words).encode("utf-8", "replace")


def json_bytes(data: Any, plain: bool, encoding: str) -> bytes:
    """Data as text, and what its marks stand for."""
    text = json.dumps(data, ensure_ascii=plain, indent=1)
    text = re.sub(r'"(\\u0001twice:)+', '"', text)
    text = re.sub(r'"\\u0001deep:(\d+)"', lambda found: "[" * int(found[1]) + "]" * int(found[1]), text)
    errors = "replace" if encoding in ("latin-1", "cp037") else "surrogatepass"
    return text.encode(encoding, errors)


@st.composite
def broken_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """A file cut off, with bits that are flipped, with more at its end, or of something else."""
    way = draw(st.sampled_from(("cut", "flip", "more", "other")))
    if way == "cut":
        return content[: draw(st.integers(0, max(len(content) - 1, 0)))]
    if way == "more":
        return content + draw(st.binary(min_size=1, max_size=20))
    if way == "other" or not content:
        return draw(st.sampled_from((b"", b"\n", b"\x00" * 100, b"[" * 100_000, b"null", b"\xff\xfe", b"\x1f\x8b\x08")))
    flipped = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        flipped[draw(st.integers(0, len(content) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(flipped)


def _change(draw: st.DrawFn, data: Any) -> None:
    """Changes one place of what JSON holds."""
    inside, key = _place(draw, data)
    if inside is None:
        return
    ways = ["value", "value", "number", "drop", "wrap", "swap"]
    ways += ["rename", "twice"] if isinstance(inside, dict) else ["again"]
    way = draw(st.sampled_from(ways))
    if way == "drop":
        del inside[key]
    elif way == "rename":
        end = draw(st.sampled_from(("s", "_", "é", "\x1b[2J")))
        inside[f"{key}{end}"] = inside.pop(key)
    elif way == "twice":
        inside[f"{_TWICE}{key}"] = draw(st.sampled_from((inside[key], None)))
    elif way == "again":
        inside.insert(key, copy.deepcopy(inside[key]))
    elif way == "wrap":
        inside[key] = draw(st.sampled_from(([inside[key]], {"value": inside[key]})))
    elif way == "swap":
        other = draw(st.sampled_from(sorted(inside) if isinstance(inside, dict) else range(len(inside))))
        inside[key], inside[other] = inside[other], inside[key]
    elif way == "number" and isinstance(inside[key], (int, float)):
        inside[key] *= draw(st.sampled_from((-1, 0, 2, 0.5, 1e9, 1e-9, 10**30)))
    else:
        # A copy, since what it holds may be changed after.
        inside[key] = copy.deepcopy(draw(st.sampled_from(draw(st.sampled_from((NAMES, NUMBERS, OTHERS))))))


def _place(draw: st.DrawFn, data: Any) -> tuple[Any, Any]:
    """A key of an object or a place in a list, those near the top as often as those in its depth."""
    inside, key = None, None
    while isinstance(data, (dict, list)) and data:
        inside, key = data, draw(st.sampled_from(sorted(data) if isinstance(data, dict) else range(len(data))))
        data = data[key]
        if draw(st.integers(0, 3)) == 0:
            break
    return inside, key
