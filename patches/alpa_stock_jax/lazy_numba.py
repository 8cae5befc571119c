"""Numba is imported when it first compiles something: a quarter of the time that a worker takes to start.

Alpa defines the two loops that cut a model into layers inside another function, so numba would compile them anew, for
about a second, each time that a step is traced. Here a loop is compiled once in a process: what it takes from the
function around it becomes its first arguments.
"""

from __future__ import annotations

import ast
import functools
import inspect
import logging
import textwrap
from collections.abc import Callable
from types import CodeType
from typing import Any

from alpa_stock_jax._patch import Patch

logger = logging.getLogger(__name__)


_OF_CODE: dict[CodeType, Callable[..., Any]] = {}


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function compiled, with the variables of functions around it as its first arguments."""
    code = function.__code__
    if code not in _OF_CODE:
        from numba import jit

        _OF_CODE[code] = jit(nopython=True)(_with_arguments(function) if code.co_freevars else function)
    return functools.partial(_OF_CODE[code], *(cell.cell_contents for cell in function.__closure__ or ()))


def _with_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(defined, ast.FunctionDef), "numba compiles functions that are defined by def"
    defined.decorator_list = []
    defined.args.args[:0] = [ast.arg(name) for name in function.__code__.co_freevars]
    module = ast.fix_missing_locations(ast.Module([defined], []))
    scope: dict[str, Any] = {}
    exec(compile(module, function.__code__.co_filename, "exec"), function.__globals__, scope)
    made: Callable[..., Any] = scope[function.__name__]
    return made


def _replace(module: Any) -> None:
    def maybe_numba_jit(func: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled by numba at its first call."""

        @functools.wraps(func)
        def compiled_once(*args: Any, **kwargs: Any) -> Any:
            if module._DISABLE_NUMBA:
                return func(*args, **kwargs)
            try:
                compiled = _compiled(func)
            except ImportError:
                logger.warning("%s runs uncompiled, which is slow: pip install numba", func.__name__)
                compiled = func
            return compiled(*args, **kwargs)

        return compiled_once

    module.maybe_numba_jit = maybe_numba_jit


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.util",
        reason="numba is imported when it first compiles something, not in every worker",
        apply=_replace,
        expects={"maybe_numba_jit": ("func",), "_DISABLE_NUMBA": None},
    ),
)
