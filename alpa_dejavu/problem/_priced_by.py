"""The options that a plan was priced with and chosen among."""

from __future__ import annotations

import dataclasses
from typing import final


@final
@dataclasses.dataclass(frozen=True)
class PricedBy:
    """The options that a plan was searched and predicted with (models, calibration, search space); the defaults stand
    for what isn't known.

    Attributes:
        latency: the latency model's name, or the name of its class if it has none.
        communication: the communication model's name, or the name of its class if it has none.
        calibration: the name of the calibration that both models and the cluster's figures are from; empty: none.
        risk: the probability of running out of memory that a plan was allowed; None: not known.
        margin: the share of a device's memory that was left free; None: not known.
        submeshes: which submeshes stages could take, as `alpa_dejavu.clusters.space.submeshes` takes it.
        remat, zero: the rematerialisations and ZeRO levels that stages could take.
        layers, micro_batches: how many of them were asked for; "auto": the search chose.
        slicer: the slicer's name, or the name of its class.
        objective: the name of the objective that was made least.
        strategy: the name of the search strategy.
        runtime: the name of the runtime profile: which training framework the plan is priced for.
        offload: where stages could offload what they keep: "none", "cpu", "nvme" or "auto".
        replicas: the least number of data-parallel replicas that stages could have.
        runs_on: the training framework to whose rules plans were restricted; empty: they weren't.
        attention: how attention was to be priced and kept, "fused" or "plain"; empty: as the training framework has it.
    """

    latency: str = ""
    communication: str = ""
    calibration: str = ""
    risk: float | None = None
    margin: float | None = None
    submeshes: str = ""
    remat: tuple[str, ...] = ()
    zero: tuple[int, ...] = ()
    layers: int | str = "auto"
    micro_batches: int | str = "auto"
    slicer: str = ""
    objective: str = ""
    strategy: str = ""
    runtime: str = "alpa"
    offload: str = "none"
    replicas: int = 1
    runs_on: str = ""
    attention: str = ""

    @property
    def streams(self) -> bool:
        """Returns whether devices were taken to communicate while they compute."""
        return "+streams" in self.runtime
