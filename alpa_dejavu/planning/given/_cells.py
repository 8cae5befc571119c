"""A cell of a comparison: the plan for one cluster and one saving in figures, or why there is none."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Annotated, Any, final

from typing_extensions import TypedDict

from alpa_dejavu._util.dataclass_format import Needed, Stored
from alpa_dejavu._util.format_fields import (
    Bytes,
    Count,
    Names,
    NotNegative,
    Price,
    Seconds,
    SecondsAboveZero,
    Share,
    Text,
    Words,
    listed,
    stated,
)
from alpa_dejavu.planning.given.footing import by_ground, footings
from alpa_dejavu.planning.given.whole_run import WholeRun, whole_run
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.plans.stage_rows import parallelism_text
from alpa_dejavu.problem import ZERO_NAMES, Plan


@final
@dataclasses.dataclass(frozen=True)
class Saving:
    """A way by which stages may keep less in memory; a plan goes it only in stages where that pays."""

    name: str
    remat: tuple[str, ...] = ("none", "layer")  # `remat`, `zero` and `offload` as `plan_model` takes them
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


class SavingData(TypedDict):
    """A way to keep less in memory, with the options of `alpa-dejavu plan` that allow it, as files have it."""

    name: Text
    flags: Words


def savings_data(savings: tuple[Saving, ...]) -> tuple[dict[str, str], ...]:
    """Returns ways to keep less as files have them."""
    return tuple({"name": saving.name, "flags": saving.flags} for saving in savings)


SAVINGS = (
    Saving("none", remat=("none",), zero=(0,)),
    Saving("remat", zero=(0,)),
    Saving("ZeRO", remat=("none",)),
    Saving("offload", remat=("none",), zero=(0,), offload="auto"),
    Saving("remat+ZeRO"),
)
"""No saving; each alone; and the two among which `plan` chooses by itself."""


class TrainingData(TypedDict):
    """The figures of a training of so many steps, as files have them."""

    seconds: SecondsAboveZero
    deviation_s: Annotated[Seconds | None, stated("seconds of at least 0, or null")]
    device_s: SecondsAboveZero
    price: Price


def _training_data(run: WholeRun | None) -> dict[str, Any] | None:
    return None if run is None else {name: getattr(run, name) for name in TrainingData.__annotations__}


@final
@dataclasses.dataclass(frozen=True)
class RestsOn:
    """A part of a plan's predicted work by what it rests on, of which `given.footing.Footing` says more."""

    rests_on: Text
    share: Share
    spread: NotNegative


@final
@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of a plan."""

    step_s: SecondsAboveZero  # the seconds of a step if every prediction is right
    expected_step_s: SecondsAboveZero  # of the expected step, which orders clusters, prices and trainings go by
    # The ends of its 90 % interval; None: it isn't known.
    interval_s: Annotated[
        Annotated[tuple[SecondsAboveZero, SecondsAboveZero], stated("the two ends of an interval")] | None,
        stated("the two ends of the 90 % interval, or null"),
    ]
    price: Price  # the price of a step in US dollars; None where a host's price isn't known
    memory_bytes: Bytes  # the peak of the fullest device's memory
    stages: Count
    micro_batches: Count
    uses: Names  # what its stages do to keep less: "remat", "ZeRO-1", "ZeRO-3", "offload"
    notes: Names  # what `plan` notes of it, such as hosts left idle or a dtype that a GPU has no rate for
    parallelism: Words  # its degrees of parallelism, ZeRO and recomputation, in the field's words
    ground: Words  # what predicts its seconds: a calibration, models of GPUs' kernels, data sheets, or this machine
    # The expected step of the same plan on the ground that all clusters of the order have in common; None: its own is.
    common_s: SecondsAboveZero | None
    price_from: Names  # where the hourly prices are from, as the files of the machines and clusters say it
    # footings, training: what its seconds rest on, the largest part first; and what a training takes, if asked.
    footings: Annotated[tuple[RestsOn, ...], listed("a list of what seconds rest on")]
    training: Needed[
        Annotated[
            WholeRun | None,
            Stored(TrainingData | None, write=_training_data),
            stated("an object: a training of `steps` steps, or null"),
        ]
    ] = None

    def is_same_plan(self, other: Figures) -> bool:
        """Returns whether another cluster has the same plan, as where all that it has more stays unused."""
        mine, others = ((own.step_s, own.memory_bytes, own.price or 0.0) for own in (self, other))
        close = all(itertools.starmap(math.isclose, zip(mine, others, strict=True)))
        alike = (self.parallelism, self.micro_batches) == (other.parallelism, other.micro_batches)
        return close and alike and (self.price is None) == (other.price is None)


@final
@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a comparison: one cluster with one saving, by their names."""

    cluster: Text
    saving: Text
    flags: Words  # the options of `alpa-dejavu plan` that find the same plan, beside those that all cells share
    # figures, why_not: those of the best plan; or None and why there is no plan, as `plan` says it.
    figures: Annotated[Figures | None, stated("an object: the figures of the plan, or null")]
    why_not: Needed[Words] = ""
    fits: Needed[Annotated[bool, stated("true or false")]] = True  # whether something fits, as far as was found out
    remedies: Needed[Names] = ()  # where nothing fits, the smallest changes that are enough, as flags of `plan`

    @property
    def place(self) -> tuple[str, str]:
        """Returns the names of its cluster and its saving."""
        return self.cluster, self.saving


def figures(
    planned: PlanningResult, steps: int | None, ground: str, common: PlanningResult | None, price_from: tuple[str, ...]
) -> Figures:
    """Returns the figures of a plan by a ground, and with a number of steps those of a training; `common` is the same
    plan on the ground that all clusters of the order have in common, None if that is its own.
    """
    plan, sure = planned.plan, planned.confidence
    parts = footings(planned.table, planned.space, planned.choices, planned.run)
    return Figures(
        step_s=plan.step_s,
        expected_step_s=plan.expected_s,
        interval_s=None if sure is None else sure.interval_s,
        price=planned.price_per_step,
        memory_bytes=max(stage.memory_bytes for stage in plan.stages),
        stages=len(plan.stages),
        micro_batches=plan.num_micro_batches,
        uses=_used_savings(plan),
        notes=plan.notes,
        parallelism=parallelism_text(plan),
        ground=ground,
        common_s=None if common is None else common.plan.expected_s,
        price_from=price_from,
        footings=tuple(RestsOn(*ground) for ground in by_ground(parts)),
        training=None if steps is None else whole_run(planned, steps),
    )


def _used_savings(plan: Plan) -> tuple[str, ...]:
    """Returns what a plan's stages do to keep less, once for each way."""
    stages = plan.stages
    zero = [f"ZeRO-{ZERO_NAMES[level]}" for level in sorted({stage.zero for stage in stages} - {0})]
    remat = ["remat"] if any(stage.remat != "none" for stage in stages) else []
    return (*remat, *zero, *(["offload"] if any(stage.offloaded.any for stage in stages) else []))
