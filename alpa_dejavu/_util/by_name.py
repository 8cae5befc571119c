"""Choosing an implementation by its name, or taking one that the user made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from alpa_dejavu._util.near_names import near

T = TypeVar("T")


def resolve(what: str, choice: str | T, classes: Mapping[str, type[T]], interface: type[T], **settings: Any) -> T:
    """Returns an instance of the class, by its name among some, that a name stands for, called with the settings; or
    the given object itself. `what` is a noun for errors, such as "slicer": ValueError for an unknown name, TypeError
    for an object that isn't an instance of the interface.
    """
    if isinstance(choice, str):
        if choice not in classes:
            names = ", ".join(map(repr, sorted(classes)))
            raise ValueError(f"there is no {what} named {choice!r}; choose one of {names}{near(choice, classes)}")
        return classes[choice](**settings)
    if not isinstance(choice, interface):
        raise TypeError(f"{what} is {choice!r}; give a name ({', '.join(sorted(classes))}) or a {interface.__name__}")
    return choice


def name_of(implementation: object, classes: Mapping[str, type]) -> str:
    """Returns the name of an implementation that is as its class makes it, or else the name of its class."""
    named = [name for name, kind in classes.items() if name != "auto" and kind is type(implementation)]
    return named[0] if named and implementation == classes[named[0]]() else type(implementation).__name__
