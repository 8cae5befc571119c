"""The parameters that several commands share."""

from __future__ import annotations

import functools
import pathlib
import pkgutil
from collections.abc import Mapping
from typing import Any, final

import click

from alpa_dejavu.cli.commands import F, option
from alpa_dejavu.cli.files import OUTPUT, PAGE

BY_DEFAULT = "priced as Alpa runs it, the default: --runtime megatron, torchtitan ... price what these run"
# The headings of options in `--help-all`.
MODEL, CLUSTER, SEARCH, DEGREES, MEMORY = "Model", "Cluster", "Search", "Batch and degrees", "Memory"
PREDICTED, FAILURES, PRICES, FILES, INFERENCE = "Predictions", "Failures", "Prices", "Output", "Inference"


@final
class LateChoice(click.Choice[str]):
    """A choice among names, a collection or a function as "slicing:SLICERS", that are imported when they are needed."""

    def __init__(self, names: str) -> None:
        self.case_sensitive, self._names = True, f"alpa_dejavu.{names}"

    @functools.cached_property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """Returns the names, which are imported here."""
        names = pkgutil.resolve_name(self._names)
        return tuple(names() if callable(names) else names)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the value if it is one of the names; fails for any other."""
        is_default = param is not None and value == param.default
        return str(value) if is_default else super().convert(value, param, ctx)


class Count(click.ParamType):
    """A type of command-line parameter: a whole number of at least 1, or "auto", which becomes None."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Returns a parameter's value as a whole number of at least 1, or None for "auto"; fails for any other."""
        if value == "auto":
            return None
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = 0
        if number < 1:
            self.fail(f"{value!r} is neither 'auto' nor a whole number of at least 1", param, ctx)
        return number


class ScheduleName(click.ParamType):
    """A type of command-line parameter: the name of a pipeline schedule, or "auto"."""

    name = "NAME|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the name of a pipeline schedule, or "auto", as it is; fails for any other value."""
        if value != "auto":
            from alpa_dejavu._util.near_names import near
            from alpa_dejavu.problem.run import SCHEDULES, schedule_form

            try:
                schedule_form(value)
            except ValueError:
                names = ("auto", *SCHEDULES, "interleaved_3")
                self.fail(f"{value!r} is no schedule{near(value, names)}; there are {', '.join(names)} ...", param, ctx)
        return str(value)


PLAN_FILE = click.Path(path_type=pathlib.Path, dir_okay=False)
"""An existing plan file; reading it says what is wrong with it."""

HISTORY = click.Path(path_type=pathlib.Path, dir_okay=False)
"""A file of past runs, which may not be there yet."""
batch_option = option("--batch", group=DEGREES, type=click.IntRange(min=1), required=True, help="Samples of a step.")
calibration_option = option(
    "--calibration",
    group=PREDICTED,
    metavar="FILE|none",
    help="Measurements of the devices, by `alpa-dejavu calibrate`; none: data sheets alone.",
)
runtime_option = option(
    "--runtime",
    group=PREDICTED,
    type=LateChoice("costs.runtime:runtime_names"),
    help="Training framework.  [default: alpa or the plan's]",
)
memory_margin_option = option(
    "--memory-margin",
    group=MEMORY,
    rare=True,
    type=float,
    metavar="SHARE",
    help="Share of memory to leave free where no peak was measured.  [default: the machine file's, or 0.05]",
)
checkpoint_option = option(
    "--checkpoint-rate",
    "checkpoint_bytes_per_s",
    group=FAILURES,
    rare=True,
    type=click.FloatRange(min=0, min_open=True),
    callback=lambda context, parameter, rate: rate and rate * 1e9,
    metavar="GB/S",
    help="Rate at which all hosts together read a checkpoint after a host was lost.  [default: the cluster's, if any]",
)
for_option = option(
    "--for",
    "runs_on",
    group=SEARCH,
    type=LateChoice("planning.search.runtimes:RUNTIMES"),
    help="Framework that must be able to run the plan.",
)
overlap_option = option(
    "--overlap",
    group=PREDICTED,
    rare=True,
    type=LateChoice("costs.overlap:OVERLAPS"),
    help="Communication that overlaps with computation: none, gradients (with parameters), tensor (these and a part of "
    "tensor parallelism's collectives), or streams (all that can).  [default: the plan's, or the runtime's]",
)
attention_option = option(
    "--attention",
    group=PREDICTED,
    rare=True,
    type=LateChoice("problem:ATTENTION"),
    help="Attention as one fused kernel, or plain with its scores in memory.  [default: the plan's, or the runtime's]",
)
offload_option = option(
    "--offload",
    group=MEMORY,
    rare=True,
    type=LateChoice("clusters.offload_choices:OFFLOAD_CHOICES"),
    default="none",
    show_default=True,
    help="Where stages may offload state and activations: to host memory (cpu), to drives (nvme), or to both (auto).",
)
_REMAT: Mapping[str, tuple[str, ...]] = {
    "auto": ("none", "selective", "layer"), "none": ("none",), "selective": ("selective",), "layer": ("layer",),
}  # fmt: skip
_ZERO: Mapping[str, tuple[int, ...]] = {"auto": (0, 2, 3), "0": (0,), "1": (2,), "2": (2,), "3": (3,)}


def saving_options(command: F) -> F:
    """Adds to a command the options for what stages do to keep less: rematerialisation and ZeRO."""
    for name, choices, text in (
        ("--zero", _ZERO, "ZeRO stage; auto chooses among 0, 1 and 3. 2 is priced as 1."),
        ("--remat", _REMAT, "Activation recomputation: none, layer, or selective as the runtime has it."),
    ):
        command = option(
            name, group=MEMORY, type=click.Choice(tuple(choices)), default="auto", show_default=True, help=text,
            callback=lambda context, parameter, value, choices=choices: choices[value],
        )(command)  # fmt: skip
    return command


class GroupSize(click.ParamType):
    """A type of command-line parameter: a whole number of at least 1, "host" or "all"."""

    name = "N|host|all"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Returns a parameter's value as a whole number, or one of the words; fails for any other."""
        if value in ("host", "all"):
            return str(value)
        if not str(value).isdecimal() or int(value) < 1:
            self.fail(f"{value!r} is neither 'host' nor 'all', nor a whole number of at least 1", param, ctx)
        return int(value)


def division_options(command: F) -> F:
    """Adds to a command the options that fix how devices divide a model beside its batch."""
    count = click.IntRange(min=1)
    for name, kind, text in (
        ("--shard", GroupSize(), "Data-parallel devices over which ZeRO shards: a number, those of a host, or all; "
         "several such groups are replicas (HSDP).  [default: chosen]"),
        ("--experts", count, "Expert-parallel degree, over data-parallel devices.  [default: chosen]"),
        ("--context", count, "Context-parallel degree. It, --experts and --shard need a transformer of known sizes "
         "and a runtime that has them.  [default: chosen]"),
        ("--pipeline", count, "Pipeline-parallel degree: so many equal parts of the devices.  [default: chosen]"),
        ("--tensor", count, "Tensor-parallel degree.  [default: chosen]"),
    ):  # fmt: skip
        rare = name not in ("--tensor", "--pipeline")
        command = option(name, group=DEGREES, rare=rare, type=kind, help=text)(command)
    return command


hosts_option = option(
    "--hosts", group=CLUSTER, type=click.IntRange(min=1), default=1, show_default=True, help="Number of hosts."
)
micro_batches_option = option(
    "--micro-batches", group=DEGREES, type=Count(), default="auto", show_default=True,
    help="Micro-batches of a step.",
)  # fmt: skip
layers_option = option(
    "--layers", group=SEARCH, rare=True, type=Count(), default="auto", show_default=True,
    help="Number of layers that the model is cut into; a stage is a row of them.",
)  # fmt: skip
cache_option = option(
    "--no-cache",
    "cache",
    group=PREDICTED,
    rare=True,
    is_flag=True,
    callback=lambda context, parameter, off: False if off else None,
    help="Trace the model anew, and keep nothing of it for the next time.",
)
local_option = option(
    "--local", group=CLUSTER, type=click.IntRange(min=1), metavar="N", help="Start a local cluster of N CPU devices."
)
trust_option = option(
    "--trust-model",
    group=MODEL,
    is_flag=True,
    help="Import and call the model function that the plan file names; without it, a file runs no code.",
)
slicer_option = option(
    "--slicer",
    "slicing",
    group=SEARCH,
    rare=True,
    type=LateChoice("slicing:SLICERS"),
    default="dynamic",
    show_default=True,
    help="Search that cuts the layers into stages. Experimental, no better than the default in "
    "docs/results/slicers.md: gradient, mcmc.",
)
communication_option = option(
    "--communication",
    group=PREDICTED,
    rare=True,
    type=click.Choice(("auto", "links", "alpha-beta", "free")),
    default="auto",
    show_default=True,
    help="Cost model of communication: links (those of each group of devices), alpha-beta (the slowest link of each "
    "group), or free. auto is the calibration's, else NCCL's on known GPUs, else alpha-beta.",
)


def pricing_options(command: F) -> F:
    """Adds to a command the options for how plans are priced, whose values it takes as the planner's functions do."""
    for add in (cache_option, attention_option, overlap_option, runtime_option, calibration_option):
        command = add(command)
    return command


def output_options(command: F) -> F:
    """Adds to a command the options for the files that it may write (JSON, Python ...); `-` is standard output."""
    for name, text in (
        ("--trace", "Write the timeline as trace-event JSON, for ui.perfetto.dev."),
        ("--html", "Write the report, a page that needs no network."),
        ("--python", "Write the lines of Python that run the plan with Alpa."),
        ("--json", "Write the plan file, which other commands read."),
    ):
        parameter = f"{name.removeprefix('--')}_path"
        rare, kind = name in ("--python", "--trace"), PAGE if name == "--html" else OUTPUT
        command = option(name, parameter, group=FILES, rare=rare, type=kind, metavar="FILE", help=text)(command)
    return command
