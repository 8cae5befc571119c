"""A plan from Megatron's command line."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import final

from alpa_dejavu.exports._command_line import Argument, arguments_of, wrong_line
from alpa_dejavu.exports._foreign import Foreign, Reader
from alpa_dejavu.exports._outline import Outline
from alpa_dejavu.exports.megatron._layout import blocks_of_layout
from alpa_dejavu.exports.megatron._sizes import SIZE_FLAGS, SIZE_VALUES, sizes_of_arguments
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import NO_OFFLOAD, Offload

__all__ = ["MegatronReader", "megatron_sizes"]

_DEGREES = {
    "tensor-model-parallel-size": 1, "pipeline-model-parallel-size": 1, "context-parallel-size": 1,
    "expert-model-parallel-size": 1, "nnodes": 0, "nproc_per_node": 0, "nproc-per-node": 0, "micro-batch-size": 0,
    "global-batch-size": 0, "num-virtual-stages-per-pipeline-rank": 0, "num-layers-per-virtual-pipeline-stage": 0,
    "decoder-first-pipeline-num-layers": 0, "decoder-last-pipeline-num-layers": 0, "recompute-num-layers": 0,
}  # fmt: skip
_FLAGS = (
    "sequence-parallel", "use-distributed-optimizer", "use-megatron-fsdp", "optimizer-cpu-offload",
    "use-precision-aware-optimizer", "no-gradient-accumulation-fusion", "recompute-activations",
)  # fmt: skip
_VALUES = (
    "pipeline-model-parallel-layout", "data-parallel-sharding-strategy", "ckpt-format", "recompute-granularity",
    "recompute-method", "optimizer-offload-fraction",
)  # fmt: skip
_KNOWN = {*_DEGREES, *_FLAGS, *_VALUES, *SIZE_FLAGS, *SIZE_VALUES}


@final
@dataclasses.dataclass(frozen=True)
class MegatronReader(Reader):
    """A reader of Megatron-LM's command line, in a script or a text file."""

    def read(self, path: pathlib.Path, num_devices: int, model: Transformer | None = None) -> Foreign:
        """Returns the plan that a command line says."""
        said = _Said(path, arguments_of(path))
        sizes = model or said.sizes()
        return Foreign(said.outline(num_devices, sizes.num_blocks), sizes, tuple(said.ignored()))


def megatron_sizes(path: pathlib.Path) -> Transformer:
    """Returns the sizes of the model in a file with Megatron's arguments.

    Raises:
        ValueError: the file can't be read, or says no sizes.
    """
    return _Said(path, arguments_of(path)).sizes()


@final
class _Said:
    """The arguments of a command line by name, each once."""

    def __init__(self, path: pathlib.Path, arguments: Iterable[Argument]) -> None:
        self._path = path
        self._by_name: dict[str, Argument] = {}
        self._others: list[Argument] = []
        for one in arguments:
            if one.name not in _KNOWN:
                self._others.append(one)
                continue
            before = self._by_name.setdefault(one.name, one)
            if before.values != one.values:
                raise wrong_line(
                    path,
                    one.line,
                    f"--{one.name} is {one.value!r}, but line {before.line} has {before.value!r}; leave one out",
                )
        if not self._by_name:
            raise ValueError(f"{path}: there are no arguments of Megatron's in it; give the script of the run")

    def ignored(self) -> list[str]:
        """Returns for each argument that says nothing of the plan that it is left aside, by line."""
        lines: dict[int, list[str]] = {}
        for one in self._others:
            lines.setdefault(one.line, []).append(f"--{one.name}")
        aside = [f"line {line}: {', '.join(names)}" for line, names in lines.items()]
        if self._number("tensor-model-parallel-size") > 1 and "sequence-parallel" not in self._by_name:
            aside.append("there is no --sequence-parallel, but tensor parallelism is priced with it")
        return aside

    def sizes(self) -> Transformer:
        values = {name: None if name in SIZE_FLAGS else one.value for name, one in self._by_name.items()}
        try:
            return sizes_of_arguments(values)
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}") from None

    def outline(self, num_devices: int, num_blocks: int) -> Outline:
        """Returns the plan on so many devices of a model of so many blocks."""
        for name in ("context-parallel-size", "expert-model-parallel-size"):
            if self._number(name) > 1:
                raise self._wrong(name, f"--{name} isn't planned; leave it out, or make it 1")
        self._check_devices(num_devices)
        along, stages = self._number("tensor-model-parallel-size"), self._number("pipeline-model-parallel-size")
        across, rest = divmod(num_devices, along * stages)
        if rest or not across:
            raise ValueError(
                f"{self._path}: {along} tensor-parallel devices times {stages} stages must divide the {num_devices} "
                "devices of the cluster; give the cluster that it runs on, by --cluster and --hosts"
            )
        batch, micro = (self._needed(name) for name in ("global-batch-size", "micro-batch-size"))
        if batch % (micro * across):
            raise self._wrong(
                "global-batch-size",
                f"--global-batch-size is {batch}, but must be a multiple of {micro * across}: --micro-batch-size on "
                f"{across} replicas",
            )
        blocks, chunks = self._blocks(num_blocks, stages)
        schedule = "1f1b" if chunks == 1 else "interleaved" if chunks == 2 else f"interleaved_{chunks}"
        count, remat = batch // micro // across, (self._remat(blocks),) * len(blocks)
        return Outline(batch, count, schedule, across, along, blocks, remat, self._zero(across), self._offload())

    def _check_devices(self, num_devices: int) -> None:
        nodes = self._number("nnodes")
        each = self._number("nproc_per_node") or self._number("nproc-per-node")
        if nodes and each and nodes * each != num_devices:
            raise self._wrong(
                "nnodes",
                f"{nodes} nodes of {each} processes aren't the {num_devices} devices of the cluster; give the cluster "
                "that it runs on, by --cluster and --hosts",
            )

    def _blocks(self, num_blocks: int, stages: int) -> tuple[tuple[int, ...], int]:
        """The blocks of each stage, and the stages of each rank."""
        name = "pipeline-model-parallel-layout"
        layout = self._by_name.get(name)
        if layout is not None:
            try:
                blocks = blocks_of_layout(layout.value)
            except ValueError as error:
                raise self._wrong(name, str(error)) from None
            if sum(blocks) != num_blocks or len(blocks) % stages:
                raise self._wrong(
                    name,
                    f"the layout has {sum(blocks)} blocks in {len(blocks)} stages, but must have {num_blocks} in a "
                    f"multiple of {stages}; mend it, --num-layers or --pipeline-model-parallel-size",
                )
            return blocks, len(blocks) // stages
        first, last = (self._number(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
        chunks = self._number("num-virtual-stages-per-pipeline-rank") or 1
        each = self._number("num-layers-per-virtual-pipeline-stage")
        if each:
            chunks = max(num_blocks // (each * stages), 1)
        if (first or last) and chunks > 1:
            name = "decoder-first-pipeline-num-layers" if first else "decoder-last-pipeline-num-layers"
            raise self._wrong(name, "with virtual stages this isn't planned; give a --pipeline-model-parallel-layout")
        between = stages * chunks - bool(first) - bool(last)
        equal, rest = divmod(num_blocks - first - last, between) if between else (0, num_blocks - first - last)
        if rest or equal < 0:
            raise ValueError(
                f"{self._path}: {num_blocks} blocks can't be cut into {stages * chunks} stages that way; give a "
                "--pipeline-model-parallel-layout"
            )
        return (*[first][: bool(first)], *[equal] * between, *[last][: bool(last)]), chunks

    def _remat(self, blocks: Sequence[int]) -> bool:
        granularity = self._by_name.get("recompute-granularity")
        # Selective: attention alone is computed again, as it always is for a plan.
        if granularity is None or granularity.value == "selective" or "recompute-activations" in self._by_name:
            return False
        method, number = self._by_name.get("recompute-method"), self._number("recompute-num-layers")
        if method is not None and method.value == "block" and number < max(blocks):
            raise self._wrong(
                "recompute-method",
                f"{number} blocks of each stage are computed again, but must be all of its {max(blocks)}, or none; "
                "read it with one of these",
            )
        return True

    def _zero(self, across: int) -> int:
        if across == 1:
            return 0
        if "use-megatron-fsdp" in self._by_name:
            strategy = self._by_name.get("data-parallel-sharding-strategy")
            value = "optim_grads_params" if strategy is None else strategy.value
            levels = {"no_shard": 0, "optim": 2, "optim_grads": 2, "optim_grads_params": 3}
            if value not in levels:
                raise self._wrong(
                    "data-parallel-sharding-strategy",
                    f"--data-parallel-sharding-strategy is {value!r}, but must be one of {', '.join(levels)}",
                )
            return levels[value]
        return 2 if "use-distributed-optimizer" in self._by_name else 0

    def _offload(self) -> Offload:
        if "optimizer-cpu-offload" not in self._by_name:
            return NO_OFFLOAD
        share = self._by_name.get("optimizer-offload-fraction")
        try:
            return Offload(optimizer=1.0 if share is None else float(share.value))
        except ValueError as error:
            raise self._wrong("optimizer-offload-fraction", f"{error}; mend it") from None

    def _number(self, name: str) -> int:
        if name not in self._by_name:
            return _DEGREES[name]
        value = self._by_name[name].value
        if not (value.isascii() and value.isdigit()):
            raise self._wrong(name, f"--{name} is {value!r}, but must be a whole number; write it out")
        return int(value)

    def _needed(self, name: str) -> int:
        number = self._number(name)
        if not number:
            raise ValueError(f"{self._path}: --{name} is missing, but must be there; add it")
        return number

    def _wrong(self, name: str, said: str) -> ValueError:
        there = self._by_name.get(name)
        return ValueError(f"{self._path}: {said}") if there is None else wrong_line(self._path, there.line, said)
