"""How many replicas a rule needs so that a number of wrong ones does no harm."""

from __future__ import annotations

import itertools

from alpa_dejavu.training.robust.rules import RULES, Evidence, ZenoPlusPlus, rule
from alpa_dejavu.training.robust.rules._coordinates import Mean

__all__ = ["replicas_to_tolerate"]


def replicas_to_tolerate(name: str, wrong: int) -> int:
    """Returns the least number of replicas with which a rule tolerates so many wrong ones.

    A rule that takes the number of wrong replicas says itself how many it needs. Of the others, Zeno++ judges each
    gradient by itself and needs one right replica; medians, clipping and signs need a majority.

    Args:
        name: the name of a rule, one of `RULES`.
        wrong: how many replicas may be wrong.

    Raises:
        ValueError: there is no such rule, or it tolerates no wrong replica.

    >>> replicas_to_tolerate("krum", 1), replicas_to_tolerate("suspicion", 1), replicas_to_tolerate("median", 2)
    (5, 3, 5)
    """
    import jax
    import jax.numpy as jnp

    usual = rule(name)
    if wrong == 0:
        return 1
    if isinstance(usual, Mean):
        raise ValueError(f"rule is {name!r}, but must tolerate {wrong} wrong replicas, and a mean none; choose one of "
                         f"{', '.join(repr(each) for each in RULES if each != name)}")  # fmt: skip
    if isinstance(usual, ZenoPlusPlus):
        return wrong + 1
    if not hasattr(usual, "wrong"):
        return 2 * wrong + 1
    for count in itertools.count(wrong + 1):
        gradients = {"all": jnp.zeros((count, 1))}
        evidence = Evidence(jnp.zeros(count), {"all": jnp.zeros(1)})
        try:
            jax.eval_shape(lambda one, beside: rule(name, wrong=wrong).aggregate(one, None, beside).gradient,
                           gradients, evidence)  # fmt: skip
        except ValueError:
            continue
        return count
    raise AssertionError("a rule takes any number of replicas above some")
