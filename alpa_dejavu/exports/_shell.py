"""Shell scripts read as bash reads them, as far as that needs nothing to be run: commands, quotes, arrays, variables.

What a script decides as it runs (branches, loops, functions, the output of commands) isn't followed: what depends on it
is marked as unknown, with its line, and whoever needs it says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, final

from alpa_dejavu.exports._shell_text import BLANK, DEEPEST, SPACE, ShellText
from alpa_dejavu.exports._shell_words import (
    EACH,
    Unknown,
    Variables,
    Word,
    WordPiece,
    divided,
    grouped,
    kept,
    text_of,
    unread,
)

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^]\n]*\])?(\+?)=(\()?")
_REDIRECTED = re.compile(r"(?:\d+|\{\w+\})?(?:<<<|<<-?|<&|<>|>>|>&|>\||[<>](?!\())|&>>?")
_OPERATOR = re.compile(r"\n|;;&|;;|;&|;|&&|\|\||\|&|\||&")
_COMMENT = re.compile(r"#[^\n]*")
_COUNTED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:[-+*/%&|^]?=(?!=)|\+\+|--)")
_DECLARES: Final = ("export", "declare", "typeset", "local", "readonly")
_SETS: Final = ("read", "mapfile", "readarray", "getopts", "let", "printf")
_OPENS: Final = {
    "if": "fi", "while": "done", "until": "done", "for": "done", "select": "done", "case": "esac", "{": "}",
}  # fmt: skip
_KEYWORD = re.compile(
    r"(?:if|while|until|for|select|case|then|else|elif|do|!|time|\{|\}|fi|done|esac|function|\[\[)(?![^ \t\r\n;&|<>()])"
)
_TEST = re.compile(r".*?\s\]\]", re.DOTALL)
_FUNCTION = re.compile(r"[ \t]+[^\s;&|<>()]+[ \t]*(?:\([ \t]*\))?")
_PATTERN = re.compile(r"\(?(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|[^()'\"\\;])+\)", re.DOTALL)
_ON_CONDITION: Final = ("&&", "||", "|", "|&")
_FOLLOWED: Final = {"if": "a branch (if)", "case": "a branch (case)", "function": "a function"}


class ShellCommand(NamedTuple):
    """A command of a script: its words, its line, and what decides whether it runs; None: it does."""

    words: tuple[Word, ...]
    line: int
    within: Unknown | None


class _Assigned(NamedTuple):
    """A variable's new words."""

    name: str
    words: tuple[Word, ...]
    array: bool = False
    more: bool = False


@final
class Script:
    """A script's text, read to its end. Raises SyntaxError, with `lineno` and a remedy, if it can't be read."""

    def __init__(self, text: str) -> None:
        self._variables, self.commands = Variables({}), list[ShellCommand]()
        self.assigned: dict[str, int] = {}  # the variables that are set, also for one command, with their last lines
        self.sourced: list[tuple[str, int]] = []  # the files that are read into it, with their lines
        self._read(ShellText(text, self._variables, 1, None, 0), 0, None)

    def _read(self, text: ShellText, depth: int, outer: Unknown | None) -> None:
        self._text, self._depth, self._outer = text, depth, outer
        self._exported: set[str] = set()
        self._within: list[tuple[str, str, int]] = []  # what is open, what ends it, and its line
        self._documents: list[tuple[str, bool]] = []
        behind = ""
        while text.at < len(text.text):
            behind = self._command(behind)
        if self._within:
            word, _, line = self._within[-1]
            raise unread(line, f"the {word} that begins in it doesn't end", "end it")

    @property
    def variables(self) -> Iterator[tuple[Word, ...]]:
        """Yields the words of all variables, in the order in which they were set first."""
        for elements, _ in self._variables.values.values():
            yield tuple(grouped(divided(elements)))

    def _command(self, before: str) -> str:
        """Reads a command behind an operator, and returns the operator behind it."""
        text, words, assigned, line, operator = self._text, list[Word](), list[_Assigned](), 0, ""
        text.why = self._why
        declares = False
        while True:
            text.next(BLANK)
            line = line if words else text.line
            if text.at >= len(text.text):
                break
            if text.next(_COMMENT):
                continue
            if redirected := text.next(_REDIRECTED):
                self._redirected(redirected[0])
            elif ends := text.next(_OPERATOR):
                operator = ends[0]
                break
            elif text.text[text.at] in "()":
                if not self._parenthesis(words):
                    operator = ";"
                    break
            elif not words and not assigned and (keyword := text.next(_KEYWORD)):
                self._keyword(keyword[0], line)
                text.why = self._why
            elif (declares or not words) and (match := text.next(_ASSIGNED)):
                assigned.append(self._assigned(match))
            else:
                words += text.words()
                declares = bool(words) and text_of(words[0]) in _DECLARES
        self.assigned |= dict.fromkeys((value.name for value in assigned), line)
        conditional = before in _ON_CONDITION or operator in ("|", "|&")
        if declares or not words:
            self._set(assigned, words, conditional, line)
        else:
            self._run(words, line, conditional)
        if operator == "\n":
            self._skip_documents()
        if operator in (";;", ";&", ";;&"):
            self._pattern()
        return before if operator == "\n" and not (words or assigned) and before in _ON_CONDITION else operator

    def _set(self, assigned: Iterable[_Assigned], words: list[Word], conditional: bool, line: int) -> None:
        names, why = [text_of(word) for word in words], self._why
        if why is None and conditional:
            why = Unknown(line, "it is set here on a condition; set it to one value", True)
        for name, value, array, more in assigned:
            self._variables.set(name, value, array, more, why, line)
        if names and (names[0] == "export" or "-x" in names):
            self._exported.update(names, (value.name for value in assigned))

    def _run(self, words: list[Word], line: int, conditional: bool) -> None:
        variables, (name, *others) = self._variables, map(text_of, words)
        if name in _SETS and (name != "printf" or "-v" in others):
            for match in filter(None, map(_NAME.match, others)):
                self._unsure(match[0], line, f"{name} sets it as it runs; set it to one value")
        elif name == "unset":
            for other in others:
                if conditional or self._why:
                    variables.unknown(other, self._why or Unknown(line, "it may be unset here; set it once"))
                else:
                    variables.values.pop(other, None)
        elif name in ("source", ".") and not text_of(words[-1]).endswith("activate"):
            variables.spend(EACH * len(variables.values), line)
            self.sourced.append((text_of(words[1]) if words[1:] else "", line))
            for variable in list(variables.values):
                self._unsure(variable, line, "the file that is read here may set it anew; set it behind that")
        elif name == "set" and "--" in others:
            variables.positional = Unknown(line, "set gives it here; write the arguments out")
        elif name == "eval":
            self._inner(words[1:], line, variables.values)
        else:
            for n, word in enumerate(words[:-2]):
                if text_of(word).rpartition("/")[2] in ("bash", "sh") and re.fullmatch("-[a-z]*c", others[n]):
                    variables.spend(EACH * len(self._exported), line)
                    exported = {name: variables.values[name] for name in self._exported if name in variables.values}
                    self._inner(words[n + 2 : n + 3], line, exported)
                    return
            self.commands.append(ShellCommand(tuple(words), line, self._why))

    def _unsure(self, name: str, line: int, why: str) -> None:
        self._variables.unknown(name, Unknown(line, why))

    def _inner(self, words: Iterable[Word], line: int, values: dict[str, tuple[tuple[Word, ...], bool]]) -> None:
        """Reads words as a script of its own, which knows some variables."""
        if self._depth >= DEEPEST:
            raise unread(line, "scripts within scripts are too deep", "write the command out")
        parts, unknown = list[str](), list[WordPiece]()
        for word in words:
            for piece in word:
                parts.append(piece.text if piece.unknown is None else f"$\0{len(unknown)}\0")
                unknown += [] if piece.unknown is None else [piece]
            parts.append(" ")
        inner, variables = Script(""), Variables(values, self._variables.budget)
        inner._variables = variables
        inner._read(ShellText("".join(parts), variables, line, unknown, self._depth + 1), self._depth + 1, self._why)
        self.commands += inner.commands
        self.sourced += inner.sourced

    def _keyword(self, word: str, line: int) -> None:
        """Reads what is behind a word of the language."""
        text = self._text
        if word in ("fi", "done", "esac", "}"):
            if not self._within or self._within[-1][1] != word:
                raise unread(line, f"{word} ends nothing", "mend the script")
            self._within.pop()
        elif word in _OPENS:
            self._within.append((word, _OPENS[word], line))
            if word in ("for", "select"):
                text.next(BLANK)
                if name := text.next(_NAME):
                    self._unsure(name[0], line, "a loop sets it; write the run out for one of its values")
            elif word == "case":
                text.next(BLANK)
                text.words()
                text.next(SPACE)
                if not text.next(re.compile("in")):
                    raise unread(line, "case has no in", "mend the script")
                self._pattern()
        elif word == "function":
            text.next(_FUNCTION)
            self._function(line)
        elif word == "[[" and not text.next(_TEST):
            raise unread(line, "[[ doesn't end", "end it with ]]")

    def _function(self, line: int) -> None:
        self._text.next(SPACE)
        opens = self._text.next(re.compile(r"[{(]"))
        if opens is None:
            raise unread(line, "a function has no body in braces", "mend the script")
        self._within.append(("function", "}" if opens[0] == "{" else ")", line))

    def _parenthesis(self, words: list[Word]) -> bool:
        """Reads a parenthesis; returns whether the command goes on behind it."""
        text, line = self._text, self._text.line
        if text.next(re.compile(r"\)")):
            if not self._within or self._within[-1][1] != ")":
                raise unread(line, "a parenthesis ends that didn't begin", "put quotes around what isn't the shell's")
            self._within.pop()
            return False
        if len(words) == 1 and text.next(re.compile(r"\(\s*\)")):
            words.clear()
            self._function(line)
        elif words:
            raise unread(line, "a parenthesis is in the midst of a command", "put quotes around it")
        elif text.text.startswith("((", text.at):
            begin, text.at = text.at, text.behind_parentheses(text.at)
            for match in _COUNTED.finditer(text.text, begin, text.at):
                self._unsure(match[1], line, "it is reckoned here; write the number out")
        else:
            text.at += 1
            self._within.append(("(", ")", line))
        return True

    def _pattern(self) -> None:
        """Reads up to the end of a pattern of a case, if one follows."""
        if self._within and self._within[-1][0] == "case":
            self._text.next(SPACE)
            line = self._text.line
            if not re.compile(r"esac\b").match(self._text.text, self._text.at) and not self._text.next(_PATTERN):
                raise unread(line, "a pattern of a case doesn't end", "end it with )")

    @property
    def _why(self) -> Unknown | None:
        """Returns what decides whether the command at hand runs; None: it does."""
        for word, _, line in self._within:
            if word not in "{(":
                what = _FOLLOWED.get(word, f"a loop ({word})")
                why = f"{what} that begins here decides it, and isn't followed; write it out, outside of it"
                return Unknown(line, why, True)
        return self._outer

    def _assigned(self, match: re.Match[str]) -> _Assigned:
        name, text, line = match[1], self._text, self._text.line
        if match[2]:
            text.value()
            unknown = Unknown(line, "an element is set by its number; write the array out")
            return _Assigned(name, ((WordPiece(f"${name}", line, unknown),),))
        if not match[4]:
            return _Assigned(name, (text.value(),), more=bool(match[3]))
        elements: list[Word] = []
        while True:
            text.next(SPACE)
            begin = text.at
            if begin >= len(text.text):
                raise unread(line, "the array that begins in it doesn't end", "end it with )")
            if text.next(re.compile(r"\)")):
                return _Assigned(name, tuple(elements), True, bool(match[3]))
            elements += (kept(word, line) for word in text.words())
            if text.at == begin:
                raise unread(text.line, f"{text.text[begin]} is in an array", "put quotes around it")

    def _redirected(self, operator: str) -> None:
        text = self._text
        text.next(BLANK)
        begin = text.at
        text.words()
        if "<<" in operator and "<<<" not in operator:
            self._documents.append((text.text[begin : text.at].strip("'\"\\"), operator.endswith("-")))

    def _skip_documents(self) -> None:
        """Skips the documents that the commands of the line before take in."""
        text = self._text
        for word, tabs in self._documents:
            line = text.line
            tab = r"\t*" if tabs else ""
            match = re.compile(f"^{tab}{re.escape(word)}$", re.MULTILINE).search(text.text, text.at)
            if match is None:
                raise unread(line - 1, f"the text up to {word} doesn't end", f"end it with {word}")
            text.at = min(match.end() + 1, len(text.text))
        self._documents.clear()
