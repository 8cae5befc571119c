"""The rules of a race, which say which candidates train on; each has one method, and is chosen by name.

In: the losses of all candidates so far. Out: which of them are kept.
"""

from __future__ import annotations

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.training.initialization.rules._asha import Asha, Halving
from alpa_dejavu.training.initialization.rules._base import Child, Decision, Rule, Standing
from alpa_dejavu.training.initialization.rules._evolution import Evolution
from alpa_dejavu.training.initialization.rules._optuna_pruner import OptunaPruner

__all__ = ["Asha", "Child", "Decision", "Evolution", "Halving", "OptunaPruner", "Rule", "Standing", "rule"]

KNOWN: dict[str, type[Rule]] = {"asha": Asha, "evolution": Evolution, "halving": Halving, "optuna": OptunaPruner}


def rule(choice: str | Rule) -> Rule:
    """Returns the rule (of which candidates go on) that a name stands for ("asha", "evolution", "halving", "optuna"),
    or the given rule itself.

    >>> rule("halving")
    Halving(eta=2)
    """
    return resolve("rule", choice, KNOWN, Rule)  # type: ignore[type-abstract]
