"""Words of shell scripts in pieces, each with its line and with why it isn't known, and variables that keep them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, final

_MOST = 8_000_000
"""So many characters and pieces may variables put into words, all together; going over all variables counts, too."""
EACH = 8
"""So much counts a variable, or an element of an array, where all are gone over."""
_NAME = re.compile(r"[A-Za-z_]\w*")


class Unknown(NamedTuple):
    """A reason why a script's text doesn't say what a word is."""

    line: int
    reason: str  # what decides it, and what would do, as the end of a sentence
    flow: bool = False  # whether that is a branch, a loop or a function, which may add further words


class WordPiece(NamedTuple):
    """A part of a word, with its line; `unknown`: its text is the script's own; `quoted`: blanks don't divide it."""

    text: str
    line: int
    unknown: Unknown | None = None
    quoted: bool = False


Word = tuple[WordPiece, ...]
"""A word after all that bash does with it."""


def text_of(word: Word) -> str:
    """Returns the text of a word."""
    return "".join(piece.text for piece in word)


def unknown_in(words: Iterable[Word]) -> Unknown | None:
    """Returns why a word isn't known, and what may add further words before all else; None: all are known."""
    reasons = [piece.unknown for word in words for piece in word if piece.unknown is not None]
    return next((reason for reason in reasons if reason.flow), reasons[0] if reasons else None)


def unread(line: int, why: str, remedy: str) -> SyntaxError:
    """Returns the error of a script that can't be read."""
    return SyntaxError(f"it can't be read: {why}; {remedy}", ("", line, None, None))


def not_known(shown: str, line: int, why: str) -> tuple[Word, ...]:
    """Returns the one element of what isn't known, as the script has it."""
    return ((WordPiece(shown, line, Unknown(line, why)),),)


def grouped(pieces: Iterable[WordPiece | None]) -> list[Word]:
    """Returns the words of pieces, between which None stands."""
    groups = itertools.groupby(pieces, lambda piece: piece is None)
    return [tuple(piece for piece in group if piece is not None) for ends, group in groups if not ends]


def whole(elements: Iterable[Word], line: int) -> Iterator[WordPiece | None]:
    """Yields the pieces of elements that are a word each, whatever is in them."""
    for n, element in enumerate(elements):
        yield from (None,) if n else ()
        yield from element or (WordPiece("", line),)


def divided(elements: Iterable[Word]) -> Iterator[WordPiece | None]:
    """Yields the pieces of elements that are divided into words at blanks."""
    for n, element in enumerate(elements):
        yield from (None,) if n else ()
        for piece in element:
            if piece.unknown is not None or piece.quoted:
                yield piece
                continue
            for k, part in enumerate(re.split(r"[ \t\n]+", piece.text)):
                yield from (None,) if k else ()
                yield from (piece._replace(text=part),) if part else ()


def kept(pieces: Iterable[WordPiece | None], line: int) -> Word:
    """Returns words as a variable keeps them: as one, with blanks between; quotes inside of it count no more."""
    return tuple(
        WordPiece(" ", line) if piece is None else piece._replace(quoted=False) if piece.quoted else piece
        for piece in pieces if piece is None or piece.text
    )  # fmt: skip


@final
class Variables:
    """A script's variables: the words of each, in the order in which they were set first, and whether it is an array;
    scripts within scripts share the budget of characters.
    """

    def __init__(self, values: dict[str, tuple[tuple[Word, ...], bool]], budget: list[int] | None = None) -> None:
        self.values, self.budget = values, budget or [_MOST]
        self.positional: Unknown | None = None  # why the script's own arguments aren't known

    def set(self, name: str, words: tuple[Word, ...], array: bool, more: bool, why: Unknown | None, line: int) -> None:
        """Sets a variable, or adds `more` to it; `why` is what decides whether that happens."""
        before, was_array = self.values.get(name, (None, False))
        if why is not None:
            if before is None or not (more or _begins_with(words, before, array)):
                self.unknown(name, why)
                return
            words, more = ((WordPiece(" ", line), WordPiece(f"${name}", line, why)),), True
        if before is not None and more:
            words = (*before, *words) if array else (sum((*before[:1], words[0]), ()), *before[1:])
            self.spend(sum(1 + len(piece.text) for word in words for piece in word), line)
        elif before is not None and not array and was_array:
            words = (*words, *before[1:])
        self.values[name] = words, array or (before is not None and was_array)

    def unknown(self, name: str, why: Unknown) -> None:
        """Marks a variable as not known."""
        self.values[name] = ((WordPiece(f"${name}", why.line, why),),), False

    def spend(self, size: int, line: int) -> None:
        """Takes from what variables may make."""
        self.budget[0] -= size
        if self.budget[0] < 0:
            raise unread(line, f"variables make more than {_MOST} characters", "shorten them")

    def parameter(self, name: str, index: str, shown: str, line: int) -> tuple[Word, ...]:
        """Returns the elements that a parameter stands for."""
        if name in ("@", "*"):
            return () if self.positional is None else ((WordPiece("$@", line, self.positional),),)
        if name not in self.values:
            outside = name.isdigit() or not _NAME.fullmatch(name)
            why = "it comes from outside of the script" if outside else "it isn't set in the script"
            return not_known(shown, line, f"{why}; set it there")
        elements, place = self.values[name][0], index[1:-1]
        if place == "@":
            return elements
        if place == "*":
            return (kept(whole(elements, line), line),)
        if not index:
            return elements[:1] or ((),)
        self.spend(EACH * len(elements), line)
        if place.isascii() and place.isdigit() and not unknown_in(elements):
            return (elements[int(place) : int(place) + 1] if len(place) < 9 else ()) or ((),)
        return not_known(shown, line, "it is one element of an array; write it out")


def _begins_with(words: tuple[Word, ...], before: tuple[Word, ...], array: bool) -> bool:
    """Whether a variable's new value is what it was before, and more."""
    start, new = (before, words) if array else (before[0] if before else (), words[0])
    return bool(start) and new[: len(start)] == start
