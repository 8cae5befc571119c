"""A plan as its user sets it: one choice of degrees, cuts, recomputation and sharing for all of its stages, and plans
that differ from another in some of these choices alone.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, Protocol, final

from alpa_dejavu.problem import (
    NO_OFFLOAD,
    Cluster,
    MeshConfig,
    NoPlanError,
    Offload,
    Plan,
    StageOffload,
    StagePlan,
    Submesh,
    blocks_again,
)
from alpa_dejavu.problem.run import schedule_form

DEGREES: Mapping[str, int] = {"context_parallel": 1, "expert_parallel": 1, "expert_tensor": 0, "sharded": 0}
"""The degrees of a `MeshConfig` beside data and tensor parallelism, with the values by which they divide nothing."""


class Sized(Protocol):
    """A transformer by its sizes."""

    @property
    def num_blocks(self) -> int:
        """Returns the number of its blocks."""

    @property
    def text(self) -> str:
        """Returns its sizes as text."""


@final
@dataclasses.dataclass(frozen=True)
class Outline:
    """A plan of equal submeshes with one logical mesh, in terms of runtimes that cut a transformer at its blocks."""

    batch: int
    num_micro_batches: int  # the parts of the batch that go through the pipeline
    schedule: str
    data_parallel: int  # `data_parallel`, `tensor_parallel`: how many ways stages divide batch and operators
    tensor_parallel: int
    blocks: tuple[int, ...]  # of each stage in order; embeddings are in the first one, the head is in the last
    remat: tuple[str, ...]  # for each stage what is computed again for its backward pass, as `MeshConfig` has it
    zero: int = 0
    offload: Offload = NO_OFFLOAD
    context_parallel: int = 1  # these degrees are those of `MeshConfig`
    expert_parallel: int = 1
    expert_tensor: int = 0
    sharded: int = 0
    remat_share: float = 1.0  # of which share of a stage's blocks "layer" is, as `MeshConfig` has it

    @classmethod
    def of(cls, plan: Plan) -> Outline:
        """Returns a plan's outline; ValueError if layers aren't a transformer's blocks, or it has no batch that
        its micro-batches and replicas divide.
        """
        if plan.layer_option != "manual":
            raise ValueError(
                f"layer_option is {plan.layer_option!r}, but must be 'manual', with layers that are the blocks of a "
                "transformer; plan again with --for and a transformer by its name, its sizes or its configuration"
            )
        if plan.batch is None:
            raise ValueError("the plan's batch is None, but must be known; plan again with a batch")
        first = plan.stages[0]
        blocks = [stage.num_layers for stage in plan.stages]
        blocks[0] -= 1
        blocks[-1] -= 1
        across, along = first.logical_mesh[0], math.prod(first.logical_mesh[1:])
        remat, degrees = tuple(stage.remat for stage in plan.stages), {name: getattr(first, name) for name in DEGREES}
        shares = {stage.remat_share for stage in plan.stages if stage.remat == "layer"} or {1.0}
        if len(shares) > 1:
            raise ValueError(
                f"stages compute {' and '.join(f'{share:.0%}' for share in sorted(shares))} of their blocks again, but "
                "must have one share; plan again with --for"
            )
        degrees["expert_tensor"] *= degrees["expert_tensor"] != along
        outline = cls(
            plan.batch, plan.num_micro_batches, plan.schedule, across, along, tuple(blocks), remat, first.zero,
            first.offloaded, **degrees, remat_share=min(shares),
        )  # fmt: skip
        outline._check_batch()
        return outline

    def _check_batch(self) -> None:
        if self.batch % (self.num_micro_batches * self.replicas):
            raise ValueError(
                f"a batch of {self.batch} samples can't be cut into {self.num_micro_batches} micro-batches on "
                f"{self.replicas} data-parallel replicas; give a batch that these divide"
            )

    @property
    def chunks(self) -> int:
        """Returns the number of stages on each submesh."""
        return schedule_form(self.schedule).chunks

    @property
    def pipeline(self) -> int:
        """Returns the number of submeshes of the pipeline."""
        return len(self.blocks) // self.chunks

    @property
    def num_devices(self) -> int:
        """Returns the number of devices of all submeshes."""
        return self.pipeline * self.data_parallel * self.tensor_parallel

    @property
    def replicas(self) -> int:
        """Returns how many samples are computed at once: data-parallel devices over those that share tokens."""
        return self.data_parallel // self.context_parallel

    @property
    def micro_batch(self) -> int:
        """Returns the samples of a micro-batch in each data-parallel replica."""
        return self.batch // self.num_micro_batches // self.replicas

    @property
    def degrees(self) -> dict[str, Any]:
        """Returns the degrees beside data and tensor parallelism by their names in `DEGREES`."""
        return {name: getattr(self, name) for name in DEGREES}

    @property
    def again(self) -> tuple[int, ...]:
        """Returns for each stage how many of its blocks, the first ones, are computed again as a whole."""
        return tuple(
            int(blocks_again(self.remat_share, number)) if remat == "layer" else 0
            for remat, number in zip(self.remat, self.blocks, strict=True)
        )

    @property
    def num_blocks(self) -> int:
        """Returns the number of blocks of all stages."""
        return sum(self.blocks)

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Returns the first and the last layer of each stage, where embeddings are layer 0."""
        bounds = [0, *itertools.accumulate(self.blocks[1:], initial=self.blocks[0] + 1)]
        bounds[-1] += 1
        return tuple((start, end - 1) for start, end in itertools.pairwise(bounds))

    def plan(self, cluster: Cluster, model: Sized) -> Plan:
        """Returns the outline's plan on a cluster's hosts in their order, without seconds and bytes. Raises ValueError
        if it is of other blocks or devices.
        """
        if self.num_blocks != model.num_blocks:
            raise ValueError(
                f"the stages have {self.num_blocks} blocks, but must have the model's {model.num_blocks}; give the "
                "configuration of the model that runs"
            )
        if self.num_devices != cluster.num_devices:
            raise ValueError(
                f"the stages have {self.num_devices} devices, but must have the {cluster.num_devices} of "
                f"{cluster.name}; give the cluster that it runs on, by --cluster and --hosts"
            )
        self._check_batch()
        return Plan(
            stages=tuple(self.stages({host.name: host.num_devices for host in cluster.hosts})), step_s=0.0,
            num_micro_batches=self.num_micro_batches, schedule=self.schedule, cluster=cluster.name, planning_s={},
            model=model.text, batch=self.batch, layer_option="manual",
        )  # fmt: skip

    def stages(self, devices: Mapping[str, int]) -> list[StagePlan]:
        """Returns the outline's stages on hosts in their order, of which each has so many devices."""
        ways = self.data_parallel, self.tensor_parallel
        config = MeshConfig(ways, *ways, zero=self.zero, **self.degrees)
        places = _places(devices, config.data_parallel * config.tensor_parallel, self.pipeline)
        on = schedule_form(self.schedule).submesh_of(len(self.blocks))
        kept = StageOffload(self.offload) if self.offload.any else None
        return [
            StagePlan(
                layers, places[on[n]][0], config.shape, places[on[n]][1],
                options={"force_batch_dim_to_mesh_dim": 0}, remat=self.remat[n], zero=self.zero,
                offload=kept, **self.degrees, remat_share=self.remat_share if self.remat[n] == "layer" else 1.0,
            )
            for n, layers in enumerate(self.layers)
        ]  # fmt: skip

    @property
    def choices(self) -> dict[str, Any]:
        """Returns what the user of a training framework sets, by the field's words; data parallelism follows."""
        return {
            "tensor": self.tensor_parallel,
            "context": self.context_parallel,
            "expert": (self.expert_parallel, self.expert_tensor),
            "pipeline": self.pipeline,
            "schedule": self.schedule,
            "micro-batch": self.micro_batch,
            "recompute": (self.remat, self.remat_share),
            "ZeRO": self.zero,
            "shard": self.sharded,
            "offload": self.offload,
            "blocks of stages": self.blocks,
        }

    def with_choices(self, choices: Mapping[str, Any]) -> Outline:
        """Returns the outline with some choices made otherwise, on as many devices and for the same batch. Of other
        numbers of stages, blocks are divided evenly. Raises ValueError if devices, blocks or batch can't be divided so.

        >>> outline = Outline(64, 4, "1f1b", 2, 4, (8, 8), ("layer", "none"))
        >>> outline.with_choices({"tensor": 2, "pipeline": 4}).blocks, outline.with_choices({"tensor": 2}).replicas
        ((4, 4, 4, 4), 4)
        """
        chosen = {**self.choices, **choices}
        tensor, pipeline, context = chosen["tensor"], chosen["pipeline"], chosen["context"]
        data = _divided("devices", self.num_devices, pipeline * tensor)
        micro_batches = _divided("samples", self.batch, chosen["micro-batch"] * _divided("replicas", data, context))
        schedule = chosen["schedule"] if pipeline > 1 else "1f1b"
        count = pipeline * schedule_form(schedule).chunks
        blocks, (remat, share), (experts, expert_tensor) = (
            chosen[name] for name in ("blocks of stages", "recompute", "expert")
        )
        if len(blocks) != count:
            blocks = _evenly(self.num_blocks, count)
        if len(remat) != count:
            remat = tuple(remat[n * len(remat) // count] for n in range(count))
        return Outline(
            self.batch, micro_batches, schedule, data, tensor, blocks, remat, chosen["ZeRO"], chosen["offload"],
            context, experts, expert_tensor, chosen["shard"], share if "layer" in remat else 1.0,
        )  # fmt: skip


def _divided(what: str, number: int, by: int) -> int:
    if number % by:
        raise ValueError(f"the number of {what} is {number}, but must be a multiple of {by}; give another degree")
    return number // by


def _evenly(blocks: int, count: int) -> tuple[int, ...]:
    """Returns blocks in so many stages, those in the middle with one more where that doesn't go without a rest."""
    if blocks < count:
        raise ValueError(f"the number of blocks is {blocks}, but must be at least the {count} stages; take fewer")
    least, more = divmod(blocks, count)
    begin = (count - more) // 2
    return tuple(least + (begin <= n < begin + more) for n in range(count))


def _places(devices: Mapping[str, int], size: int, count: int) -> list[tuple[Submesh, tuple[str, ...]]]:
    """The submesh and the hosts of each of so many stages of equally many devices, one behind the other."""
    owners = [host for host, number in devices.items() for _ in range(number)]
    places = []
    for n in range(count):
        own = collections.Counter(owners[n * size : (n + 1) * size])
        hosts, per_host = tuple(own), size // len(own)
        if {*own.values()} != {per_host}:
            raise NoPlanError(
                f"stage {n} has {size} devices, which aren't equally many on each of {', '.join(hosts)}; give the "
                "cluster that it runs on"
            )
        places.append((Submesh(len(hosts), per_host), hosts))
    return places
