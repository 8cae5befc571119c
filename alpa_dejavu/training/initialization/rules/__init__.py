"""The rules of a race, which say which candidates train on; each has one method, and is chosen by name.

In: the losses of all candidates so far. Out: which of them are kept.
"""

from __future__ import annotations

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.training.initialization.rules._asha import Asha, Halving
from alpa_dejavu.training.initialization.rules._base import Child, Decision, Rule, Standing
from alpa_dejavu.training.initialization.rules._evolution import Evolution
from alpa_dejavu.training.initialization.rules._optuna_pruner import OptunaPruner
from alpa_dejavu.training.initialization.rules._population import Population

__all__ = [
    "Asha", "Child", "Decision", "Evolution", "Halving", "OptunaPruner", "Population", "Rule", "Standing", "rule",
]  # fmt: skip

KNOWN: dict[str, type[Rule]] = {
    "asha": Asha,
    "evolution": Evolution,
    "halving": Halving,
    "optuna": OptunaPruner,
    "population": Population,
}


def rule(choice: str | Rule) -> Rule:
    """Returns the rule (of which candidates go on) that a name in `KNOWN` stands for, or the given rule itself.

    >>> rule("halving")
    Halving(eta=2)
    """
    return resolve("rule", choice, KNOWN, Rule)  # type: ignore[type-abstract]
