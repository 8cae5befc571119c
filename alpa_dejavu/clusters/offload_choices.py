"""The choices of offload: which shares of what stages keep their hosts may have."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from alpa_dejavu.problem import NO_OFFLOAD, OFFLOAD_PLACES, Cluster, MeshConfig, Offload, SearchSpace

OFFLOAD_CHOICES = ("none", *OFFLOAD_PLACES, "auto")
"""Where stages may offload what they keep; "auto": to the memory of their hosts or to NVMe drives."""
_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_WHOLE = (0.0, 1.0)


def check_offload(choice: str, cluster: Cluster) -> None:
    """Raises ValueError unless a choice is of `OFFLOAD_CHOICES`, and enough is known of the hosts for it."""
    if choice not in OFFLOAD_CHOICES:
        raise ValueError(f"offload is {choice!r}, but must be one of {', '.join(map(repr, OFFLOAD_CHOICES))}")
    if choice == "none":
        return
    for host in cluster.hosts:
        lacks = "host_memory" if host.memory is None else "nvme" if host.memory.nvme is None else ""
        if lacks == "host_memory" or (lacks == "nvme" and choice == "nvme"):
            raise ValueError(
                f"offload is {choice!r}, but must be without {lacks}, which the file of {host.name} lacks; add "
                f"{lacks} with its rates to the file of the machine or the cluster, or choose another offload"
            )


def with_offload(space: SearchSpace, cluster: Cluster, choice: str) -> SearchSpace:
    """Returns a search space in which each config stands beside those that offload some kinds of tensors wholly, as a
    choice of `OFFLOAD_CHOICES` says; ValueError if nothing is known of some host's memory, or of its drives.

    Data-parallel devices that all update the same parameters offload activations alone. Those that share the update by
    ZeRO-2 offload anything but parameters, which each of them needs whole, and under ZeRO-3 anything.
    """
    check_offload(choice, cluster)
    if choice == "none":
        return space
    return _extended(space, [offload for place in _places(cluster, choice) for offload in _offloads(_WHOLE, place)])


def _places(cluster: Cluster, choice: str) -> list[str]:
    """The places to which stages may offload; drives only where all hosts have them."""
    drives = all(host.memory is not None and host.memory.nvme is not None for host in cluster.hosts)
    return [place for place in OFFLOAD_PLACES if choice in (place, "auto") and (place == "cpu" or drives)]


def with_all_shares(space: SearchSpace, places: Iterable[str]) -> SearchSpace:
    """Returns a search space whose configs also offload any quarters of what they keep to one of some places."""
    return _extended(space, [offload for place in places for offload in _offloads(_QUARTERS, place)])


def leanest(space: SearchSpace, cluster: Cluster, choice: str) -> SearchSpace:
    """Returns the search space of those configs that keep least on devices (remat, and ZeRO-3 among data-parallel
    ones), each of which may offload any quarters of what it keeps, as a choice of `OFFLOAD_CHOICES` says.
    """
    again = {config.remat for row in space.configs for config in row if config is not None}
    remat = "layer" if "layer" in again else "none"
    lean = space.filtered(lambda config: config.remat == remat and (config.zero == 3 or config.data_parallel == 1))
    return with_all_shares(lean, _places(cluster, choice))


def _offloads(shares: Sequence[float], place: str) -> Iterator[Offload]:
    """Yields the offloads of such shares; the host updates what it keeps."""
    for optimizer, gradients, parameters, activations in itertools.product(shares, repeat=4):
        allowed = gradients <= optimizer >= parameters and max(optimizer, activations) > 0
        if allowed and (place == "cpu" or optimizer > 0):  # activations alone go to the host's memory
            yield Offload(optimizer, gradients, parameters, activations, place)


def _extended(space: SearchSpace, offloads: Sequence[Offload]) -> SearchSpace:
    rows = []
    for row in space.configs:
        plain = dict.fromkeys(dataclasses.replace(config, offload=NO_OFFLOAD) for config in row if config is not None)
        rows.append([beside for config in plain for beside in _beside(config, offloads)])
    width = max(1, *map(len, rows))
    return dataclasses.replace(space, configs=tuple((*row, *[None] * (width - len(row))) for row in rows))


def _beside(config: MeshConfig, offloads: Iterable[Offload]) -> Iterator[MeshConfig]:
    """Yields a config as it is, then with each offload."""
    yield config
    alone = config.data_parallel == 1
    for offload in offloads:
        updates = alone or config.zero or not offload.optimizer
        if updates and (alone or config.zero == 3 or not offload.parameters):
            yield dataclasses.replace(config, offload=offload)
