"""Small problems by name, with data that come with installed packages.

In: a name.
Out: a `Problem`: a model, its loss, and data to train on and to judge by.
"""

from __future__ import annotations

from collections.abc import Callable

from alpa_dejavu._util.near_names import near
from alpa_dejavu.playground.job import Problem

__all__ = ["PROBLEMS", "problem", "problem_summary"]

PROBLEMS = ("digits-mlp", "digits-cnn", "digits-wide-cnn", "digits-residual", "sparse-least-squares", "text-gpt")
"""The names; a function of the same one, with underscores, makes the problem. Making it imports JAX."""


def problem(name: str) -> Problem:
    """Returns the problem of a name: one of `PROBLEMS`.

    Raises:
        ValueError: there is no problem of that name.
    """
    if name not in PROBLEMS:
        names = ", ".join(map(repr, PROBLEMS))
        raise ValueError(f"there is no problem named {name!r}{near(name, PROBLEMS)}; choose one of {names}")
    return _maker(name)()


def problem_summary(name: str) -> str:
    """Returns a line on the problem of a name, one of `PROBLEMS`.

    >>> problem_summary("digits-mlp")
    'digits by a network of 64 inputs, 32 hidden units and 10 classes'
    """
    return (_maker(name).__doc__ or "").partition("\n")[0].removeprefix("Returns ").rstrip(".")


def _maker(name: str) -> Callable[[], Problem]:
    from alpa_dejavu.playground.problems import _makers

    maker: Callable[[], Problem] = getattr(_makers, name.replace("-", "_"))
    return maker
