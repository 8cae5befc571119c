"""The options that a plan was priced with and chosen among."""

from __future__ import annotations

import dataclasses
from typing import final


@final
@dataclasses.dataclass(frozen=True)
class PricedBy:
    """The models, calibration and choices that a plan comes from; the defaults stand for what isn't known.

    Attributes:
        latency: the latency model's name, or the name of its class if it has none.
        communication: the communication model's, likewise.
        calibration: the name of the calibration that both and the cluster's figures are from; empty: there was none.
        risk: the risk of running out of memory that plans might have; None: not known.
        margin: the share of a device's memory that was left free; None: not known.
        submeshes: which submeshes there were, as `alpa_dejavu.clusters.space.submeshes` takes it.
        remat, zero: what stages might have.
        layers, micro_batches: how many were asked for, or "auto".
        slicer: its name, or the name of its class.
        objective: what was to be least.
        strategy: whose search it was.
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
