"""Offload: the shares of a stage's tensors that its hosts keep in place of its devices."""

from __future__ import annotations

import dataclasses
from typing import Annotated, TypeAlias, final

from alpa_dejavu._util.dataclass_format import Inline, Needed, chosen
from alpa_dejavu._util.format_fields import Bytes, Seconds, stated
from alpa_dejavu.problem import checks

OFFLOAD_PLACES = ("cpu", "nvme")
OFFLOADED = ("optimizer", "gradients", "parameters", "activations")
"""The kinds of tensors that may be offloaded."""
_Share: TypeAlias = Annotated[float, stated("a share from 0 to 1", ge=0, le=1)]


@final
@dataclasses.dataclass(frozen=True)
class Offload:
    """The shares, from 0 to 1, of a stage's tensors that are in the memory of its hosts, or on their NVMe drives.

    Attributes:
        optimizer: the share of the optimizer's state, which the host's processors then update.
        gradients: the share of the gradients, which leave the device with each micro-batch.
        parameters: the share of the parameters, which come to the device for each pass.
        activations: the share of the activations that wait for a backward pass.
        place: "cpu": all of them are in the host's memory; "nvme": the optimizer's state, and the parameters, are on
            NVMe drives, and the rest in the host's memory.

    Gradients and parameters can't be offloaded in larger shares than the optimizer's state.

    References:
        Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, USENIX ATC 2021.
        Rajbhandari et al., ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning, SC 2021.
    """

    optimizer: _Share = 0.0
    gradients: _Share = 0.0
    parameters: _Share = 0.0
    activations: _Share = 0.0
    place: Needed[Annotated[str, chosen(OFFLOAD_PLACES), stated('"cpu" or "nvme"')]] = "cpu"

    def __post_init__(self) -> None:
        checks.one_of("offload", "place", self.place, OFFLOAD_PLACES)
        for kind in OFFLOADED:
            share = getattr(self, kind)
            if not 0 <= share <= 1:
                raise ValueError(
                    f"offload: {kind} is {share!r}, but must be a share from 0 to 1; 0.25 is a quarter of them"
                )
        for kind in ("gradients", "parameters"):
            share = getattr(self, kind)
            if share > self.optimizer:
                raise ValueError(
                    f"offload: {kind} is {share!r}, but must be at most the optimizer's share, {self.optimizer!r}, "
                    "since the host updates what it keeps; offload as much of the optimizer's state"
                )

    @property
    def any(self) -> bool:
        """Returns whether anything is offloaded."""
        return max(self.shares) > 0

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Returns the shares of the optimizer's state, gradients, parameters and activations, in this order."""
        return self.optimizer, self.gradients, self.parameters, self.activations

    @property
    def text(self) -> str:
        """Returns what is offloaded in a few words; "none" if nothing is.

        >>> Offload(optimizer=1.0, activations=0.25).text
        '100% of the optimizer state, 25% of activations to cpu'
        """
        names = ("the optimizer state", *OFFLOADED[1:])
        parts = [f"{share:.0%} of {name}" for name, share in zip(names, self.shares, strict=True) if share > 0]
        return f"{', '.join(parts)} to {self.place}" if parts else "none"


@final
@dataclasses.dataclass(frozen=True)
class StageOffload:
    """A stage's offload in a plan: the shares, with what it takes of the hosts and what it adds to the step.

    Attributes:
        host_bytes, nvme_bytes: predicted peaks in the memory of its hosts and on their drives, for each device.
        host_limit_bytes, nvme_limit_bytes: the bytes of these that each device has for itself.
        forward_s, backward_s: predicted seconds that copies add to a micro-batch's passes; part of `collective_s`.
        step_s: predicted seconds once a step of the hosts' updates, with copies and drives; part of `per_step_s`.
    """

    shares: Inline[Offload]
    host_bytes: Bytes = 0.0
    host_limit_bytes: Bytes = 0.0
    nvme_bytes: Bytes = 0.0
    nvme_limit_bytes: Bytes = 0.0
    forward_s: Seconds = 0.0
    backward_s: Seconds = 0.0
    step_s: Seconds = 0.0

    @property
    def missing_bytes(self) -> float:
        """Returns how many bytes the hosts' memory, or their drives, lack for each device; 0 if it fits."""
        return max(self.host_bytes - self.host_limit_bytes, self.nvme_bytes - self.nvme_limit_bytes, 0.0)


NO_OFFLOAD = Offload()
"""Everything is on the devices."""
