"""Fresh variables for Alpa's jaxpr rewriting.

`jax.core.gensym` used to take the jaxprs whose names a new variable must not repeat. It now takes a suffix for the
printed name, and variables are told apart by themselves. Alpa's call still runs, but every variable that it makes
carries a list of whole jaxprs as its suffix, and printing one variable prints all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch

_MODULES = (
    "alpa.util",
    "alpa.shard_parallel.compile_executable",
    "alpa.pipeline_parallel.layer_construction",
    "alpa.pipeline_parallel.computation",
    "alpa.pipeline_parallel.compile_executable",
    "alpa.pipeline_parallel.stage_profiling",
    "alpa.pipeline_parallel.local_pipeline",
)


def _without_jaxprs(gensym: Callable[[], Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """`gensym` with the jaxprs that Alpa passes left out: variables of today's jax never collide."""

    @functools.wraps(gensym)
    def fresh_variables(jaxprs: Sequence[Any] = ()) -> Callable[..., Any]:
        del jaxprs
        return gensym()

    return fresh_variables


def _replace_gensym(module: ModuleType) -> None:
    module.gensym = _without_jaxprs(module.gensym)  # type: ignore[attr-defined]


PATCHES: tuple[Patch, ...] = tuple(
    Patch(
        module=name,
        reason=f"`gensym` of {name} takes jaxprs, where stock jax takes a printed suffix",
        apply=_replace_gensym,
        expects={"gensym": ("suffix",)},
    )
    for name in _MODULES
)
