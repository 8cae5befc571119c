"""What is run instead of a plan once a host is lost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from alpa_dejavu.problem._plan import StagePlan


@final
@dataclasses.dataclass(frozen=True)
class Moves:
    """What hosts take in when one plan follows another.

    Attributes:
        layers: of which parameters or the optimizer's state come to a host that hasn't them.
        num_bytes: of these, on all hosts together.
        seconds: over the cluster's links, all hosts at a time, as if what a lost host alone had came over the slowest.
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
    """What is run without one of the hosts, with the plan's layers and schedule.

    Attributes:
        stages: in the order of the layers, on the hosts that are left.
        step_s: predicted seconds of a step.
        num_micro_batches: the plan's, or more where memory would be short.
        moves: what the hosts take in, coming from the plan.
        unused: hosts that are left, but that no choice of submeshes can use up too.
    """

    stages: tuple[StagePlan, ...]
    step_s: float
    num_micro_batches: int
    moves: Moves
    unused: tuple[str, ...] = ()
