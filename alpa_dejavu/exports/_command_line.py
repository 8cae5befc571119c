"""Arguments in a command line or a shell script, with their lines: read, not run."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shlex
from typing import final

from alpa_dejavu._util.json_file import read_text

__all__ = ["Argument", "arguments_of", "wrong_line"]

_ASSIGNED = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=([^(\s].*)?$")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_REMEDY = "give a script or a command line with the arguments of the run"
_MOST_ROUNDS = 10


@final
@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a command line.

    Attributes:
        name: its name, without the dashes in front.
        values: the words behind it, up to the next argument.
        line: the number of its line, from 1.
    """

    name: str
    values: tuple[str, ...]
    line: int

    @property
    def value(self) -> str:
        """Returns its first value; empty where it has none."""
        return self.values[0] if self.values else ""


def arguments_of(path: pathlib.Path) -> list[Argument]:
    """Returns all arguments that a file names, in their order: those of arrays in a script, and those of its commands.

    Variables that the script sets to plain values are put in; nothing is run.

    Raises:
        ValueError: the file can't be read, or has a quote that doesn't end; says in which line.
    """
    found: list[Argument] = []
    known: dict[str, str] = {}
    behind, quote = False, ""
    for line, text in enumerate(read_text(path, _REMEDY).splitlines(), 1):
        goes_on = text.rstrip().endswith("\\")
        plain, quote = _unquoted(text.rstrip().removesuffix("\\"), quote)
        assigned = _ASSIGNED.match(plain)
        if assigned:
            known[assigned[1]] = _put_in((assigned[2] or "").partition(" #")[0].strip().strip("'\""), known)
        try:
            words = shlex.split(plain, comments=True)
        except ValueError as error:
            raise wrong_line(path, line, f"it can't be read: {error}; end the quote in it") from None
        for word in (_put_in(_bare(each), known) for each in words):
            if words[0] != "set" and re.fullmatch("--?[A-Za-z].*", word, re.DOTALL):
                name, equals, value = word.lstrip("-").partition("=")
                found.append(Argument(name, (value,) if equals else (), line))
                behind = True
            elif behind and word:
                found[-1] = dataclasses.replace(found[-1], values=(*found[-1].values, word))
        behind = behind and goes_on
    return found


def _unquoted(text: str, quote: str) -> tuple[str, str]:
    """A line without the quote that begins or ends in it as a variable's text of several lines, and the quote that is
    open behind it.
    """
    if quote:
        return (text.replace(quote, "", 1), "") if quote in text else (text, quote)
    begins = re.match(r"\s*(?:export\s+)?\w+=([\"'])", text)
    if begins is None or begins[1] in text[begins.end() :]:
        return text, ""
    return text[begins.end() :], begins[1]


def _bare(word: str) -> str:
    """A word without the parentheses of an array that it begins or ends."""
    word = re.sub(r"^\w+\+?=\(", "", word)
    return word[:-1] if word.endswith(")") and word.count("(") < word.count(")") else word


def wrong_line(path: pathlib.Path, line: int, said: str) -> ValueError:
    """Returns the error that says what is wrong in a line of a file."""
    return ValueError(f"{path}, line {line}: {said}")


def _put_in(word: str, known: dict[str, str]) -> str:
    for _ in range(_MOST_ROUNDS):
        put = _VARIABLE.sub(lambda one: known.get(one[1] or one[3], one[2] if one[2] is not None else one[0]), word)
        if put == word:
            break
        word = put
    return word
