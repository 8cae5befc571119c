"""Objects of a class by its name with settings, as files have them: fields of the class's dataclass, checked."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from alpa_dejavu._util.format_check import WrongDataError
from alpa_dejavu._util.json_text import Path
from alpa_dejavu._util.near_names import near
from alpa_dejavu.playground.data import MOVES, SPLITS, DataMove, Split
from alpa_dejavu.playground.topology import TOPOLOGIES, Graph, Topology

__all__ = ["TOPOLOGY_WORDS", "name_and_settings", "object_named"]

T = TypeVar("T")
_WORDS: Mapping[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"), float: ("a number", "numbers"), str: ("text", "texts"),
    bool: ("true or false", "true or false"), type(None): ("null", "null"),
}  # fmt: skip
"""What one value of a type is, and several."""
TOPOLOGY_WORDS: Mapping[str, type[Topology]] = {**TOPOLOGIES, "graph": Graph}
"""For each word of a scenario the topology; `topology` has those alone that need no settings."""
_REGISTRIES: Mapping[type, Mapping[str, type]] = {Topology: TOPOLOGY_WORDS, Split: SPLITS, DataMove: MOVES}
"""Interfaces whose objects may be settings themselves, by name."""


def name_and_settings(entry: str | Mapping[str, Mapping[str, Any] | None]) -> tuple[str, Mapping[str, Any]]:
    """Returns the name of an entry of a file, and its settings.

    >>> name_and_settings("ring"), name_and_settings({"random": {"peers": 3}})
    (('ring', {}), ('random', {'peers': 3}))
    """
    if isinstance(entry, str):
        return entry, {}
    ((name, settings),) = entry.items()
    return name, settings or {}


def object_named(what: str, entry: Any, kinds: Mapping[str, type[T]], where: Path) -> T:
    """Returns the object of an entry's name with its settings.

    Args:
        what: a noun for errors, such as "exchange".
        entry: a name, or a mapping of one name to its settings.
        kinds: the classes by name, each a dataclass.
        where: the entry's place in the file, as keys and indices.

    Raises:
        WrongDataError: there is no such name or setting, or a setting has a value that it can't have.
    """
    name, settings = name_and_settings(entry)
    if name not in kinds:
        raise WrongDataError(where, f"there is no {what} {name!r}{near(name, kinds)} (known are {', '.join(kinds)})")
    kind, inside = kinds[name], (*where, name)
    known_settings = inspect.signature(kind).parameters
    for setting in settings:
        if setting not in known_settings:
            has = f"known are {', '.join(known_settings)}" if known_settings else "it has none"
            text = f"{setting!r} is no setting of {name!r}{near(setting, known_settings)} ({has})"
            raise WrongDataError((*inside, setting), text)
    hints = typing.get_type_hints(kind)
    given = {key: _value(value, hints[key], (*inside, key)) for key, value in settings.items()}
    for setting, parameter in known_settings.items():
        if parameter.default is inspect.Parameter.empty and setting not in given:
            raise WrongDataError(where, f"{name!r} lacks the setting {setting!r}")
    try:
        return kind(**given)
    except ValueError as error:
        raise WrongDataError(where, str(error)) from None


def _value(value: Any, hint: Any, where: Path) -> Any:
    """Returns a setting's value as its field has it: a list becomes a tuple, a name of an interface's an object."""
    for interface in typing.get_args(hint) or (hint,):
        if interface in _REGISTRIES and isinstance(value, (str, Mapping)):
            if isinstance(value, Mapping) and len(value) != 1:
                raise WrongDataError(where, f"{where[-1]} is {json.dumps(value)}, but must be one name with settings")
            return object_named(str(where[-1]), value, _REGISTRIES[interface], where)
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError:
        raise WrongDataError(where, f"{where[-1]} is {json.dumps(value)}, but must be {_words(hint)}") from None


def _words(hint: Any, many: bool = False) -> str:
    """Returns in words what a value of a type is, or what several are.

    >>> _words(tuple[int, int]), _words(float | None)
    ('a list of 2 whole numbers', 'a number, or null')
    """
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        count = "" if Ellipsis in parts else f"{len(parts)} "
        return f"{'lists' if many else 'a list'} of {count}{_words(parts[0], many=True)}"
    if parts:
        return ", or ".join(_words(part, many) for part in parts)
    single, several = _WORDS.get(hint, (f"a {hint.__name__.lower()}", f"{hint.__name__.lower()}s"))
    return several if many else single
