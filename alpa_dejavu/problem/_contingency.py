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
    """The parameters and optimizer's states that hosts take in when one plan follows another.

    Attributes:
        layers: those of which parameters or the optimizer's state come to a host that hasn't them.
        num_bytes: what is taken in, on all hosts together.
        seconds: what this takes over the cluster's links, all hosts at a time. What a lost host alone had is taken to
            come over the slowest link.
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
    """The stages that are run without one of the hosts, with the plan's layers and schedule.

    Attributes:
        stages: in the order of the layers, on the hosts that are left.
        step_s: predicted seconds of a step.
        num_micro_batches: the plan's, or more where memory would be short.
        moves: what the hosts take in, coming from the plan.
        unused: hosts that are left but have no stage, since no choice of submeshes can use them up too.
    """

    stages: tuple[StagePlan, ...]
    step_s: float
    num_micro_batches: int
    moves: Moves
    unused: tuple[str, ...] = ()
