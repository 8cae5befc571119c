"""Words of shell scripts in pieces, each with its line and with why it isn't known, and variables that keep them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import final

from alpa_dejavu.exports._shell_text import unread


@final
@dataclasses.dataclass(frozen=True)
class Unknown:
    """A reason why a script's text doesn't say what a word is.

    Attributes:
        line: the line that decides it.
        reason: what decides it, and what would do, as the end of a sentence.
        flow: whether that is a branch, a loop or a function, which may add further words.
    """

    line: int
    reason: str
    flow: bool = False


@final
@dataclasses.dataclass(frozen=True)
class WordPiece:
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


Field = tuple[WordPiece, ...]
"""A word after all that bash does with it."""


def text_of(field: Field) -> str:
    """Returns the text of a word."""
    return "".join(piece.text for piece in field)


def unknown_in(fields: Iterable[Field]) -> Unknown | None:
    """Returns why a word isn't known, and what may add further words before all else; None: all are known."""
    reasons = [piece.unknown for field in fields for piece in field if piece.unknown is not None]
    return next((reason for reason in reasons if reason.flow), reasons[0] if reasons else None)


@final
@dataclasses.dataclass(frozen=True)
class VariableValue:
    """A variable's words: one, or those of an array."""

    elements: tuple[Field, ...]
    array: bool = False


@final
class Fields:
    """Words in the making: quoted parts are put together, others are split at blanks."""

    def __init__(self) -> None:
        self.done: list[Field] = []
        self._open: list[WordPiece] | None = None

    def add(self, *pieces: WordPiece) -> None:
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


def begins_with(value: VariableValue, before: VariableValue) -> bool:
    """Whether a variable's new value is what it was before, and more."""
    if value.array:
        return bool(before.elements) and value.elements[: len(before.elements)] == before.elements
    first = before.elements[0] if before.elements else ()
    return bool(first) and value.elements[0][: len(first)] == first


def unquoted(pieces: Iterable[WordPiece]) -> Field:
    """A word as a variable keeps it: quotes inside of it count no more."""
    return tuple(dataclasses.replace(piece, quoted=False) if piece.quoted else piece for piece in pieces)


def spaced(elements: tuple[Field, ...]) -> Iterator[Field]:
    for n, element in enumerate(elements):
        if n:
            yield (WordPiece(" ", element[0].line if element else 0),)
        yield element


_MOST = 8_000_000
"""So many characters and pieces may variables put into words, all together; going over all variables counts, too."""
EACH = 8
"""So much counts a variable, or an element of an array, where all are gone over."""
_NAME = re.compile(r"[A-Za-z_]\w*")


@final
class Variables:
    """A script's variables.

    Args:
        values: what they are.
        budget: how many characters they may yet make; None: as many as a whole script's.

    Attributes:
        values: what they are, by name, in the order in which they were set first.
        budget: how many characters they may yet make, which scripts within scripts share.
        positional: why the script's own arguments aren't known; None: there are none.
    """

    def __init__(self, values: dict[str, VariableValue], budget: list[int] | None = None) -> None:
        self.values, self.budget = values, budget or [_MOST]
        self.positional: Unknown | None = None

    def words(self) -> Iterator[tuple[str, tuple[Field, ...]]]:
        """Yields all variables with their words, in the order in which they were set first."""
        for name, value in self.values.items():
            fields = Fields()
            fields.split(value.elements)
            fields.end()
            yield name, tuple(fields.done)

    def set(self, name: str, value: VariableValue, more: bool, why: Unknown | None, line: int) -> None:
        """Sets a variable, or adds to it; `why` is what decides whether that happens."""
        before = self.values.get(name)
        if why is not None:
            if not (before is not None and (more or begins_with(value, before))):
                self.unknown(name, why)
                return
            more = True
            value = VariableValue(((WordPiece(" ", line), WordPiece(f"${name}", line, why)),), value.array)
        if more and before is not None:
            if value.array:
                value = VariableValue((*before.elements, *value.elements), True)
            else:
                first = (*(before.elements[0] if before.elements else ()), *value.elements[0])
                value = VariableValue((first, *before.elements[1:]), before.array)
            self.spend(size_of(value.elements), line)
        elif not value.array and before is not None and before.array:
            value = VariableValue((*value.elements, *before.elements[1:]), True)
        self.values[name] = value

    def unknown(self, name: str, why: Unknown) -> None:
        """Marks a variable as not known."""
        self.values[name] = VariableValue(((WordPiece(f"${name}", why.line, why),),))

    def spend(self, size: int, line: int) -> None:
        """Takes from what variables may make."""
        self.budget[0] -= size
        if self.budget[0] < 0:
            raise unread(line, f"variables make more than {_MOST} characters", "shorten them")

    def parameter(self, name: str, index: str, shown: str, line: int) -> tuple[Field, ...]:
        """Returns the elements that a parameter stands for."""
        if name in ("@", "*"):
            positional = self.positional
            return () if positional is None else ((WordPiece("$@", line, positional),),)
        value = self.values.get(name)
        if value is None:
            outside = name.isdigit() or not _NAME.fullmatch(name)
            why = "it comes from outside of the script" if outside else "it isn't set in the script"
            return not_known(shown, line, f"{why}; set it there")
        if index in ("[@]", "[*]"):
            elements = value.elements
            return elements if index == "[@]" else (tuple(piece for element in spaced(elements) for piece in element),)
        if not index:
            return value.elements[:1] or ((),)
        place = index[1:-1]
        self.spend(EACH * len(value.elements), line)
        if place.isascii() and place.isdigit() and not unknown_in(value.elements):
            return (value.elements[int(place) : int(place) + 1] if len(place) < 9 else ()) or ((),)
        return not_known(shown, line, "it is one element of an array; write it out")


def size_of(elements: Iterable[Field]) -> int:
    """Returns how many characters and pieces words have."""
    return sum(1 + len(piece.text) for element in elements for piece in element)


def not_known(shown: str, line: int, why: str) -> tuple[Field, ...]:
    """Returns the one element of what isn't known, as the script has it."""
    return ((WordPiece(shown, line, Unknown(line, why)),),)
