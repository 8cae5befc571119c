"""The stages and pipelines that a strategy decides on: which layers are where, device by device."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import final

from alpa_dejavu.problem import Cluster, MeshConfig, checks

__all__ = ["Pipeline", "PlacedStage", "config_of", "equal_layers", "ranks"]

_FORCED = {"force_batch_dim_to_mesh_dim": 0}


def config_of(data_parallel: int, tensor_parallel: int) -> MeshConfig:
    """Returns the mesh config of so many data-parallel and tensor-parallel devices; data parallelism cuts the batch."""
    return MeshConfig((data_parallel, tensor_parallel), data_parallel, tensor_parallel, options=_FORCED)


def equal_layers(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    """Returns each stage's first and last layer, for stages of equally many layers; layers that are left over go one
    each to the first stages.

    >>> equal_layers(5, 2)
    [(0, 2), (3, 4)]
    """
    each, more = divmod(num_layers, num_stages)
    starts = [n * each + min(n, more) for n in range(num_stages + 1)]
    return [(start, end - 1) for start, end in itertools.pairwise(starts)]


@final
@dataclasses.dataclass(frozen=True)
class PlacedStage:
    """A stage: a range of layers placed on certain devices.

    Attributes:
        first, last: the layers, inclusive.
        hosts: for each device the number of its host in the cluster, tensor-parallel neighbours next to each other.
        config: how the devices divide the work.
        widths: how many tensor-parallel devices each of its data-parallel replicas has, where they aren't alike; the
            config has the least of them. Replicas have equal shares of a micro-batch. Empty: all have as many.

    Raises ValueError where the config is for another number of devices, or of replicas.
    """

    first: int
    last: int
    hosts: tuple[int, ...]
    config: MeshConfig
    widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        checks.positive("placed stage", "layers", self.last - self.first + 1)
        if self.widths:
            across, along = self.config.data_parallel, self.config.tensor_parallel
            if (len(self.widths), min(self.widths), sum(self.widths)) != (across, along, len(self.hosts)):
                raise ValueError(
                    f"placed stage: widths is {self.widths}, but must be of {across} replicas of at least {along} "
                    f"devices, {len(self.hosts)} in all; give the config of these replicas"
                )
        elif self.config.data_parallel * self.config.tensor_parallel != len(self.hosts):
            raise ValueError(
                f"placed stage: {len(self.hosts)} devices for a config of {self.config.data_parallel} data-parallel "
                f"times {self.config.tensor_parallel} tensor-parallel ones; give as many"
            )

    @property
    def is_submesh(self) -> bool:
        """Returns whether the stage has equally many devices of each of its hosts, and replicas alike, so that Alpa can
        make its mesh.
        """
        return not self.widths and len(set(collections.Counter(self.hosts).values())) == 1

    @property
    def replicas(self) -> list[tuple[int, ...]]:
        """Returns the hosts of the devices of each data-parallel replica."""
        widths = self.widths or (self.config.tensor_parallel,) * self.config.data_parallel
        ends = list(itertools.accumulate(widths))
        return [self.hosts[end - width : end] for end, width in zip(ends, widths, strict=True)]


@final
@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A pipeline: its stages in the order of the layers, and its micro-batches in a step.

    Attributes:
        stages: one after the other.
        micro_batch: samples of one micro-batch, of all data-parallel devices of a stage together.
        num_micro_batches: how many micro-batches pass it in a step.

    Raises ValueError where the stages don't have the layers one after the other.
    """

    stages: tuple[PlacedStage, ...]
    micro_batch: int
    num_micro_batches: int

    def __post_init__(self) -> None:
        checks.positive("pipeline", "micro_batch", self.micro_batch)
        checks.positive("pipeline", "num_micro_batches", self.num_micro_batches)
        firsts, ends = [stage.first for stage in self.stages], [stage.last + 1 for stage in self.stages]
        if not ends or firsts != [0, *ends[:-1]]:
            ranges = [(stage.first, stage.last) for stage in self.stages]
            raise ValueError(f"pipeline: its stages have layers {ranges}, which don't follow each other from 0")

    @property
    def samples(self) -> int:
        """Returns the number of samples that pass the pipeline in a step."""
        return self.micro_batch * self.num_micro_batches


def ranks(cluster: Cluster, order: Sequence[int]) -> tuple[int, ...]:
    """Returns for each rank (device) the index of its host; ranks are numbered host by host in the given order."""
    return tuple(host for host in order for _ in range(cluster.hosts[host].num_devices))
