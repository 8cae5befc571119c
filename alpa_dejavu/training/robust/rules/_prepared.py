"""A rule after preparations: what is done to the replicas' gradients before they are put into one."""

from __future__ import annotations

import dataclasses
from typing import Any, final

from alpa_dejavu.training.robust.before import Preparation
from alpa_dejavu.training.robust.rules._base import Aggregated, Evidence, Rule

__all__ = ["Prepared"]


@final
@dataclasses.dataclass(frozen=True)
class Prepared(Rule):
    """A rule for gradients that are prepared first, such as by momentum of each replica.

    Attributes:
        rule: the rule.
        before: the preparations, in their order; its weights are of prepared gradients, so of buckets after bucketing.
    """

    rule: Rule
    before: tuple[Preparation, ...]

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        """Returns the rule's gradient of the prepared ones."""
        states, own = (None,) * len(self.before) if state is None else state[:-1], None if state is None else state[-1]
        after = []
        for preparation, known in zip(self.before, states, strict=True):
            gradients, new = preparation.prepare(gradients, known)
            after.append(new)
        made = self.rule.aggregate(gradients, own, evidence)
        return made._replace(state=(*after, made.state), distances=None)  # theirs are of prepared gradients
