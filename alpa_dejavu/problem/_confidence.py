"""How sure a planner is of its plan, seconds drawn at random, and the options that a plan was priced by."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal, TypeAlias, final

from alpa_dejavu._util import units
from alpa_dejavu._util.dataclass_format import Needed, Rare, Stored, chosen
from alpa_dejavu._util.format_fields import NotNegative, Seconds, SecondsAboveZero, Size, Words, listed, stated, whole
from alpa_dejavu.problem import checks
from alpa_dejavu.problem._mesh import Remat, Zero


@final
@dataclasses.dataclass(frozen=True)
class Confidence:
    """The confidence in a chosen plan, from drawing the costs of all candidate plans at random many times, jointly.

    Attributes:
        probability: the chance that the plan's step takes at most 5 % longer than that of the best of the `candidates`;
            plans that the search didn't look at aren't considered.
        expected_step_s: the middle (geometric mean) of the step over draws for this plan by itself, in which now one
            stage and now another is the slowest.
        candidates: how many plans were compared, the chosen one among them.
        compared: the candidates' numbers of layers, micro-batches, stages and hosts in a few words; empty: not told.
        deviation_s: the standard deviation of the step in seconds over these draws; 0: not told.

    Raises ValueError for a probability outside of 0..1, counts below one, and seconds that aren't finite and positive.
    """

    probability: Annotated[float, stated("a number from 0 to 1", ge=0, le=1)]
    expected_step_s: SecondsAboveZero
    interval_s: Annotated[tuple[SecondsAboveZero, SecondsAboveZero], stated("[lower, upper] in seconds")]
    draws: Annotated[int, whole("a whole number of draws, at least 1", 1)]
    candidates: Annotated[int, whole("a whole number of plans, at least 1", 1)]
    spread_from: Words
    compared: Words = ""
    deviation_s: Rare[Seconds] = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"confidence: probability is {self.probability!r}, but must be from 0 to 1")
        checks.positive("confidence", "expected_step_s", self.expected_step_s)
        checks.positive("confidence", "interval_s[0]", self.interval_s[0])
        checks.positive("confidence", "interval_s[1]", self.interval_s[1])
        if self.interval_s[0] > self.interval_s[1]:
            raise ValueError(f"confidence: interval_s is {self.interval_s}, but must be [lower, upper]")
        checks.fields("confidence", self, "draws candidates", "deviation_s")

    def times(self, factor: float) -> Confidence:
        """Returns the confidence in the plan once its expected step and interval are multiplied by a factor.

        >>> Confidence(0.83, 1.25, (0.5, 2.0), 200, 9, "assumed").times(2.0).interval_s
        (1.0, 4.0)
        """
        low, high = self.interval_s
        return dataclasses.replace(
            self,
            expected_step_s=self.expected_step_s * factor,
            interval_s=(low * factor, high * factor),
            deviation_s=self.deviation_s * factor,
        )

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Returns how sure the step's seconds and the choice of the plan are, as texts with their names.

        >>> for fact in Confidence(0.83, 1.25, (0.9, 1.8), 200, 9, "assumed spreads").facts:
        ...     print(*fact, sep=": ")
        expected step: 1.25 s, 90 % interval from 900 ms to 1.8 s
        interval's width: assumed spreads
        sure of the choice: 83 % that it is within 5 % of the best of 9 candidates
        """
        expected, low, high = map(units.seconds, (self.expected_step_s, *self.interval_s))
        facts = [("expected step", f"{expected}, 90 % interval from {low} to {high}"),
                 ("interval's width", self.spread_from)]  # fmt: skip
        if self.candidates > 1:
            of = f": {self.compared}" if self.compared else ""
            share = f"{100 * self.probability:.0f} % that it is within 5 % of the best of {self.candidates} candidates"
            facts.append(("sure of the choice", share + of))
        return facts

    @property
    def summary(self) -> str:
        """Returns the same in one line."""
        return "; ".join(f"{name} {text}" for name, text in self.facts)


@final
@dataclasses.dataclass(frozen=True)
class _LayerSeconds:
    """The drawn seconds of a layer in files of plans."""

    mean_s: Seconds
    deviation_s: Seconds


_WITHOUT_LAYERS = Stored(
    tuple[_LayerSeconds, ...],
    lambda layers: tuple(_LayerSeconds(layer.mean_s, layer.deviation_s) for layer in layers),
    lambda layers: tuple(DrawnSeconds(layer.mean_s, layer.deviation_s) for layer in layers),
)


@final
@dataclasses.dataclass(frozen=True)
class DrawnSeconds:
    """The mean and the standard deviation of predicted seconds over joint random draws of costs.

    Attributes:
        layers: the same for each layer of a stage, in their order; in every draw the layers' seconds add up to the
            stage's, so their means do, too. Empty: not told.

    Raises ValueError for seconds that are negative or aren't finite.
    """

    mean_s: Seconds
    deviation_s: Seconds
    layers: Needed[
        Annotated[
            tuple[DrawnSeconds, ...], _WITHOUT_LAYERS, listed("a list of mean and deviation of each layer of the stage")
        ]
    ] = ()

    def __post_init__(self) -> None:
        checks.fields("drawn", self, from_zero="mean_s deviation_s")

    def times(self, factor: float) -> DrawnSeconds:
        """Returns the same with all seconds multiplied by a factor.

        >>> DrawnSeconds(1.5, 0.25).times(2.0)
        DrawnSeconds(mean_s=3.0, deviation_s=0.5, layers=())
        """
        layers = tuple(layer.times(factor) for layer in self.layers)
        return DrawnSeconds(self.mean_s * factor, self.deviation_s * factor, layers)


_Count: TypeAlias = Size | Literal["auto"]


@final
@dataclasses.dataclass(frozen=True)
class PricedBy:
    """The options that a plan was searched and predicted with (models, calibration, search space); the defaults stand
    for what isn't known.

    Attributes:
        latency, communication, slicer: names, or that of the class where it has none; `calibration` is empty without
            one.
        risk, margin: the probability of running out of memory that a plan was allowed, and the share of a device's
            memory that was left free; None: not known.
        layers, micro_batches: how many of them were asked for; "auto": the search chose.
        offload: where stages could offload what they keep: "none", "cpu", "nvme" or "auto".
        attention: how attention was to be priced and kept, "fused" or "plain"; empty: as the training framework has it.
        sequence_parallel: whether tensor-parallel devices divide norms and residuals, where the framework does that.
        jax: the version that models are traced by; empty: not known.
    """

    latency: Annotated[str, stated("text: the latency model")] = ""
    communication: Annotated[str, stated("text: the communication model")] = ""
    calibration: Annotated[str, stated("text: the calibration, empty if there was none")] = ""
    risk: Annotated[NotNegative | None, stated("a number of at least 0, or null")] = None
    margin: Annotated[NotNegative | None, stated("a number of at least 0, or null")] = None
    submeshes: Annotated[str, stated("text: which submeshes there were")] = ""
    remat: Annotated[tuple[Remat, ...], listed('a list of "none", "selective" and "layer"')] = ()
    zero: Annotated[tuple[Zero, ...], listed("a list of 0, 2 and 3")] = ()
    layers: Annotated[int | str, Stored(_Count), stated('a whole number of layers, at least 1, or "auto"')] = "auto"
    micro_batches: Annotated[
        int | str, Stored(_Count), stated('a whole number of micro-batches, at least 1, or "auto"')
    ] = "auto"
    slicer: Annotated[str, stated("text: the slicer")] = ""
    objective: Annotated[str, stated("text: what was to be least")] = ""
    strategy: Annotated[str, stated("text: whose search it was")] = ""
    runtime: Rare[Annotated[str, stated("text: the runtime profile")]] = "alpa"
    offload: Rare[Annotated[str, stated("text: where stages could offload")]] = "none"
    replicas: Rare[Annotated[Size, stated("a whole number of replicas that each stage had at least")]] = 1
    runs_on: Rare[Annotated[str, stated("text: the training framework whose rules plans were restricted to")]] = ""
    attention: Rare[Annotated[str, chosen(("", "fused", "plain")), stated('"fused", "plain" or empty')]] = ""
    sequence_parallel: Rare[Annotated[bool, stated("true, or false of norms and residuals that are whole")]] = True
    jax: Rare[Annotated[str, stated("text: the version of jax that models are traced by")]] = ""

    @property
    def streams(self) -> bool:
        """Returns whether devices were taken to communicate while they compute."""
        return "+streams" in self.runtime
