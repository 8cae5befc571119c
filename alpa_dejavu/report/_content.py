"""What a report shows besides the plan, the cost table and the timeline."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, final

__all__ = ["Layer", "RunnerUp"]


class RunnerUp(NamedTuple):
    """A plan that lost: what it is, its predicted seconds of a step, and why it isn't the chosen one."""

    description: str
    step_s: float
    why: str


@final
@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer of the model, of one micro-batch and before it is divided among devices.

    Attributes:
        name: for people.
        forward_flop, backward_flop: operations.
        parameter_bytes, activation_bytes: what it keeps, and what its forward keeps for backward.
        seconds: of forward and backward on the device that was planned for; None: not known.
    """

    name: str
    forward_flop: float
    backward_flop: float
    parameter_bytes: float
    activation_bytes: float
    seconds: float | None = None
