"""Whose word it takes to import and call a model function: the caller's, not a plan file's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alpa_dejavu.layers.models import transformer_size
from alpa_dejavu.problem import Plan


def trusted_model(
    plan: Plan, model: str | Callable[..., Any] | None = None, trust_model: bool = False
) -> str | Callable[..., Any]:
    """Returns the model that the caller gives, or else the one that a plan names, if that may be trusted.

    A plan file may come from anyone, and a `module:function` in it would be imported and called: it is only returned if
    the caller trusts it. Known models' names, and a transformer's sizes, are always trusted, since they stand for
    functions of this package.

    Args:
        plan: the plan whose model is wanted.
        model: the model that the caller gives, by a name or as a function; None: the plan's is taken.
        trust_model: whether a function that the plan names may be imported and called.

    Raises:
        ValueError: neither the caller nor the plan names a model, or the plan names a function that isn't trusted.
    """
    if model:
        return model
    if not plan.model:
        raise ValueError("the plan doesn't name its model; give --model, a name or 'module:function'")
    if ":" in plan.model and transformer_size(plan.model) is None and not trust_model:
        raise ValueError(
            f"model is {plan.model!r} in the plan's file, but must be a known model's name: code that a file names "
            "isn't run; if you know that function, give it by --model, or trust the file's by --trust-model "
            "(trust_model=True)"
        )
    return plan.model
