"""Attackers who know the rule, and who choose what hurts it most; and which replicas are wrong."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu.training.robust._arrays import norms
from alpa_dejavu.training.robust.attacks._base import Attack, right_mean
from alpa_dejavu.training.robust.rules import Rule

__all__ = ["Tuned", "wrong_replicas"]


@final
@dataclasses.dataclass(frozen=True)
class Tuned(Attack):
    """In each step an attack has the strength at which a rule's result is the farthest from the right ones' mean.

    The attackers know the rule's settings, but not its state: it is tried as in its first step.

    Attributes:
        attack: an attack with a `strength`.
        rule: the rule that is attacked; one that needs no evidence.
        strengths: what is tried.
    """

    attack: Any
    rule: Rule
    strengths: tuple[float, ...] = (0.1, 0.3, 0.6, 1.0, 1.5, 3.0, 10.0, 100.0)

    def send(self, gradients: Any, wrong: Any, key: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the gradients with the worst ones."""
        right = right_mean(gradients, wrong)

        def tried(strength: Any) -> Any:
            sent, _ = dataclasses.replace(self.attack, strength=strength).send(gradients, wrong, key)
            made = self.rule.aggregate(sent).gradient
            return norms(jax.tree_util.tree_map(lambda x, y: (x - y)[None], made, right))[0]

        strengths = jnp.asarray(self.strengths)
        harm = jax.lax.map(tried, strengths)
        worst = dataclasses.replace(self.attack, strength=strengths[jnp.argmax(harm)])
        return worst.send(gradients, wrong, key)[0], ()


def wrong_replicas(replicas: int, wrong: int, share_of_steps: float = 1.0, key: Any = None) -> Any:
    """Returns which replicas are wrong in a step, shape [N]: the first ones, in all steps or in a share of them.

    Args:
        replicas: how many there are.
        wrong: how many of them may be wrong.
        share_of_steps: the chance that a wrong one is wrong in this step.
        key: a jax random key of the step; None: where they always are.

    Raises:
        ValueError: more are wrong than there are.
    """
    if not 0 <= wrong <= replicas:
        raise ValueError(f"wrong is {wrong}, but must be of 0..{replicas}; there are {replicas} replicas")
    chosen = jnp.arange(replicas) < wrong
    return chosen if key is None else chosen & (jax.random.uniform(key, (replicas,)) < share_of_steps)
