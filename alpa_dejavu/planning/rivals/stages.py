"""The stages and pipelines that a strategy decides on: which layers are where, device by device."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import final

from alpa_dejavu.problem import Cluster, MeshConfig, checks


def config_of(data_parallel: int, tensor_parallel: int) -> MeshConfig:
    """Returns the mesh config of so many data-parallel and tensor-parallel devices; data parallelism cuts the batch."""
    forced = {"force_batch_dim_to_mesh_dim": 0}
    return MeshConfig((data_parallel, tensor_parallel), data_parallel, tensor_parallel, options=forced)


def equal_layers(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    """Returns each stage's first and last layer, for stages of equally many layers; layers that are left over go one
    each to the first stages.

    >>> equal_layers(5, 2)
    [(0, 2), (3, 4)]
    """
    count, more = divmod(num_layers, num_stages)
    starts = [n * count + min(n, more) for n in range(num_stages + 1)]
    return [(start, end - 1) for start, end in itertools.pairwise(starts)]


@final
@dataclasses.dataclass(frozen=True)
class PlacedStage:
    """A stage: layers on certain devices. Raises ValueError where the config is for another number of devices."""

    first: int  # `first`, `last`: the layers, inclusive
    last: int
    hosts: tuple[int, ...]  # for each device its host's number in the cluster, tensor-parallel neighbours side by side
    config: MeshConfig  # how the devices divide the work

    def __post_init__(self) -> None:
        checks.positive("placed stage", "layers", self.last - self.first + 1)
        if self.config.data_parallel * self.config.tensor_parallel != len(self.hosts):
            raise ValueError(
                f"placed stage: {len(self.hosts)} devices for a config of {self.config.data_parallel} data-parallel "
                f"times {self.config.tensor_parallel} tensor-parallel ones; give as many"
            )

    @property
    def is_submesh(self) -> bool:
        """Returns whether the stage has equally many devices of each of its hosts, so that Alpa can make its mesh."""
        return len(set(collections.Counter(self.hosts).values())) == 1

    @property
    def replicas(self) -> list[tuple[int, ...]]:
        """Returns the hosts of the devices of each data-parallel replica."""
        width = self.config.tensor_parallel
        return [self.hosts[start : start + width] for start in range(0, len(self.hosts), width)]


@final
@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A pipeline: stages, and micro-batches in a step. Raises ValueError for layers that don't follow each other."""

    stages: tuple[PlacedStage, ...]  # one after the other
    micro_batch: int  # samples of one micro-batch, of all data-parallel devices of a stage together
    num_micro_batches: int  # how many micro-batches pass it in a step

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

    @property
    def cut(self) -> tuple[tuple[int, int, MeshConfig], ...]:
        """Returns for each stage its first and last layer, and how its devices divide the work."""
        return tuple((stage.first, stage.last, stage.config) for stage in self.stages)


def cut_alike(pipelines: Sequence[Pipeline]) -> bool:
    """Returns whether pipelines differ in nothing but the hosts that their stages are on."""
    return len({(pipeline.cut, pipeline.micro_batch, pipeline.num_micro_batches) for pipeline in pipelines}) == 1


def as_one(pipelines: Sequence[Pipeline]) -> Pipeline:
    """Returns pipelines that are cut alike as one pipeline, whose stages have the data-parallel replicas of all.

    >>> worker = Pipeline((PlacedStage(0, 3, (0,), config_of(1, 1)),), micro_batch=2, num_micro_batches=4)
    >>> whole = as_one([worker, worker])
    >>> whole.stages[0].hosts, whole.stages[0].config.shape, whole.micro_batch, whole.num_micro_batches
    ((0, 0), (2, 1), 4, 4)
    """
    first, stages = pipelines[0], []
    for alike in zip(*(pipeline.stages for pipeline in pipelines), strict=True):
        config, hosts = alike[0].config, tuple(itertools.chain.from_iterable(sorted(stage.hosts for stage in alike)))
        across = len(alike) * config.data_parallel
        config = dataclasses.replace(config, shape=(across, config.tensor_parallel), data_parallel=across)
        stages.append(PlacedStage(alike[0].first, alike[0].last, hosts, config))
    return Pipeline(tuple(stages), len(pipelines) * first.micro_batch, first.num_micro_batches)


def ranks(cluster: Cluster, order: Sequence[int]) -> tuple[int, ...]:
    """Returns for each rank (device) the index of its host; ranks are numbered host by host in the given order."""
    return tuple(host for host in order for _ in range(cluster.hosts[host].num_devices))


def sent_at_a_time(pipelines: Sequence[Pipeline]) -> collections.Counter[tuple[int, int]]:
    """Returns for each pair of hosts from one to the other of which some pipeline sends, either way, how many do."""
    counts = collections.Counter[tuple[int, int]]()
    for pipeline in pipelines:
        ends = [(before.hosts[0], after.hosts[0]) for before, after in itertools.pairwise(pipeline.stages)]
        counts.update({pair for a, b in ends if a != b for pair in ((a, b), (b, a))})
    return counts
