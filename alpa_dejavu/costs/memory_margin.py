"""The memory beyond the analytic count that a plan must leave, so that the risk of running out is a chosen one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, TypeAlias, final

import numpy as np
from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.dataclass_format import Needed, Stored
from alpa_dejavu._util.format_fields import WHOLE, Number, listed, stated, whole
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.memory import StageMemory
from alpa_dejavu.problem import Cluster, Host, Plan, StagePlan, checks

ALPA = "Alpa"
"""The framework that plans run under."""
DEFAULT_RISK = 0.01
DEFAULT_MARGIN = 0.05
"""The share of a device's memory that is left free where nothing tells how far the count is off."""
MEMORY_PARTS = ("resident", "per_micro_batch", "temporary")
"""The kinds that `StageMemory` counts: parameters, gradients and the optimizer's state; activations; temporaries."""
_STEEPEST, _LEAST = 50.0, 1e-6
_NUM_ANGLES = 20000
_Ratios: TypeAlias = Annotated[list[Number], listed("a list of two or more logarithms", min_length=2)]
_LogRatios = TypedDict("_LogRatios", dict.fromkeys(("peak", *MEMORY_PARTS), NotRequired[_Ratios]))  # type: ignore[misc]
_KINDS = Stored(_LogRatios, read=lambda kinds: {kind: tuple(map(float, ratios)) for kind, ratios in kinds.items()})


@final
@dataclasses.dataclass(frozen=True)
class MemoryResiduals:
    """The measured peaks of memory relative to the bytes counted from tensors (the analytic count): log ratios from
    which a memory margin is estimated.

    Attributes:
        log_ratios: logarithms of measured over counted bytes by kind of memory (`MEMORY_PARTS`); under "peak", of whole
            peaks, for the kinds that have none of their own.
        num_groups: in how many independent groups, such as models or clusters, they were measured.
        origin: what was measured, for people.
        framework: the framework that ran while peaks were measured. Each keeps bytes of its own besides those
            counted, so from another one than Alpa only the spread is used, and the risk under Alpa stays unknown.

    Raises ValueError for an unknown kind, a ratio that isn't finite, fewer than two of a kind, no group, or no
    framework.
    """

    log_ratios: Annotated[
        Mapping[str, Sequence[float]],
        _KINDS,
        stated('an object of logarithms of measured over counted bytes, under "peak" or by what they are for'),
    ] = dataclasses.field(hash=False)
    num_groups: Annotated[int, whole("a whole number of at least 1", 1), WHOLE]
    origin: Needed[Annotated[str, stated("text: what was measured, and by whom")]] = ""
    framework: Needed[Annotated[str, stated("text: what ran while it was measured", min_length=1)]] = ALPA

    def __post_init__(self) -> None:
        for kind, ratios in self.log_ratios.items():
            if kind not in (*MEMORY_PARTS, "peak"):
                raise ValueError(f"memory residuals: there is no kind {kind!r}; choose among {(*MEMORY_PARTS, 'peak')}")
            if len(ratios) < 2 or not np.isfinite(ratios).all():
                raise ValueError(f"memory residuals: {kind} has {list(ratios)}, but must have two finite logarithms")
        if "peak" not in self.log_ratios and set(self.log_ratios) != set(MEMORY_PARTS):
            kinds = sorted(self.log_ratios)
            raise ValueError(
                f"memory residuals: has {kinds}, but needs each of {MEMORY_PARTS}, or 'peak' for the others"
            )
        if self.num_groups < 1:
            raise ValueError(f"memory residuals: num_groups is {self.num_groups}, but must be at least 1")
        if not self.framework:
            raise ValueError("memory residuals: framework is empty, but must name what ran while peaks were measured")

    @property
    def is_ours(self) -> bool:
        """Returns whether the memory residuals were measured under Alpa, the framework that plans run under."""
        return self.framework == ALPA

    def of(self, kind: str) -> FloatArray:
        """Returns the logarithms of measured over counted bytes for a kind of memory such as "resident", or those of
        whole peaks if the kind has none of its own.
        """
        return np.asarray(self.log_ratios.get(kind, self.log_ratios.get("peak", ())), dtype=np.float64)


@final
@dataclasses.dataclass(frozen=True)
class MemoryMargin:
    """The safety margin for memory: how the bytes counted from tensors (the analytic count) are corrected, and how much
    memory is left free for their errors.

    A stage that needs more activations than counted is taken to need more parameters and temporaries too.

    Attributes:
        risk: the probability of running out of memory that a plan may have.
        residuals: measured over counted peaks, from which the margin follows; None: nothing was measured, and the risk
            is unknown: the count is taken as it is, and `free_share` of the memory is left free.
        free_share: the share of each device's memory that is left free without residuals; None: each host's own, or
            `DEFAULT_MARGIN` where it has none.
    """

    risk: float = DEFAULT_RISK
    residuals: MemoryResiduals | None = None
    free_share: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.risk < 0.5:
            raise ValueError(f"memory: risk is {self.risk!r}, but must be above 0 and below 0.5; the default is 0.01")
        if self.free_share is not None:
            checks.share("memory", "memory_margin", self.free_share)

    def free_share_of(self, host: Host) -> float:
        """Returns the share of a host's device memory that stages whose peaks weren't measured must leave free; zero if
        the margin follows from measured residuals.
        """
        if self.residuals is not None:
            return 0.0
        chosen = host.memory_margin if self.free_share is None else self.free_share
        return DEFAULT_MARGIN if chosen is None else chosen

    def usable_bytes(self, host: Host) -> float:
        """Returns the bytes that stages may take of each of a host's devices: all but the share that is left free."""
        return host.device.memory_bytes * (1 - self.free_share_of(host))

    @property
    def is_known(self) -> bool:
        """Returns whether enough memory peaks were measured, under Alpa, to know a risk as small as the chosen one."""
        return self.residuals is not None and self.residuals.is_ours and self._fewest >= self._wanted

    def note(self, hosts: Iterable[Host] = ()) -> str:
        """Returns a sentence on the risk of running out of memory, and how it is known or guarded against."""
        if self.residuals is None:
            free = sorted({f"{100 * self.free_share_of(host):.3g} %" for host in hosts} - {"0 %"})
            return f"memory is counted, not measured: {' or '.join(free) or 'none'} of each device's is left free"
        note = f"the plan runs out of memory with a probability of at most {self.risk:.2%}"
        return note if self.is_known else f"{note}; {self._doubt}"

    @property
    def _doubt(self) -> str:
        """Why the risk isn't known, and what is done."""
        assert self.residuals is not None, "asked where something was measured"
        of, reasons = self.residuals, []
        if self._fewest < self._wanted:
            reasons.append(f"are too few to know a risk that small ({self._wanted} are needed)")
        if not of.is_ours:
            reasons.append(f"are of {of.framework}, which doesn't show what Alpa itself keeps beyond the count")
        return (
            f"{self._fewest} measured peaks in {of.num_groups} groups{f' ({of.origin})' if of.origin else ''} "
            f"{' and '.join(reasons)}, so the margin is that of Student's t with {self._freedom} degrees of freedom"
        )

    def needed(self, stage: StageMemory) -> StageMemory:
        """Returns a stage's bytes, raised from the analytic count to those that it exceeds only with the chosen risk;
        unchanged where no peak was measured.
        """
        if self.residuals is None:
            return stage
        points, more = self._tails
        at = float(np.interp(-self.risk, -more, points))
        raised = {kind: getattr(stage, kind) * float(self._factor(kind, at)) for kind in MEMORY_PARTS}
        return dataclasses.replace(stage, **raised)

    def fits(self, counted_bytes: Mapping[str, float], hosts: Iterable[Host]) -> bool:
        """Returns whether a stage of these counted bytes (by `MEMORY_PARTS`) fits, margin included, in a device of each
        host.
        """
        resident, kept, temporary = (np.array([[counted_bytes[kind]]]) for kind in MEMORY_PARTS)
        needed = self.needed(StageMemory(resident, kept, temporary))
        return bool(needed.peak(1) <= min(map(self.usable_bytes, hosts)))

    def probability(self, counted_bytes: Mapping[str, float], limit_bytes: float) -> float | None:
        """Returns the probability that a stage of these counted bytes (by `MEMORY_PARTS`) exceeds a memory limit, or
        None where no peak was measured.
        """
        if self.residuals is None:
            return None
        points, more = self._tails
        peaks = sum((counted_bytes[kind] * self._factor(kind, points) for kind in MEMORY_PARTS), np.zeros_like(points))
        return float(np.interp(limit_bytes, peaks, more))

    def _factor(self, kind: str, at: FloatArray | float) -> FloatArray:
        """Returns the factor on a kind's counted bytes that is so many standard deviations above the middle."""
        mean, spread = self._fits[kind]
        return np.asarray(np.exp(np.clip(mean + spread * np.asarray(at), -_STEEPEST, _STEEPEST)))

    @cached_property
    def _fits(self) -> dict[str, tuple[float, float]]:
        """Returns for each kind the mean logarithm of ratios, and the spread of a new one."""
        assert self.residuals is not None, "asked where something was measured"
        fits = {}
        for kind in MEMORY_PARTS:
            ratios = self.residuals.of(kind)
            if self.residuals.is_ours:
                mean, spread = float(ratios.mean()), float(ratios.std(ddof=1)) * math.sqrt(1 + 1 / len(ratios))
            else:
                mean, spread = 0.0, math.sqrt(float((ratios**2).mean()))
            fits[kind] = mean, max(spread, _LEAST)
        return fits

    @cached_property
    def _tails(self) -> tuple[FloatArray, FloatArray]:
        return _students_t(self._freedom)

    @property
    def _fewest(self) -> int:
        assert self.residuals is not None, "asked where something was measured"
        return min(len(self.residuals.of(kind)) for kind in MEMORY_PARTS)

    @property
    def _wanted(self) -> int:
        return math.ceil(1 / self.risk)

    @property
    def _freedom(self) -> int:
        """Degrees of freedom: independent groups less one, and two at most where the risk can't be known."""
        assert self.residuals is not None, "asked where something was measured"
        freedom = max(self.residuals.num_groups - 1, 1)
        return freedom if self.is_known else min(freedom, 2)


def _students_t(freedom: int) -> tuple[FloatArray, FloatArray]:
    """Points of Student's t distribution, and for each the probability of a larger value.

    With x = sqrt(freedom) tan(a) its density is cos(a)^(freedom - 1).

    >>> points, more = _students_t(2)
    >>> bool(abs(np.interp(6.9646, points, more) - 0.01) < 1e-5)
    True
    """
    angle = np.linspace(-np.pi / 2, np.pi / 2, _NUM_ANGLES + 1)[1:-1]
    below = np.cumsum(np.cos(angle) ** (freedom - 1))
    below = (below - 0.5 * np.cos(angle) ** (freedom - 1)) / below[-1]
    return np.sqrt(freedom) * np.tan(angle), 1 - below


COUNTED = MemoryMargin(free_share=0.0)
"""The analytic count as it is: for plans that are given. Those that are chosen leave a margin."""
UNMEASURED = MemoryMargin()
"""The margin that plans are chosen by where nothing was measured and nothing else is asked for."""


def counted_bytes(stages: Sequence[StagePlan]) -> dict[str, float]:
    """Returns the bytes counted on each device of a submesh by kind (`MEMORY_PARTS`), activations of all micro-batches
    in flight together; `stages` are the stages of a plan on that submesh.
    """
    resident, temporary = sum(s.resident_bytes for s in stages), max(s.temporary_bytes for s in stages)
    kept = max(stages[0].memory_bytes - resident - temporary, 0.0)
    return {"resident": resident, "per_micro_batch": kept, "temporary": temporary}


def with_memory_note(plan: Plan, margin: MemoryMargin, cluster: Cluster, measured: Collection[int] = ()) -> Plan:
    """Returns the plan with a note on what is known of its risk of running out of memory; `measured` has the numbers of
    the stages whose own peaks were measured, which the note's probability leaves out.
    """
    risks = [
        margin.probability(counted_bytes([plan.stages[m] for m in on]), plan.stages[n].memory_limit_bytes)
        for n, on in enumerate(plan.stages_on)
        if n not in measured
    ]
    known_risks = [risk for risk in risks if risk is not None]
    fullest = "this plan's fullest stage" if not measured else "the fullest of this plan's other stages"
    peaks = f"; the peaks of {len(measured)} of this plan's {len(plan.stages)} stages were measured" if measured else ""
    fullest_note = f"; {fullest} has one of {max(known_risks):.2g}" if known_risks else ""
    used = {name for stage in plan.stages for name in stage.hosts}
    note = margin.note(host for host in cluster.hosts if host.name in used)
    return dataclasses.replace(plan, notes=(*plan.notes, note + peaks + fullest_note))
