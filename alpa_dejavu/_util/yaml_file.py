"""YAML files of users: text, numbers, lists and mappings alone, as JSON has them; errors name file, line and remedy."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any, TypeVar, final

import yaml

from alpa_dejavu._util import units
from alpa_dejavu._util.json_file import CheckedFile, read_text
from alpa_dejavu._util.json_text import Path

_Data = TypeVar("_Data")
_MOST_CHARACTERS, _DEEPEST, _LONGEST = 2**17, 30, 1000
"""PyYAML takes a second for so many characters; its faster reader in C ends the process where lists are deep."""
_TAG = "tag:yaml.org,2002:"
_PLAIN = {_TAG + name for name in "null bool int float str seq map".split()}


@final
class _Loader(yaml.SafeLoader):
    """A safe loader that takes 1e-3 and 1.4e9 for numbers, as JSON does, not for text."""


_EXPONENT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver(_TAG + "float", _EXPONENT, list("-+0123456789"))


def read_checked_yaml(path: pathlib.Path, kind: type[_Data], remedy: str) -> CheckedFile[_Data]:
    """Reads a YAML file, checks its data against a declared type, such as a TypedDict, and returns both. `remedy` ends
    the message of each ValueError; of all that is wrong the first is told.

    It may have what JSON has: no key twice, no key that isn't text, no tags, anchors or dates. Nothing in it is called.
    """
    return _read(path, remedy).checked(kind)


def peek_yaml(path: pathlib.Path) -> Any:
    """Returns the data of a YAML file, checked against no format; None where it can't be read."""
    try:
        return _read(path, "").data
    except ValueError:
        return None


def _read(path: pathlib.Path, remedy: str) -> CheckedFile[Any]:
    text = read_text(path, remedy)
    if len(text) > _MOST_CHARACTERS:
        wrong = f"it has {units.size(len(text))}, but must have at most {units.size(_MOST_CHARACTERS)}"
        raise ValueError(f"{path}: {wrong}; {remedy}")
    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is None:
            raise ValueError(f"{path}: the file is empty; {remedy}")
        for node, wrong in _wrong(root, set(), 0):
            raise ValueError(f"{path}, line {node.start_mark.line + 1}: {wrong}; {remedy}")
        data = _data(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        wrong = getattr(error, "problem", None) or str(error).partition("\n")[0]
        wrong = "a second document begins, but must be in a file of its own" if "another doc" in wrong else (
            f"this isn't YAML: {wrong}"
        )  # fmt: skip
        raise ValueError(f"{path}{where}: {wrong}; {remedy}") from None
    except RecursionError:
        raise ValueError(f"{path}: it has lists in lists more than {_DEEPEST} deep; {remedy}") from None
    return CheckedFile(path, text, data, remedy, lambda _, where: _line_of(root, where))


def plain_value(text: str) -> Any:
    """Returns the number, list, text or truth that a short text is in YAML; the text itself where it is none of these.

    >>> plain_value("1e-3"), plain_value("[silu, linear]"), plain_value("a: b: c")
    (0.001, ['silu', 'linear'], 'a: b: c')
    """
    try:
        root = yaml.compose(text, Loader=_Loader) if len(text) < _LONGEST else None
        return text if root is None or any(_wrong(root, set(), 0)) else _data(root)
    except (yaml.YAMLError, RecursionError):
        return text


def _data(root: yaml.Node) -> Any:
    try:
        return _Loader("").construct_document(root)
    except ValueError as error:
        raise yaml.YAMLError(str(error)) from None  # a number of thousands of digits


def _line_of(root: yaml.Node, where: Path) -> int:
    """The line, counted from 1, of a key or element; that of the nearest outer one where there is none."""
    place = value = root
    for step in where:
        entries: list[tuple[Any, Any, Any]] = []
        if isinstance(value, yaml.MappingNode):
            entries = [(key.value, key, inner) for key, inner in value.value]
        elif isinstance(value, yaml.SequenceNode):
            entries = [(n, inner, inner) for n, inner in enumerate(value.value)]
        entry = next(((at, inner) for name, at, inner in entries if name == step), None)
        if entry is None:
            break
        place, value = entry
    return int(place.start_mark.line) + 1


def _wrong(node: Any, seen: set[int], deep: int) -> Iterator[tuple[Any, str]]:
    """Yields each node that isn't as JSON has it, and why."""
    if id(node) in seen:
        yield node, "this is named by an anchor, but must be written where it is meant"
        return
    seen.add(id(node))
    if node.tag not in _PLAIN:
        yield node, f"this is {node.tag.removeprefix(_TAG)!r}, but must be text, a number, a list or a mapping"
    elif deep > _DEEPEST:
        yield node, f"this is in lists more than {_DEEPEST} deep"
    elif isinstance(node, yaml.SequenceNode):
        for element in node.value:
            yield from _wrong(element, seen, deep + 1)
    elif isinstance(node, yaml.MappingNode):
        names = set()
        for key, value in node.value:
            if key.tag != _TAG + "str":
                yield key, f"the key {key.value!r} must be text"
            elif key.value in names:
                yield key, f"the key {key.value!r} is there twice"
            names.add(str(key.value))
            yield from _wrong(value, seen, deep + 1)
