"""The rules that make one gradient of the replicas' ones; each has one method, and is chosen by name.

In: the gradients of N replicas, [N, ...].
Out: one gradient, each replica's share in it, and the rule's state.
"""

from __future__ import annotations

from typing import Any

from alpa_dejavu._util.near_names import near
from alpa_dejavu.training.robust.rules._base import Aggregated, Evidence, Rule
from alpa_dejavu.training.robust.rules._centres import CenteredClipping, GeometricMedian
from alpa_dejavu.training.robust.rules._coordinates import Meamed, Mean, Median, Sign, TrimmedMean
from alpa_dejavu.training.robust.rules._distances import DropFarthest, Krum, MinimumDiameter, MultiKrum
from alpa_dejavu.training.robust.rules._prepared import Prepared
from alpa_dejavu.training.robust.rules._suspicion import SketchedSuspicion, Suspicion
from alpa_dejavu.training.robust.rules._zeno import Zeno, ZenoPlusPlus

__all__ = ["RULES", "Aggregated", "Evidence", "Prepared", "Rule", "Zeno", "ZenoPlusPlus", "rule"]

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

    Raises:
        ValueError: there is no rule of that name.
        TypeError: it has no such setting, or what is given isn't a rule.

    >>> rule("krum", wrong=2)
    Krum(wrong=2, neighbours=None)
    """
    if isinstance(choice, str):
        if choice not in RULES:
            known = ", ".join(map(repr, RULES))
            raise ValueError(f"there is no rule named {choice!r}{near(choice, RULES)}; choose one of {known}")
        return RULES[choice](**settings)
    if not isinstance(choice, Rule) or settings:
        raise TypeError(f"rule is {choice!r} with {settings}, but must be a name with settings or a Rule; give one")
    return choice
