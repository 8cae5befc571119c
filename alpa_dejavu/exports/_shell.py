"""Shell scripts read as bash reads them, as far as that needs nothing to be run: commands, quotes, arrays, variables.

What a script decides as it runs (branches, loops, functions, the output of commands) isn't followed: what depends on it
is marked as unknown, with its line, and whoever needs it says so.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Final, NoReturn, final

from alpa_dejavu.exports._shell_words import (
    Field,
    Fields,
    Piece,
    Unknown,
    Value,
    begins_with,
    spaced,
    text_of,
    unknown_in,
    unquoted,
)

__all__ = ["Command", "Script"]

_MOST = 8_000_000
"""So many characters and pieces may variables put into words, all together."""
_DEEPEST = 20
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_PLAIN = re.compile(r"[^\s;&|<>()$`\"'\\]+")
_IN_QUOTES = re.compile(r"[^\"$`\\]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^]\n]*\])?(\+?)=")
_REDIRECTED = re.compile(r"(?:\d+|\{\w+\})?(?:<<<|<<-?|<&|<>|<|>>|>&|>\||>)|&>>?")
_OPERATOR = re.compile(r"\n|;;&|;;|;&|;|&&|\|\||\|&|\||&")
_BRACES = re.compile(r"\{([^{}\s]*+)\}")
_PARAMETER = re.compile(r"(?:(\w+)|[@*#?$!-])(\[[^]]*\])?(:?[-=+?])?")
_COUNTED = re.compile(r"\b([A-Za-z_]\w*+)\s*+(?:[-+*/%&|^]?=(?!=)|\+\+|--)")
_DECLARES: Final = ("export", "declare", "typeset", "local", "readonly")
_SETS: Final = ("read", "mapfile", "readarray", "getopts", "let", "printf")
_OPENS: Final = {"if": "fi", "while": "done", "until": "done", "for": "done", "select": "done", "case": "esac"}
_GOES_ON: Final = ("then", "else", "elif", "do", "!", "time")
_CHILD: Final = ("bash", "sh")
_OWN = "_alpa_dejavu_unknown_"


@final
@dataclasses.dataclass(frozen=True)
class Command:
    """A command of a script.

    Attributes:
        words: its words.
        line: the number of its line.
        within: what decides whether it runs; None: it does.
    """

    words: tuple[Field, ...]
    line: int
    within: Unknown | None


@final
class Script:
    """A script's text, read from its beginning to its end once.

    Args:
        text: the text.
        first_line: the number of its first line.
        depth: within how many scripts it is.
        budget: how many characters variables may yet make; None: as many as a whole script's.

    Raises:
        SyntaxError: it isn't a script that can be read; `lineno` is the line, and the message ends with a remedy.
    """

    def __init__(self, text: str, first_line: int = 1, depth: int = 0, budget: list[int] | None = None) -> None:
        self._text, self._at, self._first, self._depth = text.replace("\r\n", "\n"), 0, first_line, depth
        self._breaks = [found.start() for found in re.finditer("\n", self._text)]
        self._budget = budget or [_MOST]
        self._values: dict[str, Value] = {}
        self._exported: set[str] = set()
        self._within: list[tuple[str, str, int]] = []
        self._here: list[tuple[str, bool]] = []
        self._positional: Unknown | None = None
        self._outer: Unknown | None = None
        self.commands: list[Command] = []

    @property
    def variables(self) -> Iterator[tuple[str, tuple[Field, ...]]]:
        """Yields all variables with their words, in the order in which they were set first."""
        for name, value in self._values.items():
            fields = Fields()
            fields.split(value.elements)
            fields.end()
            yield name, tuple(fields.done)

    def read(self) -> Script:
        """Reads the whole text, and returns this script."""
        behind = ""
        while self._at < len(self._text):
            behind = self._one(behind)
        if self._within:
            word, _, line = self._within[-1]
            self._wrong(line, f"the {word} that begins in it doesn't end", "end it")
        return self

    # Commands

    def _one(self, behind: str) -> str:
        """Reads a command; takes the operator in front of it, and returns the one behind it."""
        words: list[Field] = []
        before: list[tuple[str, bool, Value]] = []
        line = self._line()
        while True:
            self._skip_blank()
            if self._at >= len(self._text):
                operator = ""
                break
            if not words:
                line = self._line()
            if self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
                continue
            found = _REDIRECTED.match(self._text, self._at)
            if found and not (found[0] in "<>" and self._text.startswith("(", found.end())):
                self._redirected(found)
                continue
            found = _OPERATOR.match(self._text, self._at)
            if found:
                operator = found[0]
                self._at = found.end()
                break
            character = self._text[self._at]
            if character in "()":
                if self._parenthesis(character, words):
                    continue
                operator = ";"
                break
            if not words and not before:
                keyword = self._keyword()
                if keyword == "again":
                    continue
                if keyword == "end":
                    operator = ";"
                    break
            declares = bool(words) and text_of(words[0]) in _DECLARES
            found = _ASSIGNED.match(self._text, self._at) if not words or declares else None
            if found:
                before.append(self._assigned(found))
                if declares:
                    self._declared(words, before.pop(), behind)
                continue
            words += self._word()
        conditional = behind in ("&&", "||", "|", "|&") or operator in ("|", "|&")
        if not words:
            for name, more, value in before:
                self._set(name, value, more, conditional, line)
        elif text_of(words[0]) not in _DECLARES:
            self._run(words, line, conditional)
        elif text_of(words[0]) == "export":
            self._exported.update(text_of(word) for word in words[1:])
        if operator == "\n":
            self._skip_here()
        if operator in (";;", ";&", ";;&"):
            self._pattern()
        return operator if operator != "\n" or words or before else behind if behind in ("&&", "||", "|") else operator

    def _run(self, words: list[Field], line: int, conditional: bool) -> None:
        name = text_of(words[0])
        if name in _SETS and (name != "printf" or "-v" in map(text_of, words)):
            for word in words[1:]:
                found = _NAME.match(text_of(word))
                if found:
                    self._unknown(found[0], Unknown(line, f"{name} sets it as it runs; set it to one value"))
        elif name == "unset":
            for word in words[1:]:
                if conditional or self._why:
                    self._unknown(text_of(word), self._why or Unknown(line, "it may be unset here; set it once"))
                else:
                    self._values.pop(text_of(word), None)
        elif name in ("source", ".") and not text_of(words[-1]).endswith("activate"):
            for each in list(self._values):
                self._unknown(each, Unknown(line, "the file that is read here may set it anew; set it behind that"))
        elif name == "set" and "--" in map(text_of, words):
            self._positional = Unknown(line, "set gives it here; write the arguments out")
        elif name == "eval":
            self._inner(words[1:], line, True)
        elif not self._child(words, line):
            self.commands.append(Command(tuple(words), line, self._why))

    def _child(self, words: list[Field], line: int) -> bool:
        for n, word in enumerate(words[:-2]):
            if text_of(word).rpartition("/")[2] in _CHILD and re.fullmatch("-[a-z]*c", text_of(words[n + 1])):
                self._inner(words[n + 2 : n + 3], line, False)
                return True
        return False

    def _inner(self, words: Iterable[Field], line: int, same: bool) -> None:
        """Reads words as a script: in the same shell, or in a new one that knows what is exported."""
        if self._depth >= _DEEPEST:
            self._wrong(line, "scripts within scripts are too deep", "write the command out")
        inner = Script("", line, self._depth + 1, self._budget)
        known = self._values if same else {name: self._values[name] for name in self._exported & {*self._values}}
        inner._values = known if same else dict(known)
        inner._outer = self._why
        text: list[str] = []
        for word in words:
            for piece in word:
                if piece.unknown is not None:
                    inner._values[f"{_OWN}{len(text)}"] = Value(((piece,),))
                text.append(piece.text if piece.unknown is None else f"${{{_OWN}{len(text)}}}")
            text.append(" ")
        inner._text = "".join(text)
        self.commands += inner.read().commands
        for name in [name for name in self._values if name.startswith(_OWN)]:
            del self._values[name]

    def _keyword(self) -> str:
        """Reads a word of the language, if there is one: "again" where a command may follow, "end" where none does."""
        found = re.compile(r"[^\s;&|<>()]+").match(self._text, self._at)
        word = found[0] if found else ""
        if found is None or word not in (*_OPENS, *_OPENS.values(), *_GOES_ON, "{", "}", "function", "[["):
            return ""
        line = self._line()
        self._at = found.end()
        if word in ("fi", "done", "esac", "}"):
            if not self._within or self._within[-1][1] != word:
                self._wrong(line, f"{word} ends nothing", "mend the script")
            self._within.pop()
            return "again"
        if word in _OPENS:
            self._within.append((word, _OPENS[word], line))
            if word in ("for", "select"):
                self._loop(line)
            if word == "case":
                self._skip_blank()
                self._word()
                self._skip_space()
                if not self._text.startswith("in", self._at):
                    self._wrong(line, "case has no in", "mend the script")
                self._at += 2
                self._pattern()
        elif word == "{":
            self._within.append(("{", "}", line))
        elif word == "function":
            self._skip_blank()
            self._word()
            self._skip_blank()
            if self._text.startswith("()", self._at):
                self._at += 2
            self._function(line)
        elif word == "[[":
            end = re.compile(r"\s\]\]").search(self._text, self._at)
            if end is None:
                self._wrong(line, "[[ doesn't end", "end it with ]]")
            self._at = end.end()
        return "again"

    def _loop(self, line: int) -> None:
        self._skip_blank()
        found = _NAME.match(self._text, self._at)
        if found:
            self._unknown(found[0], Unknown(line, "a loop sets it; write the run out for one of its values"))
            self._at = found.end()
        self._skip_blank()
        if self._text.startswith("((", self._at):
            self._at = self._behind_parentheses(self._at)
        while (begin := self._at) < len(self._text):
            self._skip_blank()
            self._word()
            if self._at == begin:
                break

    def _function(self, line: int) -> None:
        self._skip_space()
        opens = self._text[self._at : self._at + 1]
        if opens not in ("{", "("):
            self._wrong(line, "a function has no body in braces", "mend the script")
        self._within.append(("function", "}" if opens == "{" else ")", line))
        self._at += 1

    def _parenthesis(self, character: str, words: list[Field]) -> bool:
        """Reads a parenthesis; returns whether the command goes on behind it."""
        line = self._line()
        if character == ")":
            if not self._within or self._within[-1][1] != ")":
                self._wrong(line, "a parenthesis ends that didn't begin", "put quotes around what isn't the shell's")
            self._within.pop()
            self._at += 1
            return False
        if words and re.compile(r"\(\s*\)").match(self._text, self._at) and len(words) == 1:
            self._at = self._text.index(")", self._at) + 1
            words.clear()
            self._function(line)
            return True
        if words:
            self._wrong(line, "a parenthesis is in the midst of a command", "put quotes around it")
        if self._text.startswith("((", self._at):
            end = self._behind_parentheses(self._at)
            for found in _COUNTED.finditer(self._text, self._at, end):
                self._unknown(found[1], Unknown(line, "it is reckoned here; write the number out"))
            self._at = end
            return True
        self._within.append(("(", ")", line))
        self._at += 1
        return True

    def _pattern(self) -> None:
        """Reads up to the end of a pattern of a case, if one follows."""
        if not self._within or self._within[-1][0] != "case":
            return
        self._skip_space()
        if re.compile(r"esac\b").match(self._text, self._at):
            return
        line = self._line()
        if self._text.startswith("(", self._at):
            self._at += 1
        while self._at < len(self._text):
            self._skip_space()
            if self._text.startswith(")", self._at):
                self._at += 1
                return
            if self._text.startswith("|", self._at):
                self._at += 1
                continue
            begin = self._at
            self._word()
            if self._at == begin:
                break
        self._wrong(line, "a pattern of a case doesn't end", "end it with )")

    @property
    def _why(self) -> Unknown | None:
        """Returns what decides whether the command at hand runs; None: it does."""
        named = {"if": "a branch (if)", "case": "a branch (case)", "function": "a function"}
        for word, _, line in self._within:
            if word not in ("{", "("):
                what = named.get(word, f"a loop ({word})")
                return Unknown(
                    line, f"{what} that begins here decides it, and isn't followed; write it out, outside of it", True
                )
        return self._outer

    # Variables

    def _assigned(self, found: re.Match[str]) -> tuple[str, bool, Value]:
        name, line = found[1], self._line()
        self._at = found.end()
        if found[2]:
            self._value_word()
            unknown = Unknown(line, "an element is set by its number; write the array out")
            return name, False, Value(((Piece(f"${name}", line, unknown),),))
        if not self._text.startswith("(", self._at):
            return name, bool(found[3]), Value((self._value_word(),))
        self._at += 1
        elements: list[Field] = []
        while True:
            self._skip_space()
            if self._at >= len(self._text):
                self._wrong(line, "the array that begins in it doesn't end", "end it with )")
            if self._text[self._at] == ")":
                self._at += 1
                return name, bool(found[3]), Value(tuple(elements), True)
            begin = self._at
            elements += map(unquoted, self._word())
            if self._at == begin:
                self._wrong(self._line(), f"{self._text[begin]} is in an array", "put quotes around it")

    def _value_word(self) -> Field:
        return unquoted(piece for field in spaced(tuple(self._fields(False))) for piece in field)

    def _declared(self, words: list[Field], assigned: tuple[str, bool, Value], behind: str) -> None:
        name, more, value = assigned
        self._set(name, value, more, behind in ("&&", "||", "|", "|&"), self._line())
        if text_of(words[0]) == "export" or any(text_of(word) == "-x" for word in words[1:]):
            self._exported.add(name)

    def _set(self, name: str, value: Value, more: bool, conditional: bool, line: int) -> None:
        before = self._values.get(name)
        if self._why or conditional:
            why = self._why or Unknown(line, "it is set here on a condition; set it to one value", True)
            if not (before is not None and (more or begins_with(value, before))):
                self._unknown(name, why)
                return
            more = True
            value = Value(((Piece(" ", line), Piece(f"${name}", line, why)),), value.array)
        if more and before is not None:
            if value.array:
                value = Value((*before.elements, *value.elements), True)
            else:
                first = (*(before.elements[0] if before.elements else ()), *value.elements[0])
                value = Value((first, *before.elements[1:]), before.array)
            self._spend(value.elements)
        elif not value.array and before is not None and before.array:
            value = Value((*value.elements, *before.elements[1:]), True)
        self._values[name] = value

    def _unknown(self, name: str, why: Unknown) -> None:
        self._values[name] = Value(((Piece(f"${name}", why.line, why),),))

    def _spend(self, elements: Iterable[Field]) -> None:
        self._budget[0] -= sum(1 + len(piece.text) for element in elements for piece in element)
        if self._budget[0] < 0:
            self._wrong(self._line(), f"variables make more than {_MOST} characters", "shorten them")

    # Words

    def _word(self) -> list[Field]:
        return self._fields(True)

    def _fields(self, splits: bool) -> list[Field]:
        """Reads a word, and returns the words that bash makes of it: none, one or several."""
        fields, text, begin = Fields(), self._text, self._at
        while self._at < len(text):
            character = text[self._at]
            found = _PLAIN.match(text, self._at)
            if found:
                several = any("," in inner or ".." in inner for inner in _BRACES.findall(found[0]))
                unknown = Unknown(self._line(), "braces make several words of it; write them out") if several else None
                fields.add(Piece(found[0], self._line(), unknown))
                self._at = found.end()
            elif character == "\\":
                if text.startswith("\\\n", self._at):
                    self._at += 2
                    continue
                fields.add(Piece(text[self._at + 1 : self._at + 2], self._line()))
                self._at += 2
            elif character in "'\"":
                self._quoted(fields)
            elif character in "$`":
                if text.startswith(("$'", '$"'), self._at):
                    self._at += 1
                    self._quoted(fields, text[self._at] == "'")
                    continue
                elements = self._expanded()
                self._spend(elements)
                if splits:
                    fields.split(elements)
                else:
                    fields.quoted((tuple(piece for element in spaced(elements) for piece in element),))
            elif character in "<>" and text.startswith("(", self._at + 1):
                line, end = self._line(), self._behind_parentheses(self._at + 1)
                unknown = Unknown(line, "a command writes it; write it out")
                fields.add(Piece(text[self._at : end], line, unknown))
                self._at = end
            else:
                break
        if not splits and self._at == begin:
            fields.add()
        fields.end()
        return fields.done

    def _quoted(self, fields: Fields, escapes: bool = False) -> None:
        text, line, quote = self._text, self._line(), self._text[self._at]
        self._at += 1
        if quote == "'" or text.startswith('"', self._at):  # else what is in it may be no word at all
            fields.add()
        if quote == "'" or escapes:
            end = re.compile(r"(?:[^'\\]|\\.)*'" if escapes else "[^']*'", re.DOTALL).match(text, self._at)
            if end is None:
                self._no_end(line)
            inside = end[0][:-1]
            if escapes:
                inside = inside.replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'")
            fields.add(*self._lines(inside))
            self._at = end.end()
            return
        while self._at < len(text):
            found = _IN_QUOTES.match(text, self._at)
            if found:
                fields.add(*self._lines(found[0]))
                self._at = found.end()
            elif text[self._at] == '"':
                self._at += 1
                return
            elif text[self._at] == "\\":
                behind = text[self._at + 1 : self._at + 2]
                if behind != "\n":
                    fields.add(Piece(behind if behind in '"$`\\' else f"\\{behind}", self._line()))
                self._at += 2
            else:
                elements = self._expanded()
                self._spend(elements)
                fields.quoted(elements)
        self._no_end(line)

    def _lines(self, text: str) -> Iterator[Piece]:
        """A text from here on in pieces, each of one line."""
        line = self._line()
        for n, part in enumerate(text.split("\n")):
            if n:
                yield Piece("\n", line + n)
            if part:
                yield Piece(part, line + n)

    def _expanded(self) -> tuple[Field, ...]:
        """Reads what a dollar or a backtick begins, and returns the elements that it stands for."""
        text, begin, line = self._text, self._at, self._line()
        if text[begin] == "`":
            end = re.compile(r"(?:[^`\\]|\\.)*`", re.DOTALL).match(text, begin + 1)
            if end is None:
                self._no_end(line)
            self._at = end.end()
            return self._is_unknown(begin, line, "it is the output of a command; write it out")
        if text.startswith("$(", begin):
            self._at = self._behind_parentheses(begin + 1)
            reckoned = text.startswith("$((", begin)
            said = "it is reckoned; write the number out" if reckoned else "it is the output of a command; write it out"
            return self._is_unknown(begin, line, said)
        if text.startswith("${", begin):
            return self._in_braces(begin, line)
        found = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]").match(text, begin + 1)
        self._at = begin + 1 if found is None else found.end()
        if found is not None and re.compile(r"\\\n\w").match(text, self._at):
            return self._is_unknown(begin, line, "its name may go on in the next line; put it in braces")
        return ((Piece("$", line),),) if found is None else self._parameter(found[0], "", begin, line)

    def _in_braces(self, begin: int, line: int) -> tuple[Field, ...]:
        text, found = self._text, _PARAMETER.match(self._text, begin + 2)
        if found is None or (not found[3] and not text.startswith("}", found.end())):
            self._at = self._behind_brace(begin, line)
            return self._is_unknown(begin, line, "it is a substitution; write it out")
        name, index, operator = found[1] or text[begin + 2], found[2] or "", (found[3] or "").removeprefix(":")
        empty_too = (found[3] or "").startswith(":")
        self._at = found.end()
        if not operator:
            self._at += 1
            return self._parameter(name, index, begin, line)
        other = self._default(line)
        value = self._values.get(name)
        is_set = value is not None and bool(value.elements)
        if is_set and value is not None and empty_too:
            is_set = any(text_of(element) for element in (value.elements if index else value.elements[:1]))
        if operator == "+":
            return (other,) if is_set else ((),)
        if is_set:
            end = self._at
            elements = self._parameter(name, index, begin, line)
            self._at = end
            return elements
        if operator == "?":
            return self._is_unknown(begin, line, "it isn't set in the script; set it there")
        if operator == "=":
            self._set(name, Value((unquoted(other),)), False, False, line)
        return (other,)

    def _default(self, line: int) -> Field:
        """Reads the word behind an operator in braces, and the brace behind it."""
        if self._depth >= _DEEPEST:
            self._wrong(line, "substitutions are too deep", "write them out")
        self._depth += 1
        fields = Fields()
        fields.add()
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "}":
                self._at += 1
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
                self._spend(elements)
                fields.quoted((tuple(piece for element in spaced(elements) for piece in element),))
            elif character == "\\":
                fields.add(Piece(self._text[self._at + 1 : self._at + 2], self._line(), quoted=True))
                self._at += 2
            else:
                found = re.compile(r"[^}'\"$`\\]+").match(self._text, self._at)
                assert found is not None
                fields.add(*self._lines(found[0]))
                self._at = found.end()
        raise _unread(line, "a brace doesn't end", "end it with }")

    def _parameter(self, name: str, index: str, begin: int, line: int) -> tuple[Field, ...]:
        if name in ("@", "*"):
            positional = self._positional
            return () if positional is None else ((Piece("$@", line, positional),),)
        value = self._values.get(name)
        if value is None:
            outside = name.isdigit() or not _NAME.fullmatch(name)
            said = "it comes from outside of the script" if outside else "it isn't set in the script"
            return self._is_unknown(begin, line, f"{said}; set it there")
        if index in ("[@]", "[*]"):
            elements = value.elements
            return elements if index == "[@]" else (tuple(piece for one in spaced(elements) for piece in one),)
        if not index:
            return value.elements[:1] or ((),)
        place = index[1:-1]
        if place.isascii() and place.isdigit() and not unknown_in(value.elements):
            return (value.elements[int(place) : int(place) + 1] if len(place) < 9 else ()) or ((),)
        return self._is_unknown(begin, line, "it is one element of an array; write it out")

    def _is_unknown(self, begin: int, line: int, said: str) -> tuple[Field, ...]:
        return ((Piece(self._text[begin : self._at], line, Unknown(line, said)),),)

    # Places in the text

    def _line(self) -> int:
        return self._first + bisect.bisect_left(self._breaks, self._at)

    def _skip_blank(self) -> None:
        found = _BLANK.match(self._text, self._at)
        if found:
            self._at = found.end()

    def _skip_space(self) -> None:
        """Skips blanks, ends of lines and comments."""
        while True:
            self._skip_blank()
            if self._text.startswith("\n", self._at):
                self._at += 1
            elif self._text.startswith("#", self._at):
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return

    def _redirected(self, found: re.Match[str]) -> None:
        self._at = found.end()
        self._skip_blank()
        begin = self._at
        self._word()
        if found[0].endswith(("<<", "<<-")):
            self._here.append((self._text[begin : self._at].strip("'\"\\"), found[0].endswith("-")))

    def _skip_here(self) -> None:
        """Skips the documents that the commands of the line before take in."""
        for word, tabs in self._here:
            line = self._line()
            while True:
                if self._at >= len(self._text):
                    self._wrong(line - 1, f"the text up to {word} doesn't end", f"end it with {word}")
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                row, self._at = self._text[self._at : end], end + 1
                if (row.lstrip("\t") if tabs else row) == word:
                    break
        self._here.clear()

    def _behind_parentheses(self, begin: int) -> int:
        """Returns the place behind the parenthesis that ends one which begins at a place."""
        depth, line = 0, self._line()
        pattern = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|[()]", re.DOTALL)
        for found in pattern.finditer(self._text, begin):
            depth += {"(": 1, ")": -1}.get(found[0], 0)
            if not depth:
                return found.end()
        raise _unread(line, "a parenthesis doesn't end", "end it with )")

    def _behind_brace(self, begin: int, line: int) -> int:
        depth = 0
        for found in re.compile(r"'[^']*'|\\.|[{}]", re.DOTALL).finditer(self._text, begin):
            depth += {"{": 1, "}": -1}.get(found[0], 0)
            if not depth:
                return found.end()
        raise _unread(line, "a brace doesn't end", "end it with }")

    def _no_end(self, line: int) -> NoReturn:
        self._wrong(line, "No closing quotation", "end the quote in it")

    def _wrong(self, line: int, said: str, remedy: str) -> NoReturn:
        raise _unread(line, said, remedy)


def _unread(line: int, said: str, remedy: str) -> SyntaxError:
    return SyntaxError(f"it can't be read: {said}; {remedy}", ("", line, None, None))
