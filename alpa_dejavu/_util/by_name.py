"""Choosing an implementation by its name, or taking one that the user made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def resolve(what: str, choice: str | T, known: Mapping[str, type[T]], interface: type[T], **settings: Any) -> T:
    """Returns an instance of the implementation that a name stands for, or the given object itself if it isn't
    a name.

    Args:
        what: a noun for the messages of errors, such as "slicer".
        choice: a name, or an object.
        known: the implementing classes by name.
        interface: the class that an object must be an instance of.
        **settings: the arguments that the class of a name is called with.

    Raises:
        ValueError: the name isn't known.
        TypeError: the object doesn't implement the interface.
    """
    if isinstance(choice, str):
        if choice not in known:
            names = ", ".join(map(repr, sorted(known)))
            raise ValueError(f"there is no {what} named {choice!r}; choose one of {names}")
        return known[choice](**settings)
    if not isinstance(choice, interface):
        raise TypeError(f"{what} is {choice!r}; give a name ({', '.join(sorted(known))}) or a {interface.__name__}")
    return choice


def name_of(implementation: object, known: Mapping[str, type]) -> str:
    """Returns the name by which users choose an implementation, such as a slicer, given the classes by name.

    If the object isn't equal to what its class makes without arguments, or has no name but "auto", it is its class's
    own name.
    """
    named = [name for name, kind in known.items() if name != "auto" and kind is type(implementation)]
    return named[0] if named and implementation == known[named[0]]() else type(implementation).__name__
