"""The interfaces of writers and readers, and targets as data: a runtime or a simulator, and what it can do."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias, final

from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning.search.runtimes import Runtime
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import Plan

if TYPE_CHECKING:
    from alpa_dejavu.planning.changed.kept import Kept

Files: TypeAlias = Mapping[str, str | bytes]
"""Files by their names, which are relative to the folder that they are written to, each with its content."""


class Writer(abc.ABC):
    """A writer of plans as files of a runtime or a simulator; `alpa_dejavu.exports.testing.check_target` checks it."""

    @abc.abstractmethod
    def write(self, plan: Plan, model: Transformer | None) -> Files:
        """Returns the files that say an allowed plan, always the same; ValueError if they can't, or lack the sizes."""

    def knowing(self, plan: Plan, kept: Kept | None) -> Writer:
        """Returns the writer that also goes by what planning has kept beside the plan, if that is of use to it."""
        return self


@final
@dataclasses.dataclass(frozen=True)
class PlainWriter(Writer):
    """A writer of files that follow from a plan and its model's sizes, by a function."""

    files: Callable[[Plan, Transformer | None], Files]

    def write(self, plan: Plan, model: Transformer | None) -> Files:
        """Returns the files."""
        return self.files(plan, model)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class CostedWriter(Writer):
    """A writer of files that follow from a plan and the costs of its model's layers."""

    files: Callable[[Plan, StageCostModel], Files]
    costs: StageCostModel | None = None  # None: the plan's model, a known one, is traced and priced afresh

    def knowing(self, plan: Plan, kept: Kept | None) -> CostedWriter:
        """Returns the writer with the costs that follow from what is kept beside the plan."""
        if kept is None:
            return self
        from alpa_dejavu.planning.changed.kept_task import kept_prices

        prices = kept_prices(plan, kept)
        return dataclasses.replace(self, costs=StageCostModel(kept.model, prices.cluster, prices.models))

    def write(self, plan: Plan, model: Transformer | None) -> Files:
        """Returns the files; of the model its layers matter, not the sizes."""
        from alpa_dejavu.planning.given.plan_estimate import PlanEstimator

        costs = self.costs or PlanEstimator(plan).estimate(plan).table.stage_costs
        assert costs is not None, "a table that was priced keeps its prices"
        return self.files(plan, costs)


@final
@dataclasses.dataclass(frozen=True)
class Foreign:
    """The plan in another runtime's configuration."""

    outline: Outline
    model: Transformer | None  # the sizes of its model; None: the configuration doesn't say them
    ignored: tuple[str, ...] = ()  # sentences, with lines, on what was left aside as it has no effect on the plan
    # How it is priced where nothing else is asked for, by the names of `PlanEstimator`'s arguments.
    priced_by: Mapping[str, str] = dataclasses.field(default_factory=dict)
    otherwise: tuple[str, ...] = ()  # sentences on what is priced otherwise than it runs, and by how much
    sequence_parallel: bool = True  # whether norms and residuals are divided, where a runtime can choose
    trained_by: str = ""  # the optimizer that the configuration names; empty: it names none


Reader: TypeAlias = Callable[..., Foreign]
"""A reader of plans from the configurations of another runtime, of which it runs nothing.

It takes a configuration's path, the number of devices that it runs on, and the sizes of its model where the caller
knows them, which win over those in the file; beside these, by name, what its target `asks` for. It raises ValueError,
with the line and what would do, where the file can't be read, contradicts itself, or asks for what isn't planned.
"""


@final
@dataclasses.dataclass(frozen=True)
class Target:
    """A runtime that plans are written for, or a simulator."""

    name: str
    release: str  # the release that its files are for
    writer: Writer
    runtime: Runtime | None = None  # what it can run; None: a simulator, which takes what its writer can write
    tried: str = "nothing was tried with the real thing"  # a sentence on what was tried with the real thing
    reader: Reader | None = None  # the reader of its configurations; None: they aren't read
    # What the reader has to know besides: "hosts", how many there are; "config", the name of one of several in a file.
    asks: tuple[str, ...] = ()
