"""Galvatron as a target: its JSON of parallel strategies, which has an entry for each block, and back.

References:
    Miao et al., Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism, VLDB 2023.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Final, final

from alpa_dejavu._util.json_file import CheckedFile, read_checked
from alpa_dejavu.exports._outline import Outline, commented, heading
from alpa_dejavu.exports._settings import unknown_setting
from alpa_dejavu.exports._target import Files, Foreign, short
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import Plan

__all__ = ["RELEASE", "galvatron_files", "read_galvatron"]

RELEASE = "Galvatron 2.4"
_TYPES: Final = {"1f1b": "pipedream_flush", "gpipe": "gpipe"}
_PRECISIONS: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_LEVELS: Final = {"ddp": 0, "zero2": 2, "zero3": 3}
_KEYS: Final = (
    "pp_deg", "tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "use_sp", "checkpoint", "global_bsz", "chunks",
    "pp_division", "pipeline_type", "default_dp_type", "vtp", "vsp", "vcp", "embed_sdp", "cp_sizes_enc",
    "ep_sizes_enc", "tp_of_ep_sizes_enc",
)  # fmt: skip
_ALONE: Final = {"cp_sizes_enc": 1, "use_sp": 0, "ep_sizes_enc": 1, "tp_of_ep_sizes_enc": 1}
"""Degrees of blocks that aren't planned, by the number that stands for none."""
_DIGITS = re.compile(r"\s*[0-9]{1,9}\s*")
_REMEDY = "a strategy of Galvatron's is a JSON object with pp_deg, tp_sizes_enc, dp_types_enc, global_bsz and chunks"


def galvatron_files(plan: Plan, outline: Outline, sizes: Transformer) -> Files:
    """Returns the JSON that Galvatron takes as its `--galvatron_config_path`, with pages on it."""
    names = {level: name for name, level in _LEVELS.items()}
    num_blocks = outline.num_blocks
    again = [int(outline.remat[n]) for n, number in enumerate(outline.blocks) for _ in range(number)]
    strategy = {
        "pp_deg": outline.pipeline,
        "tp_sizes_enc": _listed([outline.tensor_parallel] * num_blocks),
        "tp_consecutive_flags": _listed([1] * num_blocks),
        "dp_types_enc": _listed([int(outline.zero == 3)] * num_blocks),
        "use_sp": _listed([0] * num_blocks),
        "checkpoint": _listed(again),
        "global_bsz": outline.batch,
        "chunks": outline.num_micro_batches,
        "pp_division": _listed(outline.blocks),
        "pipeline_type": _TYPES[outline.schedule],
        "default_dp_type": names[outline.zero if outline.zero < 3 else 0],
        "vtp": outline.tensor_parallel,
        "vsp": 0,
        "embed_sdp": int(outline.zero == 3),
    }
    lines = [
        *heading(plan, outline, RELEASE), "",
        "pp_division: the blocks of each stage. tp_sizes_enc, vtp: tensor-parallel devices of blocks, and of",
        "embeddings and head; the other devices of a stage divide the batch. dp_types_enc, embed_sdp: 1 for the",
        "plan's ZeRO level 3, else default_dp_type holds: ddp is level 0, zero2 level 2. checkpoint: the plan's",
        "remat of each block. chunks: its micro-batches.", "",
        "galvatron_arguments.txt has the arguments of the run. Galvatron's configuration of the model must have",
        f"the sizes that were planned for: {sizes.text}.",
    ]  # fmt: skip
    return {
        "galvatron_config.json": json.dumps(strategy, indent=4) + "\n",
        "galvatron_config.txt": commented(lines, ""),
        "galvatron_arguments.txt": _arguments(sizes),
    }


def _arguments(sizes: Transformer) -> str:
    arguments = {
        "set_layernum_manually": 1, "num_hidden_layers": sizes.num_blocks, "set_seqlen_manually": 1,
        "seq_length": sizes.sequence, "mixed_precision": _PRECISIONS[sizes.precision],
        "galvatron_config_path": "galvatron_config.json",
    }  # fmt: skip
    return "".join(f"--{name} {value}\n" for name, value in arguments.items())


def read_galvatron(path: pathlib.Path, num_devices: int, model: Transformer | None = None) -> Foreign:
    """Returns the plan that a strategy says, whose stages must have one degree of tensor parallelism."""
    strategy = _GalvatronStrategy(read_checked(path, dict[str, Any], _REMEDY))
    return Foreign(strategy.outline(num_devices), model)


@final
class _GalvatronStrategy:
    """The data of a strategy."""

    def __init__(self, file: CheckedFile[dict[str, Any]]) -> None:
        self._file, self._data = file, file.data
        strange = next((key for key in self._data if key not in _KEYS), None)
        if strange is not None:
            raise self._wrong(strange, unknown_setting(strange, strange, _KEYS))

    def outline(self, num_devices: int) -> Outline:
        """Returns the plan on so many devices."""
        along, stages = self._numbers("tp_sizes_enc"), self._number("pp_deg")
        num_blocks = len(along)
        for key, none in _ALONE.items():
            other = next((value for value in self._numbers(key, num_blocks, none) if value > none), None)
            if other is not None:
                what = "expert" if "ep_" in key else "context"
                raise self._wrong(key, f"{key} has {other}, but must have none: {what} parallelism isn't planned")
        wide = next((n for n, value in enumerate(along) if value != along[0]), None)
        if wide is not None:
            raise self._wrong(
                "tp_sizes_enc",
                f"tp_sizes_enc has {along[0]} for block 0 and {along[wide]} for block {wide}, but must have one number "
                "for all, to be planned",
            )
        if along[0] < 1:
            raise self._wrong("tp_sizes_enc", f"tp_sizes_enc has {along[0]}, but must have at least 1")
        across, rest = divmod(num_devices, stages * along[0])
        if rest or not across:
            why = f"{stages} stages of {along[0]} tensor-parallel devices must divide the cluster's {num_devices}"
            raise self._wrong("pp_deg", why)
        self._check_groups(along[0], across, num_blocks)
        blocks = self._division(stages, num_blocks)
        again = self._numbers("checkpoint", num_blocks, 0)
        remat = []
        for n, number in enumerate(blocks):
            choices = set(again[sum(blocks[:n]) : sum(blocks[:n]) + number])
            if len(choices) > 1:
                raise self._wrong("checkpoint", f"checkpoint isn't alike in the blocks of stage {n}, but must be")
            remat.append(bool(max(choices, default=0)))
        batch, chunks = self._number("global_bsz"), self._number("chunks")
        if chunks < 1 or batch % (chunks * across):
            raise self._wrong("chunks", f"{chunks} chunks on {across} replicas must divide a batch of {batch}")
        kinds = {name: schedule for schedule, name in _TYPES.items()}
        kind = self._one_of("pipeline_type", kinds, "gpipe")
        zero = self._zero(num_blocks) if across > 1 else 0
        return Outline(batch, chunks, kinds[kind], across, along[0], blocks, tuple(remat), zero)

    def _check_groups(self, along: int, across: int, num_blocks: int) -> None:
        """Checks that the vocabulary is divided as blocks are, and tensor-parallel devices are next to each other."""
        for key, planned in (("vtp", along), ("vsp", 0), ("vcp", 1)):
            value = self._data.get(key)
            if value is not None and (isinstance(value, bool) or value != planned):
                why = "the vocabulary is planned as divided like blocks"
                raise self._wrong(key, f"{key} is {short(value)}, but must be {planned}: {why}")
        apart = 0 in self._numbers("tp_consecutive_flags", num_blocks)
        if apart and along > 1 and across > 1:
            apart_why = "tp_consecutive_flags has 0, but must have 1: tensor-parallel devices are next to each other"
            raise self._wrong("tp_consecutive_flags", apart_why)

    def _zero(self, num_blocks: int) -> int:
        types = self._numbers("dp_types_enc", num_blocks)
        ends = 0 if self._data.get("embed_sdp") is None else self._number("embed_sdp", 0)
        if not {*types} <= {0, 1}:
            raise self._wrong("dp_types_enc", f"dp_types_enc has {max(types)}, but must have 0 and 1 alone")
        if len({*types, ends}) > 1:
            raise self._wrong("dp_types_enc", "dp_types_enc and embed_sdp must be alike in all layers, to be planned")
        return 3 if types[0] else _LEVELS[self._one_of("default_dp_type", _LEVELS, "ddp")]

    def _division(self, stages: int, num_blocks: int) -> tuple[int, ...]:
        if "pp_division" not in self._data:
            equal = num_blocks // stages
            return (*[equal] * (stages - 1), num_blocks - equal * (stages - 1))
        blocks = tuple(self._numbers("pp_division"))
        if len(blocks) != stages or sum(blocks) != num_blocks:
            raise self._wrong(
                "pp_division", f"pp_division has {sum(blocks)} blocks in {len(blocks)} stages, but must have "
                f"{num_blocks} in {stages}",
            )  # fmt: skip
        return blocks

    def _one_of(self, key: str, choices: dict[str, Any], default: str) -> str:
        value = self._data.get(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self._wrong(key, f"{key} is {short(value)}, but must be one of {', '.join(choices)}")
        return value

    def _number(self, key: str, least: int = 1) -> int:
        value = self._data.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(key, f"{key} is {short(value)}, but must be a whole number of at least {least}")
        return value

    def _numbers(self, key: str, count: int = 0, default: int = 1) -> list[int]:
        value = self._data.get(key)
        if value is None and count:
            return [default] * count
        parts = value.split(",") if isinstance(value, str) else []
        if not parts or not all(_DIGITS.fullmatch(part) for part in parts):
            raise self._wrong(key, f"{key} is {short(value)}, but must be whole numbers with commas between, in quotes")
        if count and len(parts) != count:
            raise self._wrong(key, f"{key} has {len(parts)} numbers, but must have {count}, as tp_sizes_enc has")
        return [int(part) for part in parts]

    def _wrong(self, key: str, why: str) -> ValueError:
        return self._file.problem((key,), why)


def _listed(values: Sequence[int]) -> str:
    return ",".join(map(str, values))
