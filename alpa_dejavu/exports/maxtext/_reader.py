"""A plan from MaxText's configuration."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Final

from alpa_dejavu._util import units
from alpa_dejavu.exports._settings import Configuration, cluster_of
from alpa_dejavu.exports._target import Foreign
from alpa_dejavu.exports.maxtext._settings import OWN_BASE, RULES, USUAL, read_settings
from alpa_dejavu.exports.maxtext._sizes import model_sizes
from alpa_dejavu.exports.maxtext._writer import AXES
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import NO_OFFLOAD, Offload
from alpa_dejavu.sharding.transformers import execution

_AXES: Final = tuple(axis for name in AXES for axis in ((name, "fsdp_transpose") if name == "fsdp" else (name,)))
_REMAT: Final = {
    "full": "layer", "none": "none", "minimal": "none", "minimal_with_context": "none", "minimal_flash": "none",
}  # fmt: skip
"""A compiler that keeps products alone, as `minimal` has it, is what a plan without recomputation is priced with."""
_ATTENTION: Final = ("dot_product", "autoselected", "flash", "cudnn_flash_te", "cudnn_flash_jax")
"""Kernels of attention, of which the first keeps its scores."""
_TILES: Final = "num_vocab_tiling"
_LAYERS, _REPEATS = "num_layers_per_pipeline_stage", "num_pipeline_repeats"
_ROUNDS, _ACCUMULATED, _SHARE = "num_pipeline_microbatches", "gradient_accumulation_steps", "per_device_batch_size"


def read_maxtext(path: pathlib.Path, num_devices: int, model: Transformer | None = None, hosts: int = 1) -> Foreign:
    """Returns the plan that a configuration says; a given model gets its precision, its optimizer and tokens it says.

    `hosts` is how many hosts there are, which axes between them may divide.
    """
    config = read_settings(path, model)
    sizes = model_sizes(config, model)
    outline = _outline(config, _axes(config, num_devices, hosts, sizes), sizes)
    plain = config.one_of("attention", _ATTENTION) == _ATTENTION[0]
    attention = {"attention": "plain"} if plain else {}
    otherwise, by = tuple(_otherwise(config, outline, sizes)), sizes.optimizer if "opt_type" in config else ""
    return Foreign(outline, sizes, config.ignored, attention, otherwise, trained_by=by)


def _axes(config: Configuration, num_devices: int, hosts: int, sizes: Transformer) -> Mapping[str, int]:
    """Returns the degree of each axis, over hosts and within them."""
    between = config.number("num_slices") if config.get("num_slices") != -1 else hosts
    nets: dict[str, dict[str, int]] = {}
    for net, whole in (("dcn", between), ("ici", 0)):
        names = {axis: f"{net}_{axis}_parallelism" for axis in _AXES}
        degrees = {axis: config.number(name) if config.get(name) != -1 else -1 for axis, name in names.items()}
        left = [axis for axis, degree in degrees.items() if degree == -1]
        if len(left) > 1:
            usual, others = next((axis for axis in left if USUAL[names[axis]] == -1), left[0]), [*left]
            others.remove(usual)
            raise config.must_be(names[others[0]], f"a number: {names[usual]} is what is left, too")
        whole = whole or num_devices // math.prod(nets["dcn"].values())
        if left:
            degrees[left[0]] = max(whole // math.prod(max(degree, 1) for degree in degrees.values()), 1)
        nets[net] = degrees
    axes = {axis: nets["ici"][axis] * nets["dcn"][axis] for axis in _AXES}
    if math.prod(axes.values()) != num_devices:
        shown = " times ".join(f"{axis} {degree}" for axis, degree in axes.items() if degree > 1) or "1"
        widest = max(_AXES, key=lambda axis: axes[axis])
        own = next((f"{net}_{widest}_parallelism" for net in nets if nets[net][widest] > 1), "")
        why = f"the degrees are {shown}, but their product must be {cluster_of(num_devices)}, or mend them"
        raise config.wrong(own, why)
    outer = ""
    for axis in _AXES:
        if outer and nets["ici"][axis] > 1:
            raise config.wrong(
                f"dcn_{outer}_parallelism", f"dcn_{outer}_parallelism is {nets['dcn'][outer]} beside "
                f"ici_{axis}_parallelism {nets['ici'][axis]}, but must be 1: devices of axes are planned next to each "
                f"other in the order {', '.join(_AXES)}; change both",
            )  # fmt: skip
        outer = axis if nets["dcn"][axis] > 1 else outer
    shared = axes["fsdp"] * axes["fsdp_transpose"] * (axes["expert"] if sizes.num_experts < 2 else 1)
    return {**axes, "fsdp": shared, "expert": axes["expert"] if sizes.num_experts > 1 else 1}


def _outline(config: Configuration, axes: Mapping[str, int], sizes: Transformer) -> Outline:
    """Returns the plan on axes of such degrees."""
    stages, context = axes["pipeline"], axes["context"]
    shared = axes["fsdp"] * context * axes["expert"]
    across, share = axes["data"] * shared, config.real(_SHARE)
    if share <= 0:
        raise config.must_be(_SHARE, "above 0")
    passed, rounds = share * across * axes["tensor"] * stages, config.number(_ACCUMULATED)
    count = rounds
    blocks: tuple[int, ...] = (sizes.num_blocks,)
    if stages > 1:
        count = stages if config.get(_ROUNDS) == -1 else config.number(_ROUNDS)
        if rounds > 1:
            raise config.must_be(_ACCUMULATED, f"1 in a pipeline, to be planned; raise {_ROUNDS} instead")
        blocks = _blocks(config, stages, sizes.num_blocks)
    batch = round(passed * rounds)
    if batch != passed * rounds or batch % (count * (across // context)):
        parts = f"{count} micro-batches on {across // context} replicas"
        raise config.wrong(
            _SHARE, f"{_SHARE} is {share:g}, which makes a batch of {passed * rounds:g}, but that must be a multiple "
            f"of {count * (across // context)}: {parts}; change one of them",
        )  # fmt: skip
    if shared > 1 and config.flag("shard_optimizer_over_data"):
        raise config.must_be("shard_optimizer_over_data", "false where axes share parameters")
    zero = 3 if shared > 1 else 2 if across > 1 and config.flag("shard_optimizer_over_data") else 0
    remat = _REMAT[config.one_of("remat_policy", _REMAT)]
    offload = Offload(1.0) if config.flag("optimizer_memory_host_offload") else NO_OFFLOAD
    return Outline(
        batch, count, "1f1b" if stages == 1 else "gpipe", across, axes["tensor"], blocks, (remat,) * stages, zero,
        offload, context, axes["expert"], sharded=shared if zero == 3 and shared < across else 0,
    )  # fmt: skip


def _blocks(config: Configuration, stages: int, num_blocks: int) -> tuple[int, ...]:
    """Returns the blocks of each stage, of which a device has one."""
    per_stage, wanted = config.number(_LAYERS), config.get(_REPEATS)
    repeats, rest = divmod(num_blocks, stages * per_stage)
    if rest or wanted not in (-1, repeats):
        wanted = repeats if wanted == -1 else wanted
        raise config.wrong(
            _LAYERS, f"{stages} stages times {_LAYERS} {per_stage} times {_REPEATS} {wanted} must be the {num_blocks} "
            "blocks of the model; mend one of them",
        )  # fmt: skip
    if repeats > 1:
        remedy = f"make {_LAYERS} {num_blocks // stages}" if num_blocks % stages == 0 else "change the stages"
        raise config.wrong(_LAYERS, f"{_REPEATS} comes to {repeats}, but must be 1 to be planned; {remedy}")
    return (per_stage,) * stages


def _otherwise(config: Configuration, outline: Outline, sizes: Transformer) -> Iterator[str]:
    """Yields what of a configuration is priced otherwise."""
    if config.get("remat_policy") == "minimal":
        width = sizes.num_heads * (sizes.value_size or sizes.head_size) // outline.tensor_parallel
        tokens = outline.micro_batch * sizes.sequence // outline.context_parallel
        in_flight = outline.num_micro_batches if outline.pipeline > 1 else 1
        kept = units.size(2 * width * tokens * max(outline.blocks) * in_flight)
        yield f"remat_policy minimal is priced as minimal_with_context: attention isn't computed again, and {kept} kept"
    tiles = config.number(_TILES)
    if tiles > 1:
        logits = outline.micro_batch * sizes.sequence * sizes.vocabulary / outline.tensor_parallel
        kept = units.size(execution("maxtext").logit_bytes * logits * (1 - 1 / tiles))
        yield f"{_TILES} {tiles} is priced as 1, which keeps up to {kept} more on each device of the last stage"
    ring = config.one_of("context_parallel_strategy", ("all_gather", "ring")) == "ring"
    if ring and outline.context_parallel > 1:
        yield "context_parallel_strategy ring is priced as all_gather, which sends as much, and less hidden"
    if sizes.num_experts > 1 and not config.flag("megablox", True):
        yield "megablox false is priced as true, whose grouped products of experts take less time"
    rules = [name for name in RULES if name in config]
    if rules:
        yield f"{' and '.join(rules)} of {OWN_BASE} are taken to be MaxText's own"
