"""Galvatron as a target: its JSON of parallel strategies, which has an entry for each block, and back.

References:
    Miao et al., Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism, VLDB 2023.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Final

from alpa_dejavu._util.json_file import read_checked
from alpa_dejavu.exports._outline import commented, degrees_of, heading
from alpa_dejavu.exports._settings import Configuration, json_settings, short
from alpa_dejavu.exports._target import Files, Foreign
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import DEGREES, Outline
from alpa_dejavu.problem import Plan, blocks_again

RELEASE = "Galvatron 2.4"
_TYPES: Final = {"1f1b": "pipedream_flush", "gpipe": "gpipe"}
_PRECISIONS: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_LEVELS: Final = {"ddp": 0, "zero2": 2, "zero3": 3}
_DEGREES: Final = {
    "context_parallel": "cp_sizes_enc", "expert_parallel": "ep_sizes_enc", "expert_tensor": "tp_of_ep_sizes_enc",
}  # fmt: skip
"""Lists with a degree of each block, by the names that plans have."""
_AS_MEGATRON = "what Alpa hasn't is priced as Megatron runs it, unless --runtime names another"
_DIGITS = re.compile(r"\s*[0-9]{1,9}\s*")
_REMEDY = "a strategy of Galvatron's is a JSON object with pp_deg, tp_sizes_enc, dp_types_enc, global_bsz and chunks"


def galvatron_files(plan: Plan, outline: Outline, sizes: Transformer) -> Files:
    """Returns the JSON that Galvatron takes as its `--galvatron_config_path`, with pages on it."""
    names = {level: name for name, level in _LEVELS.items()}
    num_blocks = outline.num_blocks
    again = [int(k < outline.again[n]) for n, number in enumerate(outline.blocks) for k in range(number)]
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
        **{
            key: _listed([ways] * num_blocks)
            for name, key in _DEGREES.items() if (ways := outline.degrees[name]) != DEGREES[name]
        },
        **({"vcp": outline.context_parallel} if outline.context_parallel > 1 else {}),
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
    strategy = json_settings("galvatron", read_checked(path, dict[str, Any], _REMEDY))
    along, stages = _numbers(strategy, "tp_sizes_enc"), strategy.number("pp_deg")
    num_blocks = len(along)
    if any(_numbers(strategy, "use_sp", num_blocks, 0)):
        raise strategy.wrong("use_sp", "use_sp has 1, but must have 0 alone: give the devices as cp_sizes_enc")
    alike = {key: _alike(strategy, key, num_blocks) for key in ("tp_sizes_enc", *_DEGREES.values()) if key in strategy}
    if model is None or not model.num_experts:
        alike.pop(_DEGREES["expert_tensor"], None)
    numbers = dataclasses.replace(strategy, values=alike)
    context = numbers.number(_DEGREES["context_parallel"], 1)
    replicas = strategy.replicas("pp_deg", num_devices, stages, along[0], context)
    across = replicas * context
    degrees = degrees_of(numbers, (across, along[0]), _DEGREES)
    # The vocabulary must be divided as blocks are, and tensor-parallel devices next to each other.
    for key, planned in (("vtp", along[0]), ("vsp", 0), ("vcp", context)):
        value = strategy.get(key, planned)
        if isinstance(value, bool) or value != planned:
            raise strategy.must_be(key, f"{planned}: the vocabulary is planned as divided like blocks")
    if along[0] > 1 and across > 1 and 0 in _numbers(strategy, "tp_consecutive_flags", num_blocks):
        why = "tp_consecutive_flags has 0, but must have 1: tensor-parallel devices are next to each other"
        raise strategy.wrong("tp_consecutive_flags", why)
    equal = num_blocks // stages
    blocks = (*[equal] * (stages - 1), num_blocks - equal * (stages - 1))
    if "pp_division" in strategy:
        blocks = tuple(_numbers(strategy, "pp_division"))
    if len(blocks) != stages or sum(blocks) != num_blocks:
        why = f"pp_division has {sum(blocks)} blocks in {len(blocks)} stages, but must have {num_blocks} in {stages}"
        raise strategy.wrong("pp_division", why)
    again, ends = _numbers(strategy, "checkpoint", num_blocks, 0), itertools.accumulate(blocks)
    counts = [sum(map(bool, again[end - number : end])) for number, end in zip(blocks, ends, strict=True)]
    share = min((own / of for own, of in zip(counts, blocks, strict=True) if own), default=1.0)
    if any(own and own != blocks_again(share, of) for own, of in zip(counts, blocks, strict=True)):
        raise strategy.wrong("checkpoint", f"checkpoint has {counts} blocks of stages, but must have one share of each")
    batch, chunks = strategy.number("global_bsz"), strategy.number("chunks")
    if batch % (chunks * replicas):
        raise strategy.wrong("chunks", f"{chunks} chunks on {replicas} replicas must divide a batch of {batch}")
    schedules = {name: schedule for schedule, name in _TYPES.items()}
    schedule = schedules[strategy.one_of("pipeline_type", schedules, "gpipe")]
    zero = _zero(strategy, num_blocks) if across > 1 else 0
    remat = tuple("layer" if own else "none" for own in counts)
    outline = Outline(batch, chunks, schedule, across, along[0], blocks, remat, zero, **degrees, remat_share=share)
    if degrees == DEGREES and share == 1:
        return Foreign(outline, model)
    return Foreign(outline, model, (), {"runtime": "megatron"}, (_AS_MEGATRON,))


def _alike(strategy: Configuration, key: str, count: int) -> int:
    """Returns the one number that a list has for all blocks; 1 where nothing is said."""
    first, *others = _numbers(strategy, key, count)
    wide = next((n for n, value in enumerate(others, 1) if value != first), 0)
    if wide:
        raise strategy.wrong(
            key, f"{key} has {first} for block 0 and {others[wide - 1]} for block {wide}, but must have one number for "
            "all, to be planned",
        )  # fmt: skip
    if first < 1:
        raise strategy.wrong(key, f"{key} has {first}, but must have at least 1")
    return first


def _zero(strategy: Configuration, num_blocks: int) -> int:
    types, ends = {*_numbers(strategy, "dp_types_enc", num_blocks)}, strategy.number("embed_sdp", 0, least=0)
    if not types <= {0, 1}:
        raise strategy.wrong("dp_types_enc", f"dp_types_enc has {max(types)}, but must have 0 and 1 alone")
    if len({*types, ends}) > 1:
        raise strategy.wrong("dp_types_enc", "dp_types_enc and embed_sdp must be alike in all layers, to be planned")
    return 3 if ends else _LEVELS[strategy.one_of("default_dp_type", _LEVELS, "ddp")]


def _numbers(strategy: Configuration, key: str, count: int = 0, default: int = 1) -> list[int]:
    """Returns a number for each block, or the default for all where nothing is said."""
    value = strategy.get(key)
    if value is None and count:
        return [default] * count
    parts = value.split(",") if isinstance(value, str) else []
    if not parts or not all(_DIGITS.fullmatch(part) for part in parts):
        why = f"{key} is {short(value)}, but must be whole numbers with commas between, in quotes"
        raise strategy.wrong(key, why)
    if count and len(parts) != count:
        raise strategy.wrong(key, f"{key} has {len(parts)} numbers, but must have {count}, as tp_sizes_enc has")
    return [int(part) for part in parts]


def _listed(values: Sequence[int]) -> str:
    return ",".join(map(str, values))
