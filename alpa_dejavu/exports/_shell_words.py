"""Words of shell scripts in pieces, each with its line and with why it isn't known, and variables that keep them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import final

__all__ = ["Field", "Fields", "Piece", "Unknown", "Value", "begins_with", "spaced", "text_of", "unknown_in", "unquoted"]


@final
@dataclasses.dataclass(frozen=True)
class Unknown:
    """A reason why a script's text doesn't say what a word is.

    Attributes:
        line: the line that decides it.
        said: what decides it, and what would do, as the end of a sentence.
        flow: whether that is a branch, a loop or a function, which may add further words.
    """

    line: int
    said: str
    flow: bool = False


@final
@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a word.

    Attributes:
        text: its text; of what isn't known as the script has it.
        line: the number of its line, from 1.
        unknown: why it isn't known; None: it is.
        quoted: whether it stands in quotes inside of what is split at blanks.
    """

    text: str
    line: int
    unknown: Unknown | None = None
    quoted: bool = False


Field = tuple[Piece, ...]
"""A word after all that bash does with it."""


def text_of(field: Field) -> str:
    """Returns the text of a word."""
    return "".join(piece.text for piece in field)


def unknown_in(fields: Iterable[Field]) -> Unknown | None:
    """Returns why a word isn't known, and what may add further words before all else; None: all are known."""
    found = [piece.unknown for field in fields for piece in field if piece.unknown is not None]
    return next((one for one in found if one.flow), found[0] if found else None)


@final
@dataclasses.dataclass(frozen=True)
class Value:
    """A variable's words: one, or those of an array."""

    elements: tuple[Field, ...]
    array: bool = False


@final
class Fields:
    """Words in the making: quoted parts are put together, others are split at blanks."""

    def __init__(self) -> None:
        self.done: list[Field] = []
        self._open: list[Piece] | None = None

    def add(self, *pieces: Piece) -> None:
        if self._open is None:
            self._open = []
        self._open.extend(pieces)

    def end(self) -> None:
        if self._open is not None:
            self.done.append(tuple(self._open))
            self._open = None

    def quoted(self, elements: Iterable[Field]) -> None:
        for n, element in enumerate(elements):
            if n:
                self.end()
            self.add(*element)

    def split(self, elements: Iterable[Field]) -> None:
        for n, element in enumerate(elements):
            if n:
                self.end()
            for piece in element:
                if piece.unknown is not None or piece.quoted:
                    self.add(piece)
                    continue
                for k, part in enumerate(re.split(r"[ \t\n]+", piece.text)):
                    if k:
                        self.end()
                    if part:
                        self.add(dataclasses.replace(piece, text=part))


def begins_with(value: Value, before: Value) -> bool:
    """Whether a variable's new value is what it was before, and more."""
    if value.array:
        return bool(before.elements) and value.elements[: len(before.elements)] == before.elements
    first = before.elements[0] if before.elements else ()
    return bool(first) and value.elements[0][: len(first)] == first


def unquoted(pieces: Iterable[Piece]) -> Field:
    """A word as a variable keeps it: quotes inside of it count no more."""
    return tuple(dataclasses.replace(piece, quoted=False) if piece.quoted else piece for piece in pieces)


def spaced(elements: tuple[Field, ...]) -> Iterator[Field]:
    for n, element in enumerate(elements):
        if n:
            yield (Piece(" ", element[0].line if element else 0),)
        yield element
