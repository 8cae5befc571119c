"""Words of a shell script as bash expands them: quotes, variables, substitutions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Final, NoReturn, final

from alpa_dejavu.exports._shell_text import Text, unread
from alpa_dejavu.exports._shell_words import (
    Field,
    Fields,
    Unknown,
    Variables,
    VariableValue,
    WordPiece,
    not_known,
    size_of,
    spaced,
    text_of,
    unquoted,
)

DEEPEST: Final = 20
"""So deep may substitutions, and scripts, be within one another."""
_PLAIN = re.compile(r"[^ \t\r\n;&|<>()$`\"'\\]+")
_IN_QUOTES = re.compile(r"[^\"$`\\]+")
_BRACES = re.compile(r"\{([^{}\s]*)\}")
_PARAMETER = re.compile(r"(?:(\w+)|[@*#?$!-])(\[[^]]*\])?(:?[-=+?])?")


@final
class Expansion:
    """A reader of words.

    Args:
        source: the text, whose place it moves on.
        variables: what variables are.
        decides: tells what decides whether the command at hand runs; None: it does.
        depth: within how many scripts it is.
    """

    def __init__(self, source: Text, variables: Variables, decides: Callable[[], Unknown | None], depth: int) -> None:
        self._source, self._variables, self._decides, self._depth = source, variables, decides, depth

    def fields(self, splits: bool) -> list[Field]:
        """Reads a word, and returns the words that bash makes of it: none, one or several."""
        fields, text, begin = Fields(), self._source.text, self._source.at
        while self._source.at < len(text):
            character = text[self._source.at]
            plain = _PLAIN.match(text, self._source.at)
            if plain:
                several = any("," in inner or ".." in inner for inner in _BRACES.findall(plain[0]))
                line, why = self._source.line(), "braces make several words of it; write them out"
                fields.add(WordPiece(plain[0], line, Unknown(line, why) if several else None))
                self._source.at = plain.end()
            elif character == "\\":
                if text.startswith("\\\n", self._source.at):
                    self._source.at += 2
                    continue
                fields.add(WordPiece(text[self._source.at + 1 : self._source.at + 2], self._source.line()))
                self._source.at += 2
            elif character in "'\"":
                self._quoted(fields)
            elif character in "$`":
                if text.startswith(("$'", '$"'), self._source.at):
                    self._source.at += 1
                    self._quoted(fields, text[self._source.at] == "'")
                    continue
                elements = self._expanded()
                self._variables.spend(size_of(elements), self._source.line())
                if splits:
                    fields.split(elements)
                else:
                    fields.quoted((tuple(piece for element in spaced(elements) for piece in element),))
            elif character in "<>" and text.startswith("(", self._source.at + 1):
                line, end = self._source.line(), self._source.behind_parentheses(self._source.at + 1)
                unknown = Unknown(line, "a command writes it; write it out")
                fields.add(WordPiece(text[self._source.at : end], line, unknown))
                self._source.at = end
            else:
                break
        if not splits and self._source.at == begin:
            fields.add()
        fields.end()
        return fields.done

    def _quoted(self, fields: Fields, escapes: bool = False) -> None:
        text, line, quote = self._source.text, self._source.line(), self._source.text[self._source.at]
        self._source.at += 1
        if quote == "'" or text.startswith('"', self._source.at):  # else what is in it may be no word at all
            fields.add()
        if quote == "'" or escapes:
            end = re.compile(r"(?:[^'\\]|\\.)*'" if escapes else "[^']*'", re.DOTALL).match(text, self._source.at)
            if end is None:
                self._no_end(line)
            inside = end[0][:-1]
            if escapes:
                inside = inside.replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'")
            fields.add(*self._lines(inside))
            self._source.at = end.end()
            return
        while self._source.at < len(text):
            inside_quotes = _IN_QUOTES.match(text, self._source.at)
            if inside_quotes:
                fields.add(*self._lines(inside_quotes[0]))
                self._source.at = inside_quotes.end()
            elif text[self._source.at] == '"':
                self._source.at += 1
                return
            elif text[self._source.at] == "\\":
                behind = text[self._source.at + 1 : self._source.at + 2]
                if behind != "\n":
                    fields.add(WordPiece(behind if behind in '"$`\\' else f"\\{behind}", self._source.line()))
                self._source.at += 2
            else:
                elements = self._expanded()
                self._variables.spend(size_of(elements), self._source.line())
                fields.quoted(elements)
        self._no_end(line)

    def _lines(self, text: str) -> Iterator[WordPiece]:
        """A text from here on in pieces, each of one line."""
        line = self._source.line()
        for n, part in enumerate(text.split("\n")):
            if n:
                yield WordPiece("\n", line + n)
            if part:
                yield WordPiece(part, line + n)

    def _expanded(self) -> tuple[Field, ...]:
        """Reads what a dollar or a backtick begins, and returns the elements that it stands for."""
        text, begin, line = self._source.text, self._source.at, self._source.line()
        if text[begin] == "`":
            end = re.compile(r"(?:[^`\\]|\\.)*`", re.DOTALL).match(text, begin + 1)
            if end is None:
                self._no_end(line)
            self._source.at = end.end()
            return not_known(text[begin : self._source.at], line, "it is the output of a command; write it out")
        if text.startswith("$(", begin):
            self._source.at = self._source.behind_parentheses(begin + 1)
            reckoned = text.startswith("$((", begin)
            why = "it is reckoned; write the number out" if reckoned else "it is the output of a command; write it out"
            return not_known(text[begin : self._source.at], line, why)
        if text.startswith("${", begin):
            return self._in_braces(begin, line)
        name = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]").match(text, begin + 1)
        self._source.at = begin + 1 if name is None else name.end()
        if name is not None and re.compile(r"\\\n\w").match(text, self._source.at):
            return not_known(f"${name[0]}", line, "its name may go on in the next line; put it in braces")
        if name is None:
            return ((WordPiece("$", line),),)
        return self._variables.parameter(name[0], "", text[begin : self._source.at], line)

    def _in_braces(self, begin: int, line: int) -> tuple[Field, ...]:
        text, parameter = self._source.text, _PARAMETER.match(self._source.text, begin + 2)
        if parameter is None or (not parameter[3] and not text.startswith("}", parameter.end())):
            self._source.at = self._source.behind_brace(begin, line)
            return not_known(text[begin : self._source.at], line, "it is a substitution; write it out")
        name, index, operator = (
            parameter[1] or text[begin + 2],
            parameter[2] or "",
            (parameter[3] or "").removeprefix(":"),
        )
        empty_too = (parameter[3] or "").startswith(":")
        self._source.at = parameter.end()
        if not operator:
            self._source.at += 1
            return self._variables.parameter(name, index, text[begin : self._source.at], line)
        other = self._default(line)
        value = self._variables.values.get(name)
        is_set = value is not None and bool(value.elements)
        if is_set and value is not None and empty_too:
            is_set = any(text_of(element) for element in (value.elements if index else value.elements[:1]))
        if operator == "+":
            return (other,) if is_set else ((),)
        if is_set:
            end = self._source.at
            elements = self._variables.parameter(name, index, text[begin : self._source.at], line)
            self._source.at = end
            return elements
        if operator == "?":
            return not_known(text[begin : self._source.at], line, "it isn't set in the script; set it there")
        if operator == "=":
            self._variables.set(name, VariableValue((unquoted(other),)), False, self._decides(), line)
        return (other,)

    def _default(self, line: int) -> Field:
        """Reads the word behind an operator in braces, and the brace behind it."""
        if self._depth >= DEEPEST:
            raise unread(line, "substitutions are too deep", "write them out")
        self._depth += 1
        fields = Fields()
        fields.add()
        while self._source.at < len(self._source.text):
            character = self._source.text[self._source.at]
            if character == "}":
                self._source.at += 1
                self._depth -= 1
                fields.end()
                return tuple(piece for field in fields.done for piece in field)
            if character in "'\"":
                inner = Fields()
                self._quoted(inner)
                inner.end()
                fields.add(*(dataclasses.replace(piece, quoted=True) for field in inner.done for piece in field))
            elif character in "$`":
                elements = self._expanded()
                self._variables.spend(size_of(elements), self._source.line())
                fields.quoted((tuple(piece for element in spaced(elements) for piece in element),))
            elif character == "\\":
                behind = self._source.text[self._source.at + 1 : self._source.at + 2]
                fields.add(WordPiece(behind, self._source.line(), quoted=True))
                self._source.at += 2
            else:
                plain = re.compile(r"[^}'\"$`\\]+").match(self._source.text, self._source.at)
                assert plain is not None
                fields.add(*self._lines(plain[0]))
                self._source.at = plain.end()
        raise unread(line, "a brace doesn't end", "end it with }")

    def _no_end(self, line: int) -> NoReturn:
        raise unread(line, "No closing quotation", "end the quote in it")

    def value(self) -> Field:
        """Reads a word as a variable keeps it."""
        return unquoted(piece for field in spaced(tuple(self.fields(False))) for piece in field)
