"""The parameters that several commands share."""

from __future__ import annotations

import functools
import pathlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, final

import click

from alpa_dejavu.cli.files import OUTPUT

F = TypeVar("F", bound=Callable[..., Any])


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


@final
class SlicerOption(click.Option):
    """An option for a slicer, whose help names the experimental ones; they are imported when help is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Returns the option and its help."""
        from alpa_dejavu.slicing import EXPERIMENTAL

        self.help = (
            f"The search. Experimental, no better than the default in docs/results/slicers.md: "
            f"{', '.join(EXPERIMENTAL)}."
        )
        return super().get_help_record(ctx)


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
calibration_option = click.option(
    "--calibration",
    metavar="FILE|none",
    help="What was measured of the devices: a file that `alpa-dejavu calibrate` wrote, or `none` for data sheets.  "
    "[default: GPUs by models that are fitted to measured ones, other devices by data sheets]",
)
runtime_option = click.option(
    "--runtime",
    type=LateChoice("costs.runtime:runtime_names"),
    help="The training framework that runs the plan; the default is alpa, or what the given plan is for.",
)
memory_margin_option = click.option(
    "--memory-margin",
    type=float,
    metavar="SHARE",
    help="Of memory: left free where no peak was measured. The default is the machine file's, or 0.05.",
)
checkpoint_option = click.option(
    "--checkpoint-rate",
    "checkpoint_bytes_per_s",
    type=click.FloatRange(min=0, min_open=True),
    callback=lambda context, parameter, rate: rate and rate * 1e9,
    metavar="GB/S",
    help="At which all hosts together read a checkpoint, once a host is lost. The default is the cluster's, if known.",
)
overlap_option = click.option(
    "--overlap",
    type=LateChoice("costs.overlap:OVERLAPS"),
    help="What devices communicate while they compute: nothing, as Alpa's; gradients and parameters; a part of tensor "
    "parallelism's exchanges too; or all that can. The default: as the runtime has it, or what the plan has.",
)
attention_option = click.option(
    "--attention",
    type=LateChoice("problem:ATTENTION"),
    help="How attention is priced and kept: as one fused kernel, or with its scores in memory. The default: as the "
    "runtime has it, or what the plan has.",
)
offload_option = click.option(
    "--offload",
    type=LateChoice("clusters.offload_choices:OFFLOAD_CHOICES"),
    default="none",
    show_default=True,
    help="What stages keep may go to their hosts' memory (cpu), to drives (nvme), or to both (auto).",
)
_REMAT: Mapping[str, tuple[str, ...]] = {
    "auto": ("none", "selective", "layer"), "none": ("none",), "selective": ("selective",), "layer": ("layer",),
}  # fmt: skip
_ZERO: Mapping[str, tuple[int, ...]] = {"auto": (0, 2, 3), "0": (0,), "1": (2,), "2": (2,), "3": (3,)}


def saving_options(command: F) -> F:
    """Adds to a command the options for what stages do to keep less: rematerialisation and ZeRO."""
    for name, choices, text in (
        ("--zero", _ZERO, "Levels of ZeRO that stages may have: `auto` is 0, 1 or 3; 2 is taken as 1."),
        ("--remat", _REMAT, "Whether stages compute activations again: by `layer`, or, of a transformer by its sizes, "
         "`selective`, as the runtime has it. `auto` lets each stage choose."),
    ):
        command = click.option(
            name, type=click.Choice(tuple(choices)), default="auto", show_default=True, help=text,
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
        ("--shard", GroupSize(), "Groups of data-parallel devices in which ZeRO shares, as many or those of a host; "
         "the groups are replicas."),
        ("--experts", count, "Data-parallel devices among which experts are divided."),
        ("--context", count, "Devices that share a sample's tokens."),
        ("--tensor", count, "Devices that share operators. By default this and the next three are searched; all but "
         "this one are of a transformer by its sizes, under a runtime that has them."),
    ):  # fmt: skip
        command = click.option(name, type=kind, metavar=None if name == "--shard" else "N", help=text)(command)
    return command


hosts_option = click.option(
    "--hosts", type=click.IntRange(min=1), default=1, show_default=True, help="How many machines."
)
micro_batches_option = click.option(
    "--micro-batches", type=Count(), default="auto", show_default=True, help="Parts of the batch."
)
layers_option = click.option(
    "--layers", type=Count(), default="auto", show_default=True, help="Layers that the model is cut into."
)
cache_option = click.option(
    "--no-cache",
    "cache",
    is_flag=True,
    callback=lambda context, parameter, off: False if off else None,
    help="Trace the model anew, and keep nothing of it for the next time.",
)
trust_option = click.option(
    "--trust-model",
    is_flag=True,
    help="Import and call the function that the plan's file names as its model; without it, files run no code.",
)
slicer_option = click.option(
    "--slicer",
    "slicing",
    type=LateChoice("slicing:SLICERS"),
    default="dynamic",
    show_default=True,
    cls=SlicerOption,
    help="The search.",
)
communication_option = click.option(
    "--communication",
    type=click.Choice(("auto", "links", "alpha-beta", "free")),
    default="auto",
    show_default=True,
    help="By the links of each group of devices, the slowest link of each, or as if it cost nothing; the default is "
    "the calibration's, or without one NCCL's on known GPUs and else alpha-beta.",
)


def pricing_options(command: F) -> F:
    """Adds to a command the options for how plans are priced, whose values it takes as the planner's functions do."""
    for option in (cache_option, attention_option, overlap_option, runtime_option, calibration_option):
        command = option(command)
    return command


def output_options(command: F) -> F:
    """Adds to a command the options for the files that it may write (JSON, Python ...); `-` is standard output."""
    for name, text in (
        ("--trace", "Write the timeline as trace-event JSON, for ui.perfetto.dev."),
        ("--html", "Write a report that opens in a browser without network."),
        ("--python", "Write the lines of Python that run the plan with Alpa."),
        ("--json", "Write the plan file, which estimate, explain, diff and DejavuStageOption read."),
    ):
        parameter = f"{name.removeprefix('--')}_path"
        command = click.option(name, parameter, type=OUTPUT, metavar="FILE", help=text)(command)
    return command
