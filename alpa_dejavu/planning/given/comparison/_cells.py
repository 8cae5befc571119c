"""A cell of a comparison: the plan for one cluster and one saving in figures, or why there is none."""

from __future__ import annotations

import collections
import dataclasses
from typing import Annotated, TypeAlias, final

from alpa_dejavu._util.dataclass_format import Needed, Stored
from alpa_dejavu._util.format_fields import (
    Bytes,
    Count,
    NotNegative,
    Seconds,
    SecondsAboveZero,
    Text,
    Words,
    listed,
    said,
)
from alpa_dejavu.planning.given.footing import footings
from alpa_dejavu.planning.given.whole_run import WholeRun, whole_run
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.problem import Plan

__all__ = ["SAVINGS", "Cell", "Figures", "RestsOn", "Saving", "figures", "used_savings"]


Names: TypeAlias = Annotated[tuple[Text, ...], listed("a list of names")]
Share: TypeAlias = Annotated[float, said("a share from 0 to 1", ge=0, le=1 + 1e-9)]
_Price: TypeAlias = Annotated[NotNegative | None, said("US dollars, or null where a host's price isn't known")]


@final
@dataclasses.dataclass(frozen=True)
class _TrainingInFile:
    """The figures in a comparison's file of a training of so many steps."""

    seconds: SecondsAboveZero
    deviation_s: Annotated[Seconds | None, said("seconds of at least 0, or null")]
    device_s: SecondsAboveZero
    price: _Price


_IN_FILES = Stored(
    _TrainingInFile | None,
    lambda run: run and _TrainingInFile(run.seconds, run.deviation_s, run.device_s, run.price),
)


@final
@dataclasses.dataclass(frozen=True)
class Saving:
    """A way by which stages may keep less in memory; a plan goes it only in stages where that pays.

    Attributes:
        name: its name.
        remat, zero, offload: the choices that stages have, as `alpa_dejavu.planning.plan_model` takes them.
    """

    name: str
    remat: tuple[str, ...] = ("none", "layer")
    zero: tuple[int, ...] = (0, 2, 3)
    offload: str = "none"

    @property
    def flags(self) -> str:
        """Returns the options of `alpa-dejavu plan` that allow it, and no other way.

        >>> Saving("none", remat=("none",), zero=(0,)).flags
        '--remat none --zero 0'
        """
        remat = [f"--remat {self.remat[0]}"] if len(self.remat) == 1 else []
        zero = [f"--zero {self.zero[0]}"] if len(self.zero) == 1 else []
        return " ".join([*remat, *zero, *([] if self.offload == "none" else [f"--offload {self.offload}"])])


SAVINGS = (
    Saving("none", remat=("none",), zero=(0,)),
    Saving("remat", zero=(0,)),
    Saving("ZeRO", remat=("none",)),
    Saving("offload", remat=("none",), zero=(0,), offload="auto"),
    Saving("remat+ZeRO"),
)
"""No saving; each alone; and the two among which `plan` chooses by itself."""


def used_savings(plan: Plan) -> tuple[str, ...]:
    """Returns what a plan's stages do to keep less, each once."""
    stages = plan.stages
    zero = [f"ZeRO-{level}" for level in sorted({stage.zero for stage in stages} - {0})]
    remat = ["remat"] if any(stage.remat != "none" for stage in stages) else []
    return (*remat, *zero, *(["offload"] if any(stage.offloaded.any for stage in stages) else []))


@final
@dataclasses.dataclass(frozen=True)
class RestsOn:
    """A part of a plan's predicted work by what it rests on.

    Attributes:
        rests_on: "measured", "fitted to" something else or "data sheet", as `given.footing.Footing` has it.
        share: its share of the stages' work.
        spread: how far off its seconds may be: the standard deviation of the logarithm of actual over predicted ones.
    """

    rests_on: Text
    share: Share
    spread: NotNegative


@final
@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of a plan.

    Attributes:
        step_s: the seconds of a step if every prediction is right.
        expected_step_s: those of the expected step, by which clusters are ordered, and prices and trainings reckoned.
        interval_s: the ends of its 90 % interval; None: it isn't known.
        price: the price of a step in US dollars; None where a host's price isn't known.
        memory_bytes: the peak of the fullest device's memory.
        stages, micro_batches: how many of them the plan has.
        uses: what its stages do to keep less: "remat", "ZeRO-2", "ZeRO-3", "offload".
        calibration: the calibration that its seconds are predicted by; empty: none, but data sheets.
        footings: what its seconds rest on, the largest part first.
        training: what a training of so many steps takes; None: it wasn't asked.
    """

    step_s: SecondsAboveZero
    expected_step_s: SecondsAboveZero
    interval_s: Annotated[
        Annotated[tuple[SecondsAboveZero, SecondsAboveZero], said("the two ends of an interval")] | None,
        said("the two ends of the 90 % interval, or null"),
    ]
    price: _Price
    memory_bytes: Bytes
    stages: Count
    micro_batches: Count
    uses: Names
    calibration: Words
    footings: Annotated[tuple[RestsOn, ...], listed("a list of what seconds rest on")]
    training: Needed[Annotated[WholeRun | None, _IN_FILES, said("an object: a training of `steps` steps, or null")]] = (
        None
    )


@final
@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a comparison: one cluster with one saving.

    Attributes:
        cluster: the cluster's name.
        saving: the saving's name.
        flags: the options of `alpa-dejavu plan` that find the same plan, beside those that all cells share.
        figures: those of the best plan; None: there is none.
        why_not: why there is no plan, as `plan` says it; empty: there is one.
        fits: whether something fits, as far as that was found out.
        remedies: where nothing fits, the smallest changes that were tried and are enough, as flags of `plan`.
    """

    cluster: Text
    saving: Text
    flags: Words
    figures: Annotated[Figures | None, said("an object: the figures of the plan, or null")]
    why_not: Needed[Words] = ""
    fits: Needed[Annotated[bool, said("true or false")]] = True
    remedies: Needed[Names] = ()

    @property
    def place(self) -> tuple[str, str]:
        """Returns the names of its cluster and its saving."""
        return self.cluster, self.saving


def figures(planned: PlanningResult, steps: int | None) -> Figures:
    """Returns the figures of a plan, and with a number of steps those of a training."""
    plan, known = planned.plan, planned.confidence
    return Figures(
        step_s=plan.step_s,
        expected_step_s=plan.expected_s,
        interval_s=None if known is None else known.interval_s,
        price=planned.price_per_step,
        memory_bytes=max(stage.memory_bytes for stage in plan.stages),
        stages=len(plan.stages),
        micro_batches=plan.num_micro_batches,
        uses=used_savings(plan),
        calibration="" if plan.priced_by is None else plan.priced_by.calibration,
        footings=_footings(planned),
        training=None if steps is None else whole_run(planned, steps),
    )


def _footings(planned: PlanningResult) -> tuple[RestsOn, ...]:
    shares, weighted = collections.defaultdict[str, float](float), collections.defaultdict[str, float](float)
    for one in footings(planned.table, planned.space, planned.choices, planned.run):
        shares[one.rests_on] += one.share
        weighted[one.rests_on] += one.share * one.spread
    largest_first = sorted(shares.items(), key=lambda one: -one[1])
    return tuple(RestsOn(name, share, weighted[name] / share) for name, share in largest_first)
