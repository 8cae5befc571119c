"""Shell scripts read as bash reads them, as far as that needs nothing to be run: commands, quotes, arrays, variables.

What a script decides as it runs (branches, loops, functions, the output of commands) isn't followed: what depends on it
is marked as unknown, with its line, and whoever needs it says so.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Final, NoReturn, final

from alpa_dejavu.exports._shell_expansion import DEEPEST, Expansion
from alpa_dejavu.exports._shell_text import Text, unread
from alpa_dejavu.exports._shell_words import (
    EACH,
    Field,
    Unknown,
    Variables,
    VariableValue,
    WordPiece,
    text_of,
    unquoted,
)

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^]\n]*\])?(\+?)=")
_REDIRECTED = re.compile(r"(?:\d+|\{\w+\})?(?:<<<|<<-?|<&|<>|<|>>|>&|>\||>)|&>>?")
_OPERATOR = re.compile(r"\n|;;&|;;|;&|;|&&|\|\||\|&|\||&")
_COUNTED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:[-+*/%&|^]?=(?!=)|\+\+|--)")
_DECLARES: Final = ("export", "declare", "typeset", "local", "readonly")
_SETS: Final = ("read", "mapfile", "readarray", "getopts", "let", "printf")
_OPENS: Final = {"if": "fi", "while": "done", "until": "done", "for": "done", "select": "done", "case": "esac"}
_GOES_ON: Final = ("then", "else", "elif", "do", "!", "time")
_CHILD: Final = ("bash", "sh")
_OWN = "_alpa_dejavu_unknown_"


@final
@dataclasses.dataclass(frozen=True)
class ShellCommand:
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

    Raises:
        SyntaxError: it isn't a script that can be read; `lineno` is the line, and the message ends with a remedy.
    """

    def __init__(self, text: str) -> None:
        self._start(Text(text, 1), Variables({}), 0)

    def _start(self, source: Text, variables: Variables, depth: int) -> None:
        self._source, self._variables, self._depth = source, variables, depth
        self._expansion = Expansion(source, variables, lambda: self._why, depth)
        self._exported: set[str] = set()
        self._within: list[tuple[str, str, int]] = []
        self._here: list[tuple[str, bool]] = []
        self._outer: Unknown | None = None
        self.commands: list[ShellCommand] = []

    @property
    def variables(self) -> Iterator[tuple[str, tuple[Field, ...]]]:
        """Yields all variables with their words, in the order in which they were set first."""
        return self._variables.words()

    def read(self) -> Script:
        """Reads the whole text, and returns this script."""
        behind = ""
        while self._source.at < len(self._source.text):
            behind = self._one(behind)
        if self._within:
            word, _, line = self._within[-1]
            self._wrong(line, f"the {word} that begins in it doesn't end", "end it")
        return self

    def _one(self, behind: str) -> str:
        """Reads a command; takes the operator in front of it, and returns the one behind it."""
        words: list[Field] = []
        before: list[tuple[str, bool, VariableValue]] = []
        line = self._source.line()
        while True:
            self._source.skip_blank()
            if self._source.at >= len(self._source.text):
                operator = ""
                break
            if not words:
                line = self._source.line()
            if self._source.text[self._source.at] == "#":
                end = self._source.text.find("\n", self._source.at)
                self._source.at = len(self._source.text) if end < 0 else end
                continue
            match = _REDIRECTED.match(self._source.text, self._source.at)
            if match and not (match[0] in "<>" and self._source.text.startswith("(", match.end())):
                self._redirected(match)
                continue
            match = _OPERATOR.match(self._source.text, self._source.at)
            if match:
                operator = match[0]
                self._source.at = match.end()
                break
            character = self._source.text[self._source.at]
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
            match = _ASSIGNED.match(self._source.text, self._source.at) if not words or declares else None
            if match:
                before.append(self._assigned(match))
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
                match = _NAME.match(text_of(word))
                if match:
                    self._variables.unknown(match[0], Unknown(line, f"{name} sets it as it runs; set it to one value"))
        elif name == "unset":
            for word in words[1:]:
                if conditional or self._why:
                    why = self._why or Unknown(line, "it may be unset here; set it once")
                    self._variables.unknown(text_of(word), why)
                else:
                    self._variables.values.pop(text_of(word), None)
        elif name in ("source", ".") and not text_of(words[-1]).endswith("activate"):
            self._variables.spend(EACH * len(self._variables.values), line)
            for variable in list(self._variables.values):
                why = Unknown(line, "the file that is read here may set it anew; set it behind that")
                self._variables.unknown(variable, why)
        elif name == "set" and "--" in map(text_of, words):
            self._variables.positional = Unknown(line, "set gives it here; write the arguments out")
        elif name == "eval":
            self._inner(words[1:], line, True)
        elif not self._child(words, line):
            self.commands.append(ShellCommand(tuple(words), line, self._why))

    def _child(self, words: list[Field], line: int) -> bool:
        for n, word in enumerate(words[:-2]):
            if text_of(word).rpartition("/")[2] in _CHILD and re.fullmatch("-[a-z]*c", text_of(words[n + 1])):
                self._inner(words[n + 2 : n + 3], line, False)
                return True
        return False

    def _inner(self, words: Iterable[Field], line: int, same: bool) -> None:
        """Reads words as a script: in the same shell, or in a new one that knows what is exported."""
        if self._depth >= DEEPEST:
            self._wrong(line, "scripts within scripts are too deep", "write the command out")
        values = self._variables.values
        if not same:
            self._variables.spend(EACH * len(self._exported), line)
            values = {name: values[name] for name in self._exported if name in values}
        text: list[str] = []
        own: list[str] = []
        for word in words:
            for piece in word:
                if piece.unknown is not None:
                    own.append(f"{_OWN}{len(text)}")
                    values[own[-1]] = VariableValue(((piece,),))
                text.append(piece.text if piece.unknown is None else f"${{{own[-1]}}}")
            text.append(" ")
        inner = Script("")
        variables = Variables(values, self._variables.budget)
        inner._start(Text("".join(text), line, whole=False), variables, self._depth + 1)
        inner._outer = self._why
        self.commands += inner.read().commands
        for name in own:
            values.pop(name, None)

    def _keyword(self) -> str:
        """Reads a word of the language, if there is one: "again" where a command may follow, "end" where none does."""
        match = re.compile(r"[^ \t\r\n;&|<>()]+").match(self._source.text, self._source.at)
        word = match[0] if match else ""
        if match is None or word not in (*_OPENS, *_OPENS.values(), *_GOES_ON, "{", "}", "function", "[["):
            return ""
        line = self._source.line()
        self._source.at = match.end()
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
                self._source.skip_blank()
                self._word()
                self._source.skip_space()
                if not self._source.text.startswith("in", self._source.at):
                    self._wrong(line, "case has no in", "mend the script")
                self._source.at += 2
                self._pattern()
        elif word == "{":
            self._within.append(("{", "}", line))
        elif word == "function":
            self._source.skip_blank()
            self._word()
            self._source.skip_blank()
            if self._source.text.startswith("()", self._source.at):
                self._source.at += 2
            self._function(line)
        elif word == "[[":
            end = re.compile(r"\s\]\]").search(self._source.text, self._source.at)
            if end is None:
                self._wrong(line, "[[ doesn't end", "end it with ]]")
            self._source.at = end.end()
        return "again"

    def _loop(self, line: int) -> None:
        self._source.skip_blank()
        match = _NAME.match(self._source.text, self._source.at)
        if match:
            self._variables.unknown(match[0], Unknown(line, "a loop sets it; write the run out for one of its values"))
            self._source.at = match.end()
        self._source.skip_blank()
        if self._source.text.startswith("((", self._source.at):
            self._source.at = self._source.behind_parentheses(self._source.at)
        while (begin := self._source.at) < len(self._source.text):
            self._source.skip_blank()
            self._word()
            if self._source.at == begin:
                break

    def _function(self, line: int) -> None:
        self._source.skip_space()
        opens = self._source.text[self._source.at : self._source.at + 1]
        if opens not in ("{", "("):
            self._wrong(line, "a function has no body in braces", "mend the script")
        self._within.append(("function", "}" if opens == "{" else ")", line))
        self._source.at += 1

    def _parenthesis(self, character: str, words: list[Field]) -> bool:
        """Reads a parenthesis; returns whether the command goes on behind it."""
        line = self._source.line()
        if character == ")":
            if not self._within or self._within[-1][1] != ")":
                self._wrong(line, "a parenthesis ends that didn't begin", "put quotes around what isn't the shell's")
            self._within.pop()
            self._source.at += 1
            return False
        if words and re.compile(r"\(\s*\)").match(self._source.text, self._source.at) and len(words) == 1:
            self._source.at = self._source.text.index(")", self._source.at) + 1
            words.clear()
            self._function(line)
            return True
        if words:
            self._wrong(line, "a parenthesis is in the midst of a command", "put quotes around it")
        if self._source.text.startswith("((", self._source.at):
            end = self._source.behind_parentheses(self._source.at)
            for match in _COUNTED.finditer(self._source.text, self._source.at, end):
                self._variables.unknown(match[1], Unknown(line, "it is reckoned here; write the number out"))
            self._source.at = end
            return True
        self._within.append(("(", ")", line))
        self._source.at += 1
        return True

    def _pattern(self) -> None:
        """Reads up to the end of a pattern of a case, if one follows."""
        if not self._within or self._within[-1][0] != "case":
            return
        self._source.skip_space()
        if re.compile(r"esac\b").match(self._source.text, self._source.at):
            return
        line = self._source.line()
        if self._source.text.startswith("(", self._source.at):
            self._source.at += 1
        while self._source.at < len(self._source.text):
            self._source.skip_space()
            if self._source.text.startswith(")", self._source.at):
                self._source.at += 1
                return
            if self._source.text.startswith("|", self._source.at):
                self._source.at += 1
                continue
            begin = self._source.at
            self._word()
            if self._source.at == begin:
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

    def _assigned(self, match: re.Match[str]) -> tuple[str, bool, VariableValue]:
        name, line = match[1], self._source.line()
        self._source.at = match.end()
        if match[2]:
            self._expansion.value()
            unknown = Unknown(line, "an element is set by its number; write the array out")
            return name, False, VariableValue(((WordPiece(f"${name}", line, unknown),),))
        if not self._source.text.startswith("(", self._source.at):
            return name, bool(match[3]), VariableValue((self._expansion.value(),))
        self._source.at += 1
        elements: list[Field] = []
        while True:
            self._source.skip_space()
            if self._source.at >= len(self._source.text):
                self._wrong(line, "the array that begins in it doesn't end", "end it with )")
            if self._source.text[self._source.at] == ")":
                self._source.at += 1
                return name, bool(match[3]), VariableValue(tuple(elements), True)
            begin = self._source.at
            elements += map(unquoted, self._word())
            if self._source.at == begin:
                self._wrong(self._source.line(), f"{self._source.text[begin]} is in an array", "put quotes around it")

    def _declared(self, words: list[Field], assigned: tuple[str, bool, VariableValue], behind: str) -> None:
        name, more, value = assigned
        self._set(name, value, more, behind in ("&&", "||", "|", "|&"), self._source.line())
        if text_of(words[0]) == "export" or any(text_of(word) == "-x" for word in words[1:]):
            self._exported.add(name)

    def _set(self, name: str, value: VariableValue, more: bool, conditional: bool, line: int) -> None:
        why = self._why
        if why is None and conditional:
            why = Unknown(line, "it is set here on a condition; set it to one value", True)
        self._variables.set(name, value, more, why, line)

    def _word(self) -> list[Field]:
        return self._expansion.fields(True)

    def _redirected(self, match: re.Match[str]) -> None:
        self._source.at = match.end()
        self._source.skip_blank()
        begin = self._source.at
        self._word()
        if match[0].endswith(("<<", "<<-")):
            self._here.append((self._source.text[begin : self._source.at].strip("'\"\\"), match[0].endswith("-")))

    def _skip_here(self) -> None:
        """Skips the documents that the commands of the line before take in."""
        for word, tabs in self._here:
            line = self._source.line()
            while True:
                if self._source.at >= len(self._source.text):
                    self._wrong(line - 1, f"the text up to {word} doesn't end", f"end it with {word}")
                end = self._source.text.find("\n", self._source.at)
                end = len(self._source.text) if end < 0 else end
                row, self._source.at = self._source.text[self._source.at : end], end + 1
                if (row.lstrip("\t") if tabs else row) == word:
                    break
        self._here.clear()

    def _wrong(self, line: int, why: str, remedy: str) -> NoReturn:
        raise unread(line, why, remedy)
