"""All targets, by their names, and a plan written to a folder as the files of one.

A new runtime needs its limits in `RUNTIMES` (planning/search/runtimes.py), a file here with its writer, an entry in
`_ALL`, and a checker in benchmarks/target_rules.py. Prices (costs/runtimes.json) and kernels (`EXECUTIONS` in
sharding/transformers/_execution.py) of its own are optional. A simulator needs its file and its entry alone.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from alpa_dejavu._util.json_file import write_whole_bytes
from alpa_dejavu._util.near_names import near
from alpa_dejavu.exports import deepspeed, galvatron, maxtext, megatron, torchtitan
from alpa_dejavu.exports._outline import sizes_of
from alpa_dejavu.exports._target import CostedWriter, Files, PlainWriter, Target, Writer
from alpa_dejavu.exports.alpa_code import alpa_code
from alpa_dejavu.exports.chakra import chakra_files
from alpa_dejavu.exports.simai import simai_files
from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.planning.search.runtimes import RUNTIMES, hindrances
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import Plan

if TYPE_CHECKING:
    from alpa_dejavu.planning.changed.kept import Kept

_RULES = "checked by rules from its documentation"


def _outlined(runtime: str, files: Callable[[Plan, Outline, Transformer], Files]) -> Writer:
    """Returns the writer for a runtime of equal stages, by a function of the plan, its outline and sizes."""
    return PlainWriter(lambda plan, model: files(plan, Outline.of(plan), sizes_of(plan, model, runtime)))


_ALL = (
    Target(
        "alpa", "Alpa 0.2.3", PlainWriter(lambda plan, _: {"alpa_plan.py": alpa_code(plan)}), RUNTIMES["alpa"],
        "local clusters of CPU devices run such scripts",
    ),
    *(
        Target(name, release, _outlined(name, files), RUNTIMES[name], tried, *read)
        for name, release, files, tried, *read in (
            (
                "megatron", megatron.RELEASE, megatron.megatron_files, "its own argument parser and validation, of "
                "megatron-core 0.19.2 on a CPU, took such scripts; no step was run", megatron.read_megatron,
            ),
            (
                "torchtitan", torchtitan.RELEASE, torchtitan.torchtitan_files,
                "torchtitan 0.3.0 trained three steps by such files on CPU processes, with the losses of one, and "
                "PyTorch 2.13.0's pipelining ran the schedules", torchtitan.read_torchtitan,
                ("config",),
            ),
            (
                "deepspeed", deepspeed.RELEASE, deepspeed.deepspeed_files,
                "DeepSpeed 0.19.8 trained three steps by such files on CPU processes, with the losses of one",
                deepspeed.read_deepspeed,
            ),
            (
                "galvatron", galvatron.RELEASE, galvatron.galvatron_files,
                f"{_RULES}, and read by Galvatron 2.4.0's own reader of strategies on a CPU; no step was run",
                galvatron.read_galvatron,
            ),
            (
                "maxtext", maxtext.RELEASE, maxtext.maxtext_files,
                "MaxText 0.2.5 trained three steps by such files on CPU devices, with the losses of one",
                maxtext.read_maxtext, ("hosts",),
            ),
        )
    ),
    Target(
        "chakra", "Chakra's schema 0.0.4, as ASTRA-sim 2 reads it", CostedWriter(chakra_files),
        tried="a replayer of our own has replayed such traces; ASTRA-sim itself wasn't run",
    ),
    Target("simai", "SimAI 1.0's workloads", CostedWriter(simai_files), tried="SimAI itself wasn't run"),
)  # fmt: skip
TARGETS = {target.name: target for target in _ALL}
"""The runtimes and simulators that plans can be written for."""
SOURCES: Mapping[str, Target] = {
    **{target.name: target for target in _ALL if target.reader is not None},
    "nemo": dataclasses.replace(TARGETS["megatron"], reader=megatron.read_nemo),
    "megatron-bridge": dataclasses.replace(TARGETS["megatron"], reader=megatron.read_megatron_bridge),
}
"""The targets whose configurations are read, by what these are called: Megatron's are of several formats."""


def named_target(name: str) -> Target:
    """Returns the target of a name. Raises ValueError if there is none of that name."""
    if name not in TARGETS:
        raise ValueError(f"to is {name!r}, but must be one of {', '.join(TARGETS)}{near(name, TARGETS)}")
    return TARGETS[name]


def export(
    plan: Plan,
    to: str | Target,
    output: str | os.PathLike[str],
    force: bool = False,
    model: Transformer | None = None,
    kept: Kept | None = None,
) -> list[pathlib.Path]:
    """Writes the files that a runtime, or a simulator, needs for a plan; returns their paths. All are written, or none.

    The model's sizes are those of its name if None; what planning has `kept` spares simulators' writers pricing the
    plan. Raises ValueError if there is no such target, it can't run the plan (says which stage, by which rule, and what
    would do), or a file is already there (but for `force`), or can't be written.
    """
    target, folder = to if isinstance(to, Target) else named_target(to), pathlib.Path(output)
    if target.runtime is not None:
        reasons: dict[str, list[str]] = {}
        for hindrance in hindrances(plan, target.name, target.runtime):
            reasons.setdefault(hindrance.remedy, []).append(hindrance.why)
        if reasons:
            why = "; ".join(f"{', '.join(whys)}; {remedy}" for remedy, whys in reasons.items())
            raise ValueError(f"{target.name} can't run the plan: {why}")
        if model is not None and (untrained := target.runtime.why_not_trained(model.text)):
            raise ValueError(f"{target.name} can't train the model: {untrained}")
    sizes = transformer_size(plan.model) if model is None else model
    files = target.writer.knowing(plan, kept).write(plan, sizes)
    paths = {name: folder / name for name in files}
    for path in () if force else paths.values():
        if path.exists() or path.is_symlink():
            raise ValueError(f"{path} is already there, but must not be; give another folder, or --force to replace it")
    for inner in {path.parent: None for path in paths.values()}:
        try:
            inner.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{inner} can't be made: {error.strerror or error}; give another folder") from None
    for name, path in paths.items():
        content = files[name]
        write_whole_bytes(path, content.encode("utf-8") if isinstance(content, str) else content)
    return list(paths.values())
