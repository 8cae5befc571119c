"""The plan that is run instead once a host is lost, and what moves for it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from alpa_dejavu.problem._plan import StagePlan


@final
@dataclasses.dataclass(frozen=True)
class Moves:
    """The parameters and optimizer states that hosts must receive when one plan replaces another.

    Attributes:
        layers: the numbers of the layers of which a host receives parameters or the optimizer's state, since it hasn't
            got them.
        num_bytes: the bytes that are received, on all hosts together.
        seconds: how long that takes over the cluster's links, all hosts at a time; what only a lost host had is
            assumed to come over the slowest link.
    """

    layers: tuple[int, ...]
    num_bytes: float
    seconds: float

    def __post_init__(self) -> None:
        checks.not_negative("moves", "num_bytes", self.num_bytes)
        checks.not_negative("moves", "seconds", self.seconds)


@final
@dataclasses.dataclass(frozen=True)
class Contingency:
    """The fallback of a plan for the loss of one host: the stages to run without it, with the plan's layers and
    schedule.

    Attributes:
        stages: in the order of the layers, on the hosts that are left.
        step_s: predicted seconds of a training step.
        num_micro_batches: how many micro-batches its step has, which may be another number than the plan's.
        moves: what the hosts must receive to change from the plan to these stages.
        unused: the names of the hosts that are left but have no stage.
    """

    stages: tuple[StagePlan, ...]
    step_s: float
    num_micro_batches: int
    moves: Moves
    unused: tuple[str, ...] = ()
