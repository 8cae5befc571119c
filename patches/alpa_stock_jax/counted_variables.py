"""Variables of jaxprs that are made with a number of their own, as jax 0.3.22's were."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch

_MISSING = object()


def _take_a_number(module: ModuleType) -> None:
    original: Any = module.Var.__init__

    @functools.wraps(original)
    def init(self: Any, suffix: Any, aval: Any, old_aval: Any = _MISSING) -> None:
        # Three arguments are a number, a suffix and an aval; today's variables count themselves.
        if old_aval is _MISSING:
            original(self, suffix, aval)
        else:
            original(self, aval, old_aval)

    module.Var.__init__ = init


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="jax._src.core",
        reason="a variable may be given the number that jax 0.3.22 asked for",
        apply=_take_a_number,
        expects={"Var.__init__": ("self", "suffix", "aval")},
        before=True,
    ),
)
