"""The interface of rules: the gradients of all replicas in, one gradient out."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, NamedTuple, final

from alpa_dejavu.training.robust._arrays import count
from alpa_dejavu.training.robust.before import Preparation

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from alpa_dejavu.training.robust._arrays import Each, Gradient, Gradients


class Evidence(NamedTuple):
    """Knowledge about replicas that isn't in their gradients.

    Attributes:
        descent: for each replica the loss on fresh samples less that after a step along its gradient; a constant may be
            missing that is the same for all.
        trusted: a gradient on samples that are known to be right.
    """

    descent: Each | None = None
    trusted: Gradient | None = None


class Aggregated(NamedTuple):
    """The gradient that a rule makes.

    Attributes:
        weights: each replica's share in it; equal ones where each coordinate comes from other replicas.
        distances: each replica's distance to the gradient, infinite where it isn't finite; None where the rule doesn't
            know it.
    """

    gradient: Gradient
    weights: Each
    state: PyTree
    distances: Each | None = None


class Rule(abc.ABC):
    """A way to make one gradient of those of N replicas, of whom some may be wrong.

    A replica of which a value isn't finite has no part in it, and counts as one of those that the rule takes to be
    wrong. If none is finite, the gradient is zeros. A rule's `wrong` is how many replicas may be wrong.
    """

    @abc.abstractmethod
    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
        """Returns the gradient of all replicas, of leaves [N, ...]; the state is that of the last call, and only
        some rules need evidence.

        Raises:
            ValueError: there are too few replicas, or the evidence that the rule needs is missing.
        """


def check_replicas(name: str, gradients: Gradients, wrong: int, least: int, why: str) -> int:
    """Returns the number of replicas, or raises ValueError where a rule needs more of them."""
    n = count(gradients)
    if wrong < 0:
        raise ValueError(f"{name}: wrong is {wrong}, but must be at least 0; give how many replicas may be wrong")
    if n < least:
        raise ValueError(f"{name}: replicas is {n}, but must be at least {least} ({why} with wrong = {wrong}); train "
                         "with more replicas, or take fewer for wrong")  # fmt: skip
    return n


@final
@dataclasses.dataclass(frozen=True)
class Prepared(Rule):
    """A rule for gradients that are prepared first, in some order, such as by momentum of each replica; its weights are
    of prepared gradients, so of buckets after bucketing.
    """

    rule: Rule
    before: tuple[Preparation, ...]

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
        *states, own = (None,) * (len(self.before) + 1) if state is None else state
        after = []
        for preparation, old in zip(self.before, states, strict=True):
            gradients, new = preparation.prepare(gradients, old)
            after.append(new)
        aggregated = self.rule.aggregate(gradients, own, evidence)
        return aggregated._replace(state=(*after, aggregated.state), distances=None)  # theirs are of prepared gradients
