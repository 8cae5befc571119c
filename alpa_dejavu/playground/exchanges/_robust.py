"""Rules for wrong gradients where a server puts those of its workers into one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alpa_dejavu.playground._gradient import Gradient, Vector
from alpa_dejavu.playground.exchanges._collectives import mean_gradient

if TYPE_CHECKING:
    from alpa_dejavu.training.robust import Rule

__all__ = ["check_count", "combined"]

_NEED_SAMPLES = ("zeno", "zeno++")


def combined(name: str, wrong: int) -> Callable[[Sequence[Gradient]], Vector]:
    """Returns what makes one gradient of the workers' ones: a rule of `alpa_dejavu.training.robust`, or their mean.

    Raises:
        ValueError: there is no such rule, it needs samples of its own, or it doesn't take a number of wrong workers.
    """
    if name == "mean" and not wrong:
        return mean_gradient
    chosen = _chosen(name, wrong)
    kept: dict[str, Any] = {"state": None, "count": 0}

    def combine(gradients: Sequence[Gradient]) -> Vector:
        import jax

        vectors = [gradient.values for gradient in gradients]
        if vectors[0].size == 0:  # time alone
            return vectors[0]
        if "program" not in kept:
            kept["program"] = jax.jit(chosen.aggregate)
        if kept["count"] != len(vectors):  # workers came or went
            kept.update(state=None, count=len(vectors))
        made = kept["program"](np.stack(vectors), kept["state"])
        kept["state"] = made.state
        return np.asarray(made.gradient)

    return combine


def check_count(name: str, wrong: int, count: int) -> None:
    """Raises ValueError where a rule needs more workers than there are."""
    if name != "mean":
        import jax

        chosen = _chosen(name, wrong)
        jax.eval_shape(lambda one: chosen.aggregate(one).gradient, jax.ShapeDtypeStruct((count, 1), np.float32))


def _chosen(name: str, wrong: int) -> Rule:
    from alpa_dejavu.training.robust import RULES, rule

    if name in _NEED_SAMPLES:
        raise ValueError(f"server: rule is {name!r}, but must be one without fresh samples; choose suspicion or krum")
    takes = name in RULES and "wrong" in {field.name for field in dataclasses.fields(RULES[name])}  # type: ignore[arg-type]
    if wrong and name in RULES and not takes:
        raise ValueError(f"server: wrong is {wrong}, but must be 0 for the rule {name!r}; leave it out")
    return rule(name, wrong=wrong) if takes else rule(name)
