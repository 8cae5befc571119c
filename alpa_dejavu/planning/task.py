"""A planning task: all that a plan follows from, whoever asks for it."""

from __future__ import annotations

import abc
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from alpa_dejavu.calibration import Prices
from alpa_dejavu.clusters.host_classes import kinds_of
from alpa_dejavu.clusters.offload_choices import leanest, with_offload
from alpa_dejavu.clusters.space import PLAIN_CHOICES, DivisionChoices, fitting, on_sites, search_space
from alpa_dejavu.costs.memory_margin import UNMEASURED, MemoryMargin
from alpa_dejavu.planning.search.models.model_source import ModelSource
from alpa_dejavu.planning.search.restriction import Restriction
from alpa_dejavu.problem import Cluster, Plan, PricedBy, SearchSpace, StageChoice
from alpa_dejavu.slicing import Dynamic, Slicer

if TYPE_CHECKING:
    from alpa_dejavu.calibration.history import Correction, PastRun
    from alpa_dejavu.planning.search._candidate import Candidate
    from alpa_dejavu.planning.search.uncertainty import Errors

OBJECTIVES = ("time", "price", "pareto")
"""The figures that a plan may be the best in."""


class StageSpace(abc.ABC):
    """A rule for which submeshes and configs (logical mesh, remat, ZeRO) stages may have, on any part of a cluster."""

    @abc.abstractmethod
    def space(self, cluster: Cluster, micro_batch: int) -> SearchSpace:
        """Returns the submeshes and configs for micro-batches of so many samples; NoPlanError if there are none."""

    def restricted(self, space: SearchSpace, cluster: Cluster, micro_batch: int) -> SearchSpace:
        """Returns what this rule leaves of a search space that was made of its own by adding configs."""
        return space


@final
@dataclasses.dataclass(frozen=True)
class SpaceRules(StageSpace):
    """A rule by which stages may have every submesh of a kind, in every split into data and tensor parallelism."""

    # "power_of_two" (1, 2, 4 ... devices of a host, or a number that divides its own, then 1, 2, 4 ... hosts),
    # "small_power_of_two" (at most 4 hosts) or "all".
    submeshes: str = "power_of_two"
    remat: tuple[str, ...] = ("none", "layer")  # the choices of rematerialisation that stages have
    zero: tuple[int, ...] = (0, 2, 3)  # the ZeRO levels that stages may have, among 0, 2 and 3
    imbalance: float = math.inf  # Alpa's `stage_imbalance_tolerance`; infinite allows everything
    offload: str = "none"  # where stages may offload what they keep: "none", "cpu", "nvme" or "auto"
    replicas: int = 1  # the least number of data-parallel replicas of each stage, as robust training needs them
    restriction: Restriction | None = None  # what the framework that runs the plan can run; None: anything
    # Whether stages have only what keeps least on devices, and may offload any quarters of that: for what doesn't fit
    # where whole kinds of tensors are offloaded.
    lean: bool = False
    divisions: DivisionChoices = PLAIN_CHOICES  # how devices divide a model beside its batch

    def space(self, cluster: Cluster, micro_batch: int) -> SearchSpace:
        """Returns the submeshes and configs for stages. Raises ValueError if stages may offload, but not enough is
        known of a host, and NoPlanError if no stage can have so many replicas, or be divided so.
        """
        rules = self.submeshes, self.remat, self.zero, self.imbalance, self.replicas, self.divisions
        space = search_space(cluster, micro_batch, *rules)
        if self.lean:
            space = leanest(self.restricted(space, cluster, micro_batch), cluster, self.offload)
        else:
            space = with_offload(space, cluster, self.offload)
        return self.restricted(space, cluster, micro_batch)

    def restricted(self, space: SearchSpace, cluster: Cluster, micro_batch: int) -> SearchSpace:
        """Returns what the restriction leaves of a search space."""
        return space if self.restriction is None else self.restriction.of(space, cluster, micro_batch)


@final
@dataclasses.dataclass(frozen=True)
class GivenSpace(StageSpace):
    """A rule by which stages have the submeshes and configs that somebody, such as Alpa, gives for a whole cluster."""

    given: SearchSpace  # the submeshes, which may be on any hosts, with their configs
    by_kinds: bool = True  # whether a submesh is listed once for each choice of unlike hosts that it may be on

    def __post_init__(self) -> None:
        if self.given.hosts is not None:
            raise ValueError(
                "given_space: hosts of the space are those of one cluster, but must be None, as parts of the cluster "
                "are planned for too; give SpaceRules, or submeshes that may be on any hosts"
            )

    def space(self, cluster: Cluster, micro_batch: int) -> SearchSpace:
        """Returns those of the given submeshes, with their configs, that fit on the hosts of a part of the cluster."""
        part = fitting(self.given, cluster)
        return on_sites(part, cluster) if self.by_kinds else part


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """The candidate plans that a search, or another chooser, found for a planning task, with notes on them."""

    candidates: Sequence[Candidate]  # those worth comparing, simulated, the best by the chooser's judgement first
    notes: tuple[str, ...] = ()  # sentences that the chosen plan has to carry
    strategy: str = ""  # the name of the strategy that chose; empty: this package's own search
    runs_on_alpa: bool = True  # whether Alpa can run the plans; if not, they are estimated only
    margin: MemoryMargin | None = None  # how much memory stays free, by measured peaks; None: as the task has it
    errors: Errors | None = None  # of predictions, after stages were measured; None: none was
    measured: frozenset[StageChoice] = frozenset()  # the stages whose peaks of memory were measured


class Chooser(abc.ABC):
    """A chooser of candidate plans for a task: a search, a strategy's rules, or the stages that somebody gives."""

    @abc.abstractmethod
    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        """Returns the candidate plans for a task that are worth comparing, the best first; none if nothing fits."""

    def again(self, task: PlanningTask, candidates: Sequence[Candidate], clock: Clock) -> list[Candidate]:
        """Returns the best plans on the task's cluster, a part of that of the candidates, with as many layers as the
        first of them, at whose shape the search may begin; none if nothing fits, or stages make no plan on another
        cluster.
        """
        return []


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PlanningTask:
    """A planning task: the model, cluster, search and options that a plan follows from."""

    source: ModelSource  # the model, at any number of layers and micro-batch
    prices: Prices  # the cluster, and the latency and communication models that price stages on it
    batch: int | None  # samples of a step; None: it isn't known, and the source's model is of a micro-batch
    layers: tuple[int, ...]  # numbers of layers that may be chosen, ascending
    micro_batches: tuple[int, ...]  # numbers of micro-batches that may be chosen, ascending
    chooser: Chooser  # the search, strategy or given stages that candidates come from
    space: StageSpace = SpaceRules()  # the submeshes and configs that stages may have
    schedule: str = "1f1b"
    other_schedules: tuple[str, ...] = ()  # the names of schedules that may be chosen in its place
    slicer: Slicer = dataclasses.field(default_factory=Dynamic)
    margin: MemoryMargin = UNMEASURED  # the rule for how much of each device's memory plans leave free
    objective: str = "time"  # what the plan is to be best in: "time", "price" or "pareto" (both)
    correction: Correction | None = None  # by past runs, of predicted seconds; None: nothing corrects them
    before: Plan | None = None  # the plan that runs now, whose state stays on its hosts where it can; None: none
    priced_by: PricedBy | None = None  # the options of the planning, to be written into the plan; None: not known
    factors: tuple[float, ...] | None = None  # by which operators of each layer take longer, (L,); None: as predicted
    learned: tuple[PastRun, ...] = ()  # past runs with measured stages, by which costs are corrected
    contenders: int = 1  # so many plans that may be the best are handed over at most, the chosen one among them
    contingencies: bool = False  # whether plans are made ahead for the loss of each host

    @property
    def cluster(self) -> Cluster:
        """Returns the cluster whose hosts the plan may use, as the task's prices have it."""
        return self.prices.cluster

    @property
    def unlike(self) -> bool:
        """Returns whether the cluster's hosts are of several kinds."""
        return any(kinds_of(self.cluster))

    def on(self, cluster: Cluster) -> PlanningTask:
        """Returns the same planning task for another cluster."""
        return dataclasses.replace(self, prices=dataclasses.replace(self.prices, cluster=cluster))

    def under(self, schedule: str) -> PlanningTask:
        """Returns the same planning task with one schedule alone."""
        return dataclasses.replace(self, schedule=schedule, other_schedules=())

    def micro_batch(self, count: int) -> int:
        """Returns the samples of each micro-batch when the batch is cut into `count`; 1 if the batch isn't known."""
        return 1 if self.batch is None else self.batch // count


@final
class Clock:
    """A stopwatch that adds up the seconds, by `now_s`, that each named step of the planning took."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._now_s = now_s
        self._last = now_s()

    def lap(self, name: str) -> None:
        """Adds the seconds since the last lap to the named step of the planning."""
        now = self._now_s()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
