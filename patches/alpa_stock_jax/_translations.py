"""Where Alpa registers its rules for XlaBuilder: kept for whoever looks them up; stock jax lowers by MLIR rules
instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

translations: dict[Any, Callable[..., Any]] = {}


def register_translation(primitive: Any, rule: Callable[..., Any]) -> None:
    """Records a rule; the lowering that stock jax uses is registered by `primitives.py`."""
    translations[primitive] = rule
