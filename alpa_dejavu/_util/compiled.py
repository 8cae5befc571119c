"""Functions that numba compiles at their first call, and keeps compiled on disk where it may write.

What is compiled is loops over arrays, which NumPy would need a call for each. Sums are made in the order in which they
are written. Until one is called, numba isn't imported; nor is it for functions that say that they `may_wait`, as long
as all their calls together have too little to do for that.

References:
    Lam, Pitrou and Seibert, Numba: A LLVM-based Python JIT compiler, LLVM-HPC 2015.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, final

_LOGGER = logging.getLogger(__name__)

Taken = ParamSpec("Taken")
Given = TypeVar("Given")
_KNOWN: list[Callable[[], object]] = []
_LITTLE = 300_000
"""Up to so many numbers in the arrays of all calls together functions that may wait are run uncompiled."""


@final
class _Uncompiled:
    """A counter of the numbers in arrays of calls that were run uncompiled."""

    numbers = 0


def compiled(
    signature: str, *helpers: Callable[..., Any], may_wait: bool = False
) -> Callable[[Callable[Taken, Given]], Callable[Taken, Given]]:
    """Returns a decorator by which numba compiles a function at its first call. The function may use arrays, numbers
    and constants of its module, and functions of its file that are named as helpers.

    Compiled code lies beside the module, or where NUMBA_CACHE_DIR or the user's cache is; where none of these can be
    written, each process compiles it anew. The signature has the types of the arguments, as numba writes them: a call
    with another kind of array raises TypeError.

    >>> @compiled("(f8[::1], i8)")
    ... def nth_power(values, n):
    ...     total = 0.0
    ...     for value in values:
    ...         total += value**n
    ...     return total
    >>> import numpy as np
    >>> nth_power(np.array([1.0, 2.0]), 3)
    9.0
    """

    def of(function: Callable[Taken, Given]) -> Callable[Taken, Given]:
        machine_code: Callable[Taken, Given] | None = None

        def ready() -> Callable[Taken, Given]:
            nonlocal machine_code
            if machine_code is None:
                machine_code = _machine_code(function, signature, helpers)
            return machine_code

        @functools.wraps(function)
        def call(*arguments: Taken.args, **named: Taken.kwargs) -> Given:
            if may_wait and machine_code is None and _is_little(arguments):
                return function(*arguments, **named)
            return ready()(*arguments, **named)

        _KNOWN.append(ready)
        return call

    return of


def _is_little(arguments: Sequence[Any]) -> bool:
    """Returns whether a call, with those before it, has so little to do that it is done before numba is imported."""
    _Uncompiled.numbers += sum(getattr(argument, "size", 1) for argument in arguments)
    return _Uncompiled.numbers <= _LITTLE and "numba" not in sys.modules


def compile_all(within_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> tuple[int, int]:
    """Compiles every function that imported modules have decorated for numba, or loads it from disk; begins with none
    once `within_s` seconds have passed by the clock. Returns how many are compiled, and how many there are.
    """
    began = clock()
    for done, ready in enumerate(_KNOWN):
        if clock() - began > within_s:
            return done, len(_KNOWN)
        ready()
    return len(_KNOWN), len(_KNOWN)


def _machine_code(
    function: Callable[Taken, Given], signature: str, helpers: Sequence[Callable[..., Any]]
) -> Callable[Taken, Given]:
    import numba
    import numba.extending

    for helper in helpers:
        numba.extending.register_jitable(helper)
    try:
        machine_code: Callable[Taken, Given] = numba.njit(signature, cache=True)(function)
    except Exception as error:
        # There is no place that it may write to, no space there, or what is kept there is broken. What is wrong with
        # the function itself is wrong once more below.
        _say_once(type(error).__name__)
        machine_code = numba.njit(signature)(function)
    return machine_code


@functools.cache
def _say_once(error: str) -> None:
    _LOGGER.warning("each process compiles anew (%s): set NUMBA_CACHE_DIR to a folder that can be written", error)
