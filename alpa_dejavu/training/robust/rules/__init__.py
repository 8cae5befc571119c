"""The rules that make one gradient of the replicas' ones; each has one method, and is chosen by name.

In: the gradients of N replicas, [N, ...].
Out: one gradient, each replica's share in it, and the rule's state.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.training.robust.rules._base import Aggregated, Evidence, Prepared, Rule
from alpa_dejavu.training.robust.rules._centres import (
    CenteredClipping,
    GeometricMedian,
    Meamed,
    Mean,
    Median,
    Sign,
    SketchedSuspicion,
    Suspicion,
    TrimmedMean,
)
from alpa_dejavu.training.robust.rules._distances import (
    DropFarthest,
    Krum,
    MinimumDiameter,
    MultiKrum,
    Zeno,
    ZenoPlusPlus,
)

__all__ = [
    "RULES", "Aggregated", "Evidence", "Prepared", "Rule", "Zeno", "ZenoPlusPlus", "replicas_to_tolerate", "rule",
]  # fmt: skip

RULES: dict[str, type[Rule]] = {
    "mean": Mean,
    "sketched-suspicion": SketchedSuspicion,
    "suspicion": Suspicion,
    "zeno": Zeno,
    "zeno++": ZenoPlusPlus,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "trimmed-mean": TrimmedMean,
    "median": Median,
    "geometric-median": GeometricMedian,
    "meamed": Meamed,
    "centered-clipping": CenteredClipping,
    "mda": MinimumDiameter,
    "drop-farthest": DropFarthest,
    "sign": Sign,
}
"""The rules by name, frozen dataclasses."""


def rule(choice: str | Rule, **settings: Any) -> Rule:
    """Returns the rule of a name of `RULES` with settings, or the given one.

    >>> rule("krum", wrong=2)
    Krum(wrong=2, neighbours=None)
    """
    if settings and not isinstance(choice, str):
        raise TypeError(f"rule is {choice!r} with {settings}, but must be a name with settings or a Rule; give one")
    return resolve("rule", choice, RULES, Rule, **settings)  # type: ignore[type-abstract]


def replicas_to_tolerate(name: str, wrong: int) -> int:
    """Returns the least number of replicas with which a rule tolerates so many wrong ones.

    A rule that takes the number of wrong replicas says itself how many it needs. Of the others, Zeno++ judges each
    gradient by itself and needs one right replica; medians, clipping and signs need a majority.

    Raises:
        ValueError: there is no such rule, or it tolerates no wrong replica.

    >>> replicas_to_tolerate("krum", 1), replicas_to_tolerate("suspicion", 1), replicas_to_tolerate("median", 2)
    (5, 3, 5)
    """
    usual = rule(name)
    if wrong == 0:
        return 1
    if isinstance(usual, Mean):
        raise ValueError(f"rule is {name!r}, but must tolerate {wrong} wrong replicas, and a mean none; choose one of "
                         f"{', '.join(repr(other) for other in RULES if other != name)}")  # fmt: skip
    if isinstance(usual, ZenoPlusPlus):
        return wrong + 1
    if not hasattr(usual, "wrong"):
        return 2 * wrong + 1
    for count in itertools.count(wrong + 1):
        gradients = {"all": jnp.zeros((count, 1))}
        evidence = Evidence(jnp.zeros(count), {"all": jnp.zeros(1)})
        try:
            jax.eval_shape(lambda rows, beside: rule(name, wrong=wrong).aggregate(rows, None, beside).gradient,
                           gradients, evidence)  # fmt: skip
        except ValueError:
            continue
        return count
    raise AssertionError("a rule takes any number of replicas above some")
