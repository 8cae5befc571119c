"""Numba is imported when it first compiles something: a quarter of the time that a worker takes to start."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from alpa_stock_jax._patch import Patch

logger = logging.getLogger(__name__)


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        from numba import jit
    except ImportError:
        logger.warning("%s runs uncompiled, which is slow: pip install numba", function.__name__)
        return function
    return jit(nopython=True)(function)


def _replace(module: Any) -> None:
    def maybe_numba_jit(func: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled by numba at its first call."""
        compiled = functools.cache(lambda: _compile(func))

        @functools.wraps(func)
        def compiled_once(*args: Any, **kwargs: Any) -> Any:
            return (func if module._DISABLE_NUMBA else compiled())(*args, **kwargs)

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
