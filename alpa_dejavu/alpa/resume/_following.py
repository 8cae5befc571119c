"""The plans that follow one another as hosts are lost and join, and memory runs out."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

from alpa_dejavu._util import units
from alpa_dejavu.clusters.changed_cluster import with_hosts, with_more_memory
from alpa_dejavu.planning.changed.replanning import Replanned, fallback, replan
from alpa_dejavu.planning.changed.state_migration import layer_state, moves
from alpa_dejavu.problem import Cluster, NoPlanError, Plan
from alpa_dejavu.problem.run import schedule_form

if TYPE_CHECKING:
    from alpa_dejavu.planning.changed.kept import Kept

_log = logging.getLogger("alpa_dejavu")
_LESS_MEMORY = 0.1
"""The share of each device's memory that the next plan must do without where one ran out of it."""
_MOST_SPARED = 0.5


@final
@dataclasses.dataclass(frozen=True)
class Following:
    """The plan of now, and what has become of the cluster since the first one."""

    first: Plan  # the plan that training began with
    kept: Kept | None  # what it was made from; None: not known, and only the first's contingencies are left
    plan: Plan  # the plan of now
    lost: tuple[str, ...] = ()  # the hosts and devices that are gone
    joined: Mapping[str, int] = dataclasses.field(default_factory=dict)  # planned with, by number of devices
    spared: float = 0.0  # the share of each device's memory that plans do without

    def without(self, gone: Sequence[str]) -> Following:
        """Returns the contingency for the first lost host, else a new plan. Raises ValueError if there is none."""
        after = dataclasses.replace(self, lost=tuple(dict.fromkeys([*self.lost, *gone])))
        if after.cluster is None and len(after.lost) == 1 and after.lost[0] in self.first.contingencies:
            return dataclasses.replace(after, plan=fallback(self.first, after.lost[0]).plan)
        return after._planned("the plan has no contingency for that")[0]

    def roomier(self) -> Following:
        """Returns what follows when memory has run out: a plan with a tenth less, or up to half if the plan stays the
        same; else this one. Raises ValueError if there is none.
        """
        after = self._sparing(self.spared + _LESS_MEMORY)
        other = after
        while other.plan.stages == self.plan.stages and other.spared + _LESS_MEMORY <= _MOST_SPARED:
            try:
                other = self._sparing(other.spared + _LESS_MEMORY)
            except ValueError:
                break
        return after if other.plan.stages == self.plan.stages else other

    def _sparing(self, share: float) -> Following:
        after = dataclasses.replace(self, spared=share)
        return after._planned("a plan with more room is another one")[0]

    def grown(self, joined: Mapping[str, int]) -> tuple[Following, float]:
        """Returns what follows when hosts have joined, and the seconds in which their training state gets there. Raises
        ValueError if there is no such plan.
        """
        left = tuple(name for name in self.lost if name not in joined and name.rpartition("/")[0] not in joined)
        after = dataclasses.replace(self, lost=left, joined={**self.joined, **joined})
        planned, planned_s = after._planned("a plan for hosts that joined is another one")
        assert planned_s.kept is not None, "it was planned anew"
        state = layer_state(planned_s.kept.model)
        form = schedule_form(self.plan.schedule)
        return planned, moves(self.plan.stages, planned_s.plan.stages, planned_s.kept.cluster, state, form=form).seconds

    @property
    def cluster(self) -> Cluster | None:
        """Returns the first plan's cluster with joined hosts and usable memory; None: unchanged, or not known."""
        if self.kept is None or not (self.joined or self.spared):
            return None
        numbers = self.kept.cluster.host_numbers
        new = {host: count for host, count in self.joined.items() if host not in numbers}
        grown = with_hosts(self.kept.cluster, new)
        return with_more_memory(grown, 1 - self.spared) if self.spared else grown

    def _planned(self, why: str) -> tuple[Following, Replanned]:
        if self.kept is None:
            raise ValueError(f"{why}; give train(kept=read_kept(...)) what the plan was made from, and it is planned "
                             "for then")  # fmt: skip
        cluster = self.cluster or (None if self.lost else self.kept.cluster)
        for replicas in range(self.kept.rules.replicas, 0, -1):
            kept = self.kept.with_replicas(replicas)
            try:
                result = replan(self.first, kept, without=list(self.lost), cluster=cluster)
            except (ValueError, RuntimeError) as error:
                if not (isinstance(error, NoPlanError) and replicas > 1):
                    raise ValueError(f"there is no plan for that: {error}") from error
            else:
                break
        # Without hosts `replan` itself takes fewer.
        least = replicas if result.kept is None else result.kept.rules.replicas
        if least < self.kept.rules.replicas:
            _log.warning("each stage has at least %s now, since there is no plan for %d",
                         units.counted(least, "replica"), self.kept.rules.replicas)  # fmt: skip
        return dataclasses.replace(self, plan=result.plan), result
