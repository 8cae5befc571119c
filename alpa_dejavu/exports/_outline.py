"""A plan as runtimes of equal stages say it: degrees, blocks of each stage, and what all stages have in common."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import pathlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

from alpa_dejavu._util import units
from alpa_dejavu.exports._settings import Configuration
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning.search.runtimes import DEGREES, RUNTIMES
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
        """Returns a plan's outline; ValueError if layers aren't a transformer's blocks, or it has no batch."""
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
        return cls(
            plan.batch, plan.num_micro_batches, plan.schedule, across, along, tuple(blocks), remat, first.zero,
            first.offloaded, **degrees, remat_share=min(shares),
        )  # fmt: skip

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

    def plan(self, cluster: Cluster, model: Transformer) -> Plan:
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
        if self.batch % (self.num_micro_batches * self.replicas):
            raise ValueError(
                f"a batch of {self.batch} samples can't be cut into {self.num_micro_batches} micro-batches on "
                f"{self.replicas} data-parallel replicas; give a batch that these divide"
            )
        ways = self.data_parallel, self.tensor_parallel
        config = MeshConfig(ways, *ways, zero=self.zero, **self.degrees)
        places = _places(cluster, config.data_parallel * config.tensor_parallel, self.pipeline)
        on = schedule_form(self.schedule).submesh_of(len(self.blocks))
        kept = StageOffload(self.offload) if self.offload.any else None
        stages = [
            StagePlan(
                layers, places[on[n]][0], config.shape, places[on[n]][1],
                options={"force_batch_dim_to_mesh_dim": 0}, remat=self.remat[n], zero=self.zero,
                offload=kept, **self.degrees, remat_share=self.remat_share if self.remat[n] == "layer" else 1.0,
            )
            for n, layers in enumerate(self.layers)
        ]  # fmt: skip
        return Plan(
            stages=tuple(stages), step_s=0.0, num_micro_batches=self.num_micro_batches, schedule=self.schedule,
            cluster=cluster.name, planning_s={}, model=model.text, batch=self.batch, layer_option="manual",
        )  # fmt: skip


def _places(cluster: Cluster, size: int, count: int) -> list[tuple[Submesh, tuple[str, ...]]]:
    """The submesh and the hosts of each of so many stages of equally many devices, one behind the other."""
    owners = [host.name for host in cluster.hosts for _ in range(host.num_devices)]
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


def degrees_of(
    config: Configuration, ways: tuple[int, int], names: Mapping[str, str], sharded: int = 0
) -> dict[str, Any]:
    """Returns the degrees beside data and tensor parallelism, of which there are so many `ways`, by their names in
    `DEGREES`; `names` has the settings that say them. Raises ValueError, with the line, if devices can't be divided so.
    """
    degrees: dict[str, Any] = {name: config.number(setting, DEGREES[name]) for name, setting in names.items()}
    try:
        mesh = MeshConfig(ways, *ways, sharded=sharded, **degrees)
    except ValueError as error:
        why = str(error).removeprefix("mesh config: ")
        wrong = names.get(why.partition(" is ")[0], "")
        for name, setting in names.items():
            why = why.replace(f"{name} ", f"{config.sign}{setting} ")
        raise config.wrong(wrong, why) from None
    return {name: getattr(mesh, name) for name in DEGREES}


def sizes_of(plan: Plan, model: Transformer | None, target: str) -> Transformer:
    """Returns the sizes of a plan's model for a target's files. Raises ValueError if these can't say them, they aren't
    known, or are of another number of layers.
    """
    if model is None:
        raise ValueError(
            f"model is {plan.model!r}, but must be a transformer of known sizes for {target} to be told them; give "
            "--model, a known name, a config.json, or the sizes as 'transformer:hidden=N,...'"
        )
    if why := RUNTIMES[target].why_not_written(model):
        raise ValueError(f"{why} to be written for {target}; give another model, or write for another runtime")
    if model.num_layers != plan.num_layers:
        raise ValueError(
            f"the plan has {plan.num_layers} layers, but must have {model.num_layers}: embeddings, "
            f"{model.num_blocks} blocks and a head; plan again with --for {target}"
        )
    return model


_WIDTH = 110
_REMAT = {
    "layer": ", computed again for the backward pass",
    "selective": ", of which what is cheap is computed again for the backward pass",
}


def one_line(text: str) -> str:
    """Returns a text without what could end a comment or a string that it is written into."""
    return text.encode("unicode_escape").decode("ascii").replace('"', "'")


def heading(plan: Plan, outline: Outline, release: str) -> Iterator[str]:
    """Yields the lines that each file begins with: the plan, the release that the file is for, and the stages."""
    yield one_line(f"{plan.model or 'A model'} on {plan.cluster}, a batch of {plan.batch}.")
    predicted = plan.predicted if plan.step_s else "its step isn't predicted"
    yield f"A plan by alpa-dejavu for {release}: {predicted}."
    yield (
        f"{outline.pipeline} x {outline.data_parallel} x {outline.tensor_parallel} devices: pipeline, data and tensor "
        f"parallel, tensor parallel ones next to each other; {outline.num_micro_batches} micro-batches of "
        f"{outline.micro_batch} samples in each replica; schedule {outline.schedule}."
    )
    shared = [
        f"{name} {value}" for name, value in outline.degrees.items() if value != DEGREES[name]
    ]
    if shared:
        yield f"Of the data parallel devices, as the plan has them: {', '.join(shared)}."
    yield "Ranks go along the hosts in the order of the stages:"
    last = len(plan.stages) - 1
    for n, stage in enumerate(plan.stages):
        parts = [*(["embeddings"] if n == 0 else []), units.counted(outline.blocks[n], "block")]
        parts += ["head and loss"] if n == last else []
        remat = _REMAT.get(outline.remat[n], "")
        if outline.again[n] < outline.blocks[n] and outline.again[n]:
            remat = f", of which the first {outline.again[n]} are computed again for the backward pass"
        yield one_line(f"  stage {n}: {', '.join(parts)}{remat}, on {', '.join(stage.hosts)}")


def commented(lines: Iterable[str], sign: str = "#") -> str:
    """Returns lines as comments, each behind a sign."""
    text = ""
    for line in lines:
        inside = "    " if line.startswith(" ") else "  "
        for part in textwrap.wrap(line, _WIDTH, subsequent_indent=inside, break_on_hyphens=False) or [""]:
            text += f"{sign} {part}".strip(" ") + "\n"
    return text


def filled(template: str, **fields: object) -> str:
    """Returns a template of a file that is written, with what stands in its braces."""
    path = pathlib.Path(__file__).with_name("templates") / f"{template}.py.txt"
    return path.read_text(encoding="utf-8").format(**fields)
