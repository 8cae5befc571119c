"""How a model may be divided on a cluster: tensor-parallel devices, stages, and replicas on the rest."""

from __future__ import annotations

import dataclasses
import math
from typing import final

from alpa_dejavu.planning.inference._decoder import Decoder
from alpa_dejavu.problem import Cluster

__all__ = ["ServingShape", "shapes"]

_MOST_STAGES = 64


@final
@dataclasses.dataclass(frozen=True)
class ServingShape:
    """A division of a model: the devices of a stage, all on one host; the stages of a replica; and the replicas.

    `stages_per_host` says how many stages have room on a host.
    """

    tensor_parallel: int
    stages: int
    replicas: int
    stages_per_host: int

    def host_of(self, stage: int) -> int:
        """Returns the index of a stage's host, for the first replica."""
        return stage // self.stages_per_host


def shapes(decoder: Decoder, cluster: Cluster, tensor_parallel: int | None, stages: int | None) -> list[ServingShape]:
    """Returns all ways to divide a model on a cluster, those with fewer devices for a replica first; of unlike hosts as
    many devices are taken as the smallest has. Without a number of devices or stages all are tried: those that divide
    the heads or ways, and powers of two.

    Raises:
        ValueError: the devices of a stage don't divide the heads or ways, or aren't on one host; or there are too few
            devices or layers for so many stages.
    """
    on_host = min(host.num_devices for host in cluster.hosts)
    if tensor_parallel is not None:
        if not 1 <= tensor_parallel <= on_host:
            raise ValueError(
                f"tensor_parallel is {tensor_parallel}, but must be from 1 to {on_host}, the devices of a host of "
                f"{cluster.name}; give fewer, and more stages"
            )
        decoder.check_degree(tensor_parallel)
    degrees = decoder.degrees(on_host) if tensor_parallel is None else (tensor_parallel,)
    if stages is not None:
        most = min(on_host // min(degrees) * len(cluster.hosts), decoder.num_blocks or _MOST_STAGES)
        if not 1 <= stages <= most:
            raise ValueError(
                f"stages is {stages}, but must be from 1 to {most}, by the devices of {cluster.name} and the layers of "
                f"{decoder.name}; give fewer stages"
            )
    possible, hosts = list[ServingShape](), len(cluster.hosts)
    for degree in degrees:
        per_host = on_host // degree
        most = min(per_host * hosts, decoder.num_blocks or _MOST_STAGES, _MOST_STAGES)
        for count in [2**n for n in range(most.bit_length())] if stages is None else [stages] * (stages <= most):
            # Several replicas are on each host, or one on several hosts.
            replicas = per_host // count * hosts if count <= per_host else hosts // math.ceil(count / per_host)
            possible.append(ServingShape(degree, count, replicas, per_host))
    return sorted(possible, key=lambda shape: (shape.tensor_parallel * shape.stages, shape.stages))
