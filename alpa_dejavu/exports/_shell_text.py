"""The text of a shell script, read word by word as bash expands them: quotes, variables, substitutions."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from typing import Final, final

from alpa_dejavu.exports._shell_words import (
    Unknown,
    Variables,
    Word,
    WordPiece,
    divided,
    grouped,
    kept,
    not_known,
    text_of,
    unread,
    whole,
)

DEEPEST: Final = 20
"""So deep may substitutions, and scripts, be within one another."""
BLANK: Final = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
SPACE: Final = re.compile(r"(?:[ \t\r\n]|\\\r?\n|#[^\n]*)+")
_PLAIN: Final = {
    "": re.compile(r"[^ \t\r\n;&|<>()$`\"'\\]+"),
    '"': re.compile(r"[^\"$`\\]+"),
    "}": re.compile(r"[^}'\"$`\\]+"),
}
"""What stands for itself in a word, in double quotes, and in braces."""
_SINGLE = re.compile(r"'([^']*)'|\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_BRACES = re.compile(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}")
_PARAMETER = re.compile(r"\$\{(?:(\w+)|([@*#?$!-]))(\[[^]]*\])?(?:(:?)([-=+?])|(?=\}))")
_NAMED = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])?(\\\n\w)?")
_MARKER = re.compile("\\$\0(\\d+)\0")
_PARENTHESES = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|([()])", re.DOTALL)
_IN_BRACES = re.compile(r"'[^']*'|\\.|([{}])", re.DOTALL)
_TICKS = re.compile(r"`(?:[^`\\]|\\.)*`", re.DOTALL)


@final
class ShellText:
    """A script's text, with the place `at` which it is read, and `why` the command at hand runs (None: it does).

    `unknown` are pieces that aren't known, where the text has a number between null characters; None: it is a file's,
    whose lines are counted. `depth` says within how many scripts it is.
    """

    def __init__(
        self, text: str, variables: Variables, first_line: int, unknown: list[WordPiece] | None, depth: int
    ) -> None:
        self.text, self.at = text.replace("\r\n", "\n"), 0
        self.why: Unknown | None = None
        self._variables, self._first, self._unknown, self._depth = variables, first_line, unknown or [], depth
        self._breaks = [match.start() for match in re.finditer("\n", self.text)] if unknown is None else []

    @property
    def line(self) -> int:
        """Returns the number of the line at hand."""
        return self._first + bisect.bisect_left(self._breaks, self.at)

    def next(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Reads what matches a pattern, if it is what comes next."""
        match = pattern.match(self.text, self.at)
        self.at = self.at if match is None else match.end()
        return match

    def words(self) -> list[Word]:
        """Reads a word, and returns the words that bash makes of it: none, one or several."""
        return grouped(self._pieces("", True))

    def value(self) -> Word:
        """Reads a word as a variable keeps it."""
        return kept(self._pieces("", False), self.line)

    def behind_parentheses(self, begin: int) -> int:
        """Returns the place behind the parenthesis that ends one which begins at a place."""
        return self._behind(begin, _PARENTHESES, "(", "a parenthesis doesn't end", "end it with )")

    def _behind(self, begin: int, pattern: re.Pattern[str], opens: str, why: str, remedy: str) -> int:
        depth = 0
        for match in pattern.finditer(self.text, begin):
            depth += 0 if match[1] is None else 1 if match[1] == opens else -1
            if not depth:
                return match.end()
        raise unread(self.line, why, remedy)

    def _pieces(self, ends: str, divides: bool) -> Iterator[WordPiece | None]:
        """Yields the pieces of a word up to a quote or brace, None between words, as blanks may divide it."""
        begin, in_quotes, in_braces = self.line, ends == '"', ends == "}"
        while self.at < len(self.text):
            line, character = self.line, self.text[self.at]
            if plain := self.next(_PLAIN[ends]):
                if ends:
                    yield from self._lines(plain[0], line, False)
                else:
                    several = Unknown(line, "braces make several words of it; write them out")
                    yield WordPiece(plain[0], line, several if _BRACES.search(plain[0]) else None)
            elif character == ends:
                self.at += 1
                return
            elif character == "\\":
                behind, self.at = self.text[self.at + 1 : self.at + 2], self.at + 2
                if behind != "\n" or in_braces:
                    kept_too = in_quotes and behind not in '"$`\\'
                    yield WordPiece(f"\\{behind}" if kept_too else behind, line, quoted=in_braces)
            elif not in_quotes and (single := self.next(_SINGLE)):
                escaped = (single[2] or "").replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'")
                yield WordPiece("", line)
                yield from self._lines(single[1] or escaped, line, in_braces)
            elif character == '"' or (not ends and self.text.startswith('$"', self.at)):
                self.at += 1 + (character == "$")
                if self.text.startswith('"', self.at):  # else what is in it may be no word at all
                    yield WordPiece("", line)
                inside = self._pieces('"', False)
                yield from (piece and piece._replace(quoted=True) for piece in inside) if in_braces else inside
            elif character in "$`":
                elements = self._expanded(line)
                self._variables.spend(sum(1 + len(piece.text) for word in elements for piece in word), line)
                pieces = divided(elements) if divides else whole(elements, line)
                yield from kept(pieces, line) if in_braces else pieces
            elif character in "<>" and self.text.startswith("(", self.at + 1):
                start, self.at = self.at, self.behind_parentheses(self.at + 1)
                yield WordPiece(self.text[start : self.at], line, Unknown(line, "a command writes it; write it out"))
            elif character == "'":
                raise self._open_quote(line)
            else:
                return
        if ends:
            raise self._open_quote(begin) if in_quotes else unread(begin, "a brace doesn't end", "end it with }")

    def _open_quote(self, line: int) -> SyntaxError:
        return unread(line, "No closing quotation", "end the quote in it")

    def _lines(self, text: str, line: int, quoted: bool) -> Iterator[WordPiece]:
        """Yields a text in pieces, each of one line."""
        for n, part in enumerate(text.split("\n")):
            if n:
                yield WordPiece("\n", line + n, quoted=quoted)
            if part:
                yield WordPiece(part, line + n, quoted=quoted)

    def _expanded(self, line: int) -> tuple[Word, ...]:
        """Reads what a dollar or a backtick begins, and returns the elements that it stands for."""
        text, begin = self.text, self.at
        if marker := self.next(_MARKER):
            return ((self._unknown[int(marker[1])],),)
        if parameter := self.next(_PARAMETER):
            return self._parameter(parameter, line)
        why = "it is the output of a command; write it out"
        if text[begin] == "`":
            if self.next(_TICKS) is None:
                raise self._open_quote(line)
        elif text.startswith("$(", begin):
            self.at = self.behind_parentheses(begin + 1)
            why = "it is reckoned; write the number out" if text.startswith("$((", begin) else why
        elif text.startswith("${", begin):
            self.at = self._behind(begin, _IN_BRACES, "{", "a brace doesn't end", "end it with }")
            why = "it is a substitution; write it out"
        else:
            name = self.next(_NAMED)
            assert name is not None, "it begins with a dollar"
            self.at = begin + 1 + len(name[1] or "")
            if name[1] is None:
                return ((WordPiece("$", line),),)
            if name[2] is None:
                return self._variables.parameter(name[1], "", f"${name[1]}", line)
            why = "its name may go on in the next line; put it in braces"
        return not_known(text[begin : self.at], line, why)

    def _parameter(self, parameter: re.Match[str], line: int) -> tuple[Word, ...]:
        """Reads a parameter in braces behind its name, with what stands for it where it isn't set."""
        begin, name, index, operator = parameter.start(), parameter[1] or parameter[2], parameter[3] or "", parameter[5]
        if not operator:
            self.at += 1
            return self._variables.parameter(name, index, self.text[begin : self.at], line)
        if self._depth >= DEEPEST:
            raise unread(line, "substitutions are too deep", "write them out")
        self._depth += 1
        other = tuple(piece for piece in self._pieces("}", False) if piece is not None)
        self._depth -= 1
        elements = self._variables.values.get(name, ((), False))[0]
        is_set = bool(elements)
        if is_set and parameter[4]:  # with a colon
            is_set = any(text_of(element) for element in (elements if index else elements[:1]))
        if operator == "+":
            return (other,) if is_set else ((),)
        shown = self.text[begin : self.at]
        if is_set:
            return self._variables.parameter(name, index, shown, line)
        if operator == "?":
            return not_known(shown, line, "it isn't set in the script; set it there")
        if operator == "=":
            self._variables.set(name, (kept(other, line),), False, False, self.why, line)
        return (other,)
