"""The seconds of offload: copies between devices and their hosts, the optimizer on the hosts' processors, and drives.

Devices of a host copy and update at the same time, so each has its share of the host's rates (`HostShare`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, final

import numpy as np

from alpa_dejavu.costs.memory import ModelMemory, UpdatedBytes
from alpa_dejavu.problem import HostShare, MemoryShares, Offload

if TYPE_CHECKING:
    from jaxtyping import Float

Ranges: TypeAlias = "Float[np.ndarray, 'L L']"
"""A figure of each stage of layers i..j."""

StageParts: TypeAlias = "tuple[Ranges, Ranges, Ranges, Ranges, Ranges, Ranges]"
"""The six kinds of seconds of stages, as `StageCostModel.seconds` has them."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class OffloadCopies:
    """The seconds that each device of a stage of layers i..j would take for each kind of copy alone: in a micro-batch's
    passes those to the device and from it, which go on at a time; in a step gradients to the host, the optimizer's
    update there, parameters to the device, and reading and writing drives.
    """

    forward: tuple[Ranges, ...]
    backward: tuple[Ranges, ...]
    step: tuple[Ranges, ...]


def copies(
    memory: ModelMemory, shares: MemoryShares, kept: Ranges, offload: Offload, share: HostShare
) -> OffloadCopies:
    """Returns the seconds of what offload copies and updates for each device of a stage of layers i..j; `kept` are the
    bytes that each keeps for a micro-batch's backward pass, `share` what it has of its host.

    Offloaded parameters come to the device for each pass, offloaded gradients leave it after each backward pass, and
    offloaded activations leave it forward and come back backward. Once a step the other gradients of what the host
    updates go down, and the other parameters come up. Adam is bound by the host's memory: it reads and writes the
    optimizer's state and the parameters, and reads the gradients. Adding up the gradients of several micro-batches on
    the host isn't counted, as in the published formulas.

    References:
        Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, USENIX ATC 2021, section 4.
        Rajbhandari et al., ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning, SC 2021.
    """
    link, drives = share.copied_bytes_per_s, offload.place == "nvme"
    parameters = memory.parameters * shares.parameters * offload.parameters
    gradients = memory.gradients * shares.gradients * offload.gradients
    activations = kept * offload.activations
    states = memory.optimizer * shares.optimizer * offload.optimizer
    updated = UpdatedBytes.of(memory, shares)
    traffic = 2 * states + (updated.gradients + 2 * updated.parameters) * offload.optimizer
    step = [
        updated.gradients * (offload.optimizer - offload.gradients) / link,
        traffic / share.bytes_per_s,
        updated.parameters * (offload.optimizer - offload.parameters) / link,
    ]
    read: list[Ranges] = []
    if drives:
        own = updated.uncopied * offload.optimizer
        written = np.maximum(updated.parameters * offload.parameters, own)
        read = [parameters / share.read_bytes_per_s]
        step += [(states + own) / share.read_bytes_per_s, (states + written) / share.written_bytes_per_s]
    return OffloadCopies(
        forward=(parameters / link, activations / link, *read),
        backward=((parameters + activations) / link, gradients / link, *read),
        step=tuple(step),
    )


def added_s(
    parts: StageParts, copied: OffloadCopies, offload: Offload, fixed_s: float, hidden: bool = False
) -> Float[np.ndarray, "3 L L"]:
    """Returns the seconds that offload adds to stages: copies to a micro-batch's forward and backward pass, and the
    hosts' work to a step.

    `parts` are the seconds without offload, `fixed_s` the part of the update that isn't the optimizer's. If copies are
    `hidden`, which go on while devices compute, the longest kind of them takes what it takes beyond that; else all come
    one after the other.
    """
    forward, backward, ahead, back, _, update = parts
    passes_s = forward + ahead, backward + back, (update - fixed_s) * (1 - offload.optimizer)
    kinds = copied.forward, copied.backward, copied.step
    if hidden:
        rest = [np.max(kind, axis=0) - computed for kind, computed in zip(kinds, passes_s, strict=True)]
        return np.maximum(np.stack(rest), 0.0)
    return np.stack([np.sum(kind, axis=0) for kind in kinds])


def with_offload(
    parts: StageParts, added: Float[np.ndarray, "3 L L"], offload: Offload, exchanged_s: Ranges, fixed_s: float
) -> StageParts:
    """Returns the seconds of stages with what offload adds to them (`added_s`): copies to the collectives of each pass,
    and the work of hosts to the update, of which the devices do less.

    Gradients that leave the devices after each micro-batch are exchanged before that, each time: `exchanged_s` is the
    part of the synchronisation that adds them up.
    """
    forward, backward, ahead, back, once, update = parts
    sums = exchanged_s * offload.gradients
    on_device = (update - fixed_s) * (1 - offload.optimizer)
    return forward, backward, ahead + added[0], back + sums + added[1], once - sums, fixed_s + on_device + added[2]


def known_share(offload: Offload, share: HostShare | None, hosts: Sequence[str]) -> HostShare:
    """Returns what each device has of its host's memory; ValueError where nothing is known of what an offload needs."""
    lacks = "host_memory" if share is None else "nvme"
    if share is None or (offload.place == "nvme" and not share.nvme_bytes):
        raise ValueError(
            f"offload is {offload.text}, but must be without {lacks}, which the file of {', '.join(hosts)} lacks; "
            f"add {lacks} to the file of the machine or the cluster, or choose another offload"
        )
    return share
