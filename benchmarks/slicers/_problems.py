"""Problems that are drawn from a seed: layers of uneven work, on submeshes that lose the more the larger they are."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from alpa_dejavu.problem import SlicingProblem

LAYER_S = 0.02
"""What a micro-batch takes in a layer on one device, forward and backward: about a block of GPT on a V100."""
PER_HOST = 8
CONFIG_COSTS = (1.0, 1.06, 1.15)
"""What a stage's configs cost next to the first one's; the dearer ones leave more room in memory."""
CONFIG_ROOMS = (1.0, 2.0, 4.0)


@final
@dataclasses.dataclass(frozen=True)
class Size:
    """Of a problem: layers, devices, sizes of submeshes, micro-batches, configs, how far an entry is off its work."""

    layers: int
    devices: int
    submeshes: tuple[int, ...]
    micro_batches: int
    configs: int = 3
    noise: float = 0.05


def powers(devices: int, *more: int) -> tuple[int, ...]:
    """All powers of two up to so many, and some more.

    >>> powers(8, 6)
    (1, 2, 4, 6, 8)
    """
    return tuple(sorted({*(2**n for n in range(devices.bit_length())), *more}))


SIZED = {
    "8/8": Size(8, 8, powers(8), 16),
    "16/64": Size(16, 64, powers(64), 64, configs=1),
    "32/64": Size(32, 64, powers(64), 64, configs=1),
    "48/128": Size(48, 128, powers(128), 128, configs=1),
    "64/512": Size(64, 512, powers(512, 24, 48, 96, 192), 512),
    "64/512 noisy": Size(64, 512, powers(512, 24, 48, 96, 192), 512, noise=1.0),
    "256/4096": Size(256, 4096, powers(4096, 24), 1024),
}
"""By layers and devices. Those that Alpa's programs get have one config: with three these take many times as long."""


def sized(name: str, seed: int = 0) -> SlicingProblem:
    """The problem of a name in `SIZED`."""
    size = SIZED[name]
    rng, shape = np.random.default_rng(seed), (size.layers, size.devices, size.submeshes, size.micro_batches)
    return by_work(rng, *shape, num_configs=size.configs, noise=size.noise)


def by_work(
    rng: np.random.Generator,
    num_layers: int,
    num_devices: int,
    submeshes: tuple[int, ...],
    num_micro_batches: int,
    num_configs: int = 3,
    uneven: float = 0.3,
    noise: float = 0.05,
) -> SlicingProblem:
    """A stage takes its layers' work over its devices, and what more devices lose on collectives.

    Args:
        rng: what is drawn comes from here.
        num_layers: L.
        num_devices: of the cluster.
        submeshes: their devices.
        num_micro_batches: B.
        num_configs: at most three.
        uneven: by how much a layer's work differs from the mean at most, as a part of it.
        noise: by how much an entry of the table may be above its work, as a part of it.
    """
    sizes = np.array(submeshes)
    works = rng.uniform(1 - uneven, 1 + uneven, num_layers)
    ends = np.concatenate([[0.0], np.cumsum(works)])
    work = ends[None, 1:] - ends[:-1, None]
    # Beyond a host every doubling loses more than within one.
    lost = 1 + 0.03 * np.log2(np.minimum(sizes, PER_HOST)) + 0.12 * np.log2(np.maximum(sizes / PER_HOST, 1))
    costs = LAYER_S * work[:, :, None, None] / sizes[:, None] * lost[:, None] * np.array(CONFIG_COSTS[:num_configs])
    costs = costs * rng.uniform(1.0, 1.0 + noise, costs.shape)
    layers = np.arange(num_layers)[None, :] - np.arange(num_layers)[:, None] + 1
    held = np.maximum(layers, 1)[:, :, None, None] / num_layers * num_devices / sizes[:, None]
    most = rng.uniform(6.0, 12.0) * np.array(CONFIG_ROOMS[:num_configs])
    room = np.floor(most / held).astype(np.int64)
    return SlicingProblem(
        np.where(layers[:, :, None, None] > 0, costs, np.inf), sizes, num_devices, num_micro_batches, room
    )
