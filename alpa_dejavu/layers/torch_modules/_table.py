"""The table from ATen's operators to jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alpa_dejavu.layers.torch_modules._arrays import COPIES, MAKING, VIEWS
from alpa_dejavu.layers.torch_modules._elementwise import ELEMENTWISE
from alpa_dejavu.layers.torch_modules._products import EVENLY, PRODUCTS
from alpa_dejavu.layers.torch_modules._reductions import REDUCTIONS

OPERATORS: dict[str, Callable[..., Any]] = {**ELEMENTWISE, **MAKING, **VIEWS, **COPIES, **PRODUCTS, **REDUCTIONS}
"""The function of each operator, by its name without its overload and without the underscore of what is in place."""
PLANNED: dict[str, Callable[..., Any]] = {**OPERATORS, **EVENLY}
"""The same, but what depends on how tokens are routed takes them to be spread evenly."""
