"""The text of a shell script, and the place in it up to which it is read."""

from __future__ import annotations

import bisect
import re
from typing import final

_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+")


@final
class Text:
    """A script's text, with the place up to which it is read.

    Args:
        text: the text.
        first_line: the number of its first line.
        whole: whether its lines are counted; else all are the first one.

    Attributes:
        text: the text.
        at: the place.
    """

    def __init__(self, text: str, first_line: int, whole: bool = True) -> None:
        self.text, self.at, self._first = text.replace("\r\n", "\n"), 0, first_line
        self._breaks = [found.start() for found in re.finditer("\n", self.text)] if whole else []

    def line(self) -> int:
        """Returns the number of the line at hand."""
        return self._first + bisect.bisect_left(self._breaks, self.at)

    def skip_blank(self) -> None:
        """Skips blanks."""
        found = _BLANK.match(self.text, self.at)
        if found:
            self.at = found.end()

    def skip_space(self) -> None:
        """Skips blanks, ends of lines and comments."""
        while True:
            self.skip_blank()
            if self.text.startswith("\n", self.at):
                self.at += 1
            elif self.text.startswith("#", self.at):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def behind_parentheses(self, begin: int) -> int:
        """Returns the place behind the parenthesis that ends one which begins at a place."""
        depth, line = 0, self.line()
        pattern = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|[()]", re.DOTALL)
        for found in pattern.finditer(self.text, begin):
            depth += {"(": 1, ")": -1}.get(found[0], 0)
            if not depth:
                return found.end()
        raise unread(line, "a parenthesis doesn't end", "end it with )")

    def behind_brace(self, begin: int, line: int) -> int:
        """Returns the place behind the brace that ends one which begins at a place."""
        depth = 0
        for found in re.compile(r"'[^']*'|\\.|[{}]", re.DOTALL).finditer(self.text, begin):
            depth += {"{": 1, "}": -1}.get(found[0], 0)
            if not depth:
                return found.end()
        raise unread(line, "a brace doesn't end", "end it with }")


def unread(line: int, said: str, remedy: str) -> SyntaxError:
    """Returns the error of a script that can't be read."""
    return SyntaxError(f"it can't be read: {said}; {remedy}", ("", line, None, None))
