"""A plan from Megatron's command line."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Final, final

from alpa_dejavu._util.near_names import near
from alpa_dejavu.exports._command_line import (
    MOST_DIGITS,
    CommandLine,
    ShellArgument,
    check_processes,
    command_line_of,
    wrong_line,
)
from alpa_dejavu.exports._outline import Outline
from alpa_dejavu.exports._settings import Setting, settings_of, short
from alpa_dejavu.exports._target import Foreign
from alpa_dejavu.exports.megatron._sizes import WrongArgumentError, precision_of, sizes_of_arguments
from alpa_dejavu.exports.megatron._writer import blocks_of_layout
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import NO_OFFLOAD, Offload

_MOST_NAMES, _LONGEST = 10, 60
"""So many names does an error list, and so many characters of each."""
_SETTINGS: Final = settings_of("megatron")[""]
_TELLING: Final = (
    "num-layers", "hidden-size", "num-attention-heads", "seq-length", "micro-batch-size", "global-batch-size",
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "model-parallel-size",
)  # fmt: skip
"""Arguments by which a command that trains is known."""
_DEFAULTS: Final = {"tensor-model-parallel-size": 1, "pipeline-model-parallel-size": 1}
_OTHER_PROGRAMS: Final = re.compile(
    r"(?:^|[_\W])(?:bert|t5|ict|retro|retriever|vision|vlm|mamba|hybrid|llava|multimodal|biencoder|realm|generation|"
    r"server|inference|rl|classify|inpaint|dino|mimo|convert|preprocess)(?=[_\W])"
)


def read_megatron(path: pathlib.Path, num_devices: int, model: Transformer | None = None) -> Foreign:
    """Returns the plan that a command line says. Of a model that is given the precision is the command line's."""
    line = _MegatronArguments(path, command_line_of(path, _TELLING))
    sizes = line.sizes() if model is None else dataclasses.replace(model, precision=line.precision())
    outline = line.outline(num_devices, sizes.num_blocks)
    ignored, divided = tuple(line.ignored()), line.sequence_parallel
    return Foreign(outline, sizes, ignored, line.priced_by(), sequence_parallel=divided)


def megatron_sizes(path: pathlib.Path) -> Transformer:
    """Returns the sizes of the model in a file with Megatron's arguments.

    Raises:
        ValueError: the file can't be read, or says no sizes.
    """
    return _MegatronArguments(path, command_line_of(path, _TELLING)).sizes()


@final
class _MegatronArguments:
    """The arguments of a command line by name, each once."""

    def __init__(self, path: pathlib.Path, line: CommandLine) -> None:
        self._path, self._line = path, line
        self._by_name: dict[str, ShellArgument] = {}
        self._others: list[ShellArgument] = []
        program = line.program.rpartition("/")[2]
        if _OTHER_PROGRAMS.search(program):
            raise wrong_line(
                path, line.line, f"{program} trains another model than a decoder of text, which isn't planned; give "
                "the script of a pretrain_gpt.py",
            )  # fmt: skip
        strange = [argument for argument in line.arguments if argument.name and argument.name not in _SETTINGS]
        for argument in line.arguments:
            self._check(argument, strange)
            if _SETTINGS[argument.name].use in ("aside", "off"):
                self._others.append(argument)
                continue
            before = self._by_name.setdefault(argument.name, argument)
            if before.values != argument.values:
                other = f"line {before.line} has {short(before.value)}"
                raise wrong_line(
                    path, argument.line, f"--{argument.name} is {short(argument.value)}, but {other}; leave one out"
                )

    def _check(self, argument: ShellArgument, strange: Sequence[ShellArgument]) -> None:
        """Raises what is wrong with an argument by itself."""
        shown = short(" ".join((f"--{argument.name}" if argument.name else "", *argument.values)).strip())
        setting = _SETTINGS.get(argument.name, Setting("unknown"))
        harmless = setting.use == "aside" and (setting.words == 2 or len(argument.values) <= setting.words)
        if argument.unknown is not None and (argument.unknown.flow or not harmless):
            raise wrong_line(
                self._path,
                argument.unknown.line,
                f"{shown} of line {argument.line} isn't known: {argument.unknown.reason}",
            )
        if not argument.name:
            raise wrong_line(self._path, argument.line, f"{short(argument.value)} isn't an argument; leave it out")
        if setting.use == "refused":
            raise wrong_line(self._path, argument.line, f"{shown} {setting.why}; leave it out, or plan without it")
        if setting.use == "off":
            if not argument.values or not {*argument.values} <= {*setting.allowed}:
                but = f"make it {setting.allowed[0]}, or leave it out" if setting.allowed else "leave it out"
                raise wrong_line(self._path, argument.line, f"{shown} isn't planned; {but}")
        elif argument in strange:
            names = [*dict.fromkeys(f"--{other.name[:_LONGEST]}" for other in strange)]
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            raise wrong_line(
                self._path, argument.line, f"{', '.join(names[:_MOST_NAMES])}{more} isn't known, so it may change what "
                f"is planned{near(argument.name[:_LONGEST], _SETTINGS)}; leave it out if it changes neither the model "
                "nor its division, memory or time",
            )  # fmt: skip
        elif setting.words < 2 and len(argument.values) != setting.words:
            wanted = "one value" if setting.words else "no value"
            raise wrong_line(self._path, argument.line, f"{shown} must have {wanted}; mend it")

    def ignored(self) -> list[str]:
        """Returns for each argument that says nothing of the plan that it is left aside, by line."""
        lines: dict[int, dict[str, None]] = {}
        without = [
            argument
            for argument in self._by_name.values()
            if argument.name == "attention-backend" and not _is_plain(argument)
        ]
        for argument in (*self._others, *without):
            lines.setdefault(argument.line, {})[f"--{argument.name}"] = None
        return [f"line {line}: {', '.join(names)}" for line, names in lines.items()]

    @property
    def sequence_parallel(self) -> bool:
        """Returns whether tensor-parallel devices divide norms and residuals; True where there is one."""
        return self._number("tensor-model-parallel-size") <= 1 or "sequence-parallel" in self._by_name

    def priced_by(self) -> dict[str, str]:
        """Returns how the command line's choices are priced, by the names of `PlanEstimator`'s arguments."""
        choices = {}
        backend = self._by_name.get("attention-backend")
        if backend is not None:
            if backend.value not in ("auto", "flash", "fused", "unfused", "local"):
                raise self._wrong(
                    "attention-backend", f"--attention-backend is {short(backend.value)}, but must be auto, flash, "
                    "fused, unfused or local; mend it",
                )  # fmt: skip
            if _is_plain(backend):
                choices["attention"] = "plain"
        name = "grad-reduce-in-bf16"
        if name in self._by_name:
            if self.precision() not in ("bfloat16", "float8"):
                raise self._wrong(name, f"--{name} is without --bf16, which isn't priced; add --bf16, or leave it out")
            choices["runtime"] = "nemo"  # the same with gradients in half precision
        if "overlap-grad-reduce" not in self._by_name and not self._fully_sharded:
            choices["overlap"] = "none"
        return choices

    def sizes(self) -> Transformer:
        try:
            return sizes_of_arguments(self._given)
        except WrongArgumentError as error:
            raise self._wrong(error.name, str(error)) from None
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}") from None

    def precision(self) -> str:
        try:
            return precision_of(self._given)
        except WrongArgumentError as error:
            raise self._wrong(error.name, str(error)) from None

    @property
    def _given(self) -> dict[str, str | None]:
        return {name: argument.value if _SETTINGS[name].words else None for name, argument in self._by_name.items()}

    @property
    def _fully_sharded(self) -> bool:
        return not self._by_name.keys().isdisjoint(("use-megatron-fsdp", "use-custom-fsdp", "use-torch-fsdp2"))

    def outline(self, num_devices: int, num_blocks: int) -> Outline:
        """Returns the plan on so many devices of a model of so many blocks."""
        if "accumulate-allreduce-grads-in-fp32" in self._by_name and self.precision() == "float16":
            name = "accumulate-allreduce-grads-in-fp32"
            raise self._wrong(name, f"--{name} isn't priced with --fp16; leave it out, or give --bf16, which has it")
        check_processes(self._path, self._line, num_devices)
        along, stages = self._number("tensor-model-parallel-size"), self._number("pipeline-model-parallel-size")
        across, rest = divmod(num_devices, along * stages) if along * stages else (0, 0)
        if rest or not across:
            raise ValueError(
                f"{self._path}: {along} tensor-parallel devices times {stages} stages must divide the {num_devices} "
                "devices of the cluster; give the cluster that it runs on, by --cluster and --hosts"
            )
        micro = self._needed("micro-batch-size")
        batch = self._number("global-batch-size") or micro * across
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

    def _blocks(self, num_blocks: int, stages: int) -> tuple[tuple[int, ...], int]:
        """The blocks of each stage, and the stages of each rank."""
        name = "pipeline-model-parallel-layout"
        layout = self._by_name.get(name)
        ends = [f"decoder-{end}-pipeline-num-layers" for end in ("first", "last")]
        counts = [f"account-for-{end}-in-pipeline-split" for end in ("embedding", "loss")]
        virtual = ("num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage")
        for other in (*ends, *(counts if stages > 1 else ()), *virtual):
            if other in self._by_name and layout is not None:
                raise self._wrong(other, f"--{other} is beside a --{name}; leave one out")
            if other in self._by_name and stages == 1 and other not in counts:
                raise self._wrong(
                    other, f"--{other} is for a pipeline, but there is one stage; leave it out, or give a "
                    "--pipeline-model-parallel-size above 1",
                )  # fmt: skip
        if layout is not None:
            return self._laid_out(layout.value, num_blocks, stages)
        first, last = (self._number(end) for end in ends)
        before, behind = (int(count in self._by_name and stages > 1) for count in counts)
        for option in (*ends, *virtual):
            chunked = not self._by_name.keys().isdisjoint(virtual)
            if option in ends and option in self._by_name and (before or behind or chunked):
                raise self._wrong(
                    option, f"--{option} isn't planned with virtual stages, nor with ends that count as blocks; give a "
                    "--pipeline-model-parallel-layout",
                )  # fmt: skip
        whole = num_blocks + before + behind
        chunks = self._chunks(virtual, whole, stages)
        between = stages * chunks - bool(first) - bool(last)
        equal, rest = divmod(whole - first - last, between) if between else (0, whole - first - last)
        if rest or equal < 0 or (equal == 0 and between):
            named = next((option for option in (*virtual, *ends, *counts) if option in self._by_name), "num-layers")
            counted = " with the ends that count as blocks" if before or behind else ""
            raise self._wrong(
                named, f"{whole} blocks{counted} can't be cut into {stages * chunks} equal stages; give another "
                "--num-layers or a --pipeline-model-parallel-layout",
            )  # fmt: skip
        blocks = [*[first][: bool(first)], *[equal] * between, *[last][: bool(last)]]
        blocks[0] -= before
        blocks[-1] -= behind
        return tuple(blocks), chunks

    def _chunks(self, virtual: Sequence[str], whole: int, stages: int) -> int:
        """How many stages a rank has."""
        if all(option in self._by_name for option in virtual):
            raise self._wrong(virtual[1], f"--{virtual[1]} is beside --{virtual[0]}; leave one out")
        per_stage = self._number(virtual[1])
        if virtual[1] not in self._by_name:
            return self._number(virtual[0]) or 1
        if not per_stage or whole % (per_stage * stages):
            raise self._wrong(
                virtual[1], f"--{virtual[1]} is {per_stage}, but must divide the blocks of a stage, {whole} in "
                f"{stages} stages; change one of them",
            )  # fmt: skip
        return whole // (per_stage * stages)

    def _laid_out(self, layout: str, num_blocks: int, stages: int) -> tuple[tuple[int, ...], int]:
        name = "pipeline-model-parallel-layout"
        try:
            blocks = blocks_of_layout(layout)
        except ValueError as error:
            raise self._wrong(name, str(error)) from None
        if sum(blocks) != num_blocks or len(blocks) % stages:
            raise self._wrong(
                name,
                f"the layout has {sum(blocks)} blocks in {len(blocks)} stages, but must have {num_blocks} in a "
                f"multiple of {stages}; mend it, --num-layers or --pipeline-model-parallel-size",
            )
        return blocks, len(blocks) // stages

    def _remat(self, blocks: Sequence[int]) -> bool:
        granularity = self._by_name.get("recompute-granularity")
        if "checkpoint-activations" in self._by_name:  # the old name for all of them
            return True
        # Selective: attention alone is computed again, as it always is for a plan.
        if granularity is None or granularity.value == "selective" or "recompute-activations" in self._by_name:
            return False
        if granularity.value != "full":
            raise self._wrong(
                "recompute-granularity", f"--recompute-granularity is {short(granularity.value)}, but must be full or "
                "selective; mend it",
            )  # fmt: skip
        method, number = self._by_name.get("recompute-method"), self._number("recompute-num-layers")
        if method is not None and method.value == "uniform" and number > 1:
            raise self._wrong(
                "recompute-num-layers", f"--recompute-num-layers is {number}, but must be 1 to be planned; make it 1",
            )  # fmt: skip
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
        if "use-torch-fsdp2" in self._by_name:
            return 3
        if self._fully_sharded:
            strategy = self._by_name.get("data-parallel-sharding-strategy")
            value = "optim_grads_params" if strategy is None else strategy.value
            levels = {"no_shard": 0, "optim": 2, "optim_grads": 2, "optim_grads_params": 3}
            if value not in levels:
                raise self._wrong(
                    "data-parallel-sharding-strategy",
                    f"--data-parallel-sharding-strategy is {short(value)}, but must be one of {', '.join(levels)}",
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
            return _DEFAULTS.get(name, 0)
        value = self._by_name[name].value
        if not (value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS):
            raise self._wrong(name, f"--{name} is {short(value)}, but must be a whole number; write it out")
        return int(value)

    def _needed(self, name: str) -> int:
        number = self._number(name)
        if not number:
            raise self._wrong(name, f"--{name} is missing, but must be there; add it")
        return number

    def _wrong(self, name: str, why: str) -> ValueError:
        argument = self._by_name.get(name)
        return wrong_line(self._path, self._line.line if argument is None else argument.line, why)


def _is_plain(backend: ShellArgument) -> bool:
    return backend.value in ("unfused", "local")
