"""The options that a plan was priced with and chosen among."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal, TypeAlias, final

from alpa_dejavu._util.dataclass_format import Rare, Stored, chosen
from alpa_dejavu._util.format_fields import NotNegative, Size, listed, stated
from alpa_dejavu.problem._mesh import Remat, Zero

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

    @property
    def streams(self) -> bool:
        """Returns whether devices were taken to communicate while they compute."""
        return "+streams" in self.runtime
