"""`alpa-dejavu plan`."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import click

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.cli.commands import PREDICTIONS, Command
from alpa_dejavu.cli.files import (
    OUTPUT,
    check_outputs,
    kept_beside,
    takes_stdout,
    write_output,
    write_outputs,
    write_pair,
)
from alpa_dejavu.cli.inference import inference_options
from alpa_dejavu.cli.interrupts import interrupts_stop
from alpa_dejavu.cli.models import has_own_length, model_text, training_options
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import (
    HISTORY,
    LateChoice,
    ScheduleName,
    checkpoint_option,
    communication_option,
    division_options,
    hosts_option,
    layers_option,
    memory_margin_option,
    micro_batches_option,
    offload_option,
    output_options,
    pricing_options,
    saving_options,
    slicer_option,
)
from alpa_dejavu.cli.plan_costs import (
    asked_steps,
    check_copies,
    least_replicas,
    print_copies,
    print_tolerance,
    print_whole_run,
)
from alpa_dejavu.cli.ray_cluster import connected
from alpa_dejavu.cli.working import working

_LONG = 8192
"""Samples of more tokens are hardly what is meant where nobody says their length."""


@click.command(
    cls=Command,
    examples=(
        "alpa-dejavu plan --model gpt-1.3b --cluster p3.16xlarge --batch 1024 --tokens 300000000000",
        "alpa-dejavu plan --model my_model:step --cluster mine.json --batch 256 --json plan.json --html plan.html",
    ),
    rests_on=PREDICTIONS,
)
@click.option(
    "--model",
    required=True,
    help="A known name (`gpt-39b`), a config.json, a script with Megatron's arguments, or module:function of your own.",
)
@click.option("--sequence", type=click.IntRange(min=1),
              help="Tokens of a sample, of a transformer by its sizes.  [default: as many as it may have]")  # fmt: skip
@training_options
@click.option("--cluster", required=True, help="A known machine, `2 x p3.16xlarge`, a JSON file, or `ray`.")
@hosts_option
@click.option("--batch", type=click.IntRange(min=1), help="Samples of a training step.  [required but for inference]")
@micro_batches_option
@layers_option
@click.option(
    "--schedule",
    type=ScheduleName(),
    help="Of the pipeline. `auto` searches all, or those that the given runtime has; Alpa has 1f1b, "
    "1f1b_overlap_friendly, gpipe and inference.  [default: 1f1b, or auto with --for]",
)
@click.option("--for", "runs_on", type=LateChoice("planning.search.runtimes:RUNTIMES"),
              help="Only plans that this framework can run.")  # fmt: skip
@slicer_option
@click.option("--risk", type=float, help="Of running out of memory.  [default: 0.01]")
@memory_margin_option
@click.option("--history", type=HISTORY, envvar="ALPA_DEJAVU_HISTORY", metavar="FILE",
              help="Correct by the past runs in it.")  # fmt: skip
@click.option("--objective", type=LateChoice("planning.task:OBJECTIVES"), default="time", show_default=True,
              help="What is least.")  # fmt: skip
@saving_options
@division_options
@offload_option
@click.option("--replicas", type=click.IntRange(min=1), default=1, help="Data-parallel ones of each stage, at least.")
@click.option("--tolerate", type=click.IntRange(min=0), default=0, help="Wrong replicas of a stage that do no harm.")
@click.option("--rule", default="suspicion", show_default=True, help="By which they do none, as `krum`.")
@click.option("--host-fails-every", type=float, metavar="DAYS", help="Price copies of its state on a neighbour's host.")
@click.option("--copy-every", type=click.IntRange(min=1), metavar="STEPS", help="Between copies; by default the best.")
@checkpoint_option
@click.option("--contingencies", is_flag=True, help="Plan for the loss of each host, too, which takes longer.")
@click.option("--strategy", type=LateChoice("planning.result:STRATEGIES"), default="dejavu", show_default=True,
              help="By whose search.")  # fmt: skip
@click.option("--other-schedules", is_flag=True, help="Say what other schedules would be worth.")
@click.option("--steps", type=click.IntRange(min=1), help="Say what so many steps take: hours, price, bytes by link.")
@click.option("--samples", type=click.IntRange(min=1), help="Say what training so many samples takes.")
@click.option("--tokens", type=click.IntRange(min=1), help="Say what training so many tokens takes.")
@click.option("--order", "order_path", type=OUTPUT, metavar="FILE", help="Improve the passes' order; write it as CSV.")
@communication_option
@pricing_options
@output_options
@collector_paused()
@inference_options
def plan(
    model: str,
    sequence: int | None,
    training: Mapping[str, Any],
    cluster: str,
    hosts: int,
    batch: int,
    micro_batches: int | None,
    layers: int | None,
    runs_on: str | None,
    risk: float | None,
    history: pathlib.Path | None,
    replicas: int,
    tolerate: int,
    rule: str,
    host_fails_every: float | None,
    copy_every: int | None,
    other_schedules: bool,
    steps: int | None,
    samples: int | None,
    tokens: int | None,
    order_path: pathlib.Path | None,
    attention: str | None,
    json_path: pathlib.Path | None,
    python_path: pathlib.Path | None,
    html_path: pathlib.Path | None,
    trace_path: pathlib.Path | None,
    **choices: Any,
) -> None:
    """Finds the best plan for a model on a cluster, without devices.

    A model function takes a batch size and returns a train step and its abstract arguments. With `--objective pareto`
    the fastest plan is written, and the cheaper ones are listed. With `--strategy pipelines` several pipelines that
    aren't alike are listed, but no files are written of them. With `--inference` a model function takes a batch size
    and a number of tokens, and returns a step without gradients. With `--tolerate` each stage has as many replicas as
    the rule needs, and a table says what that costs; with `--objective pareto` the list has it, too. With `--for` the
    plan is the best that a framework can run, and a note says what that costs; `alpa-dejavu export` writes its files.
    With `--host-fails-every` a table says what copies of the training state in neighbours' memory cost, and how often
    to make them. With `--steps`, `--samples` or `--tokens` it says what the whole training takes.
    """
    paths, unlike = (json_path, python_path, html_path, trace_path, order_path), None
    with working(f"planning {model} on {cluster}"):
        # What takes long to import comes once something is shown.
        from alpa_dejavu.cli import tables
        from alpa_dejavu.costs.memory_margin import DEFAULT_RISK
        from alpa_dejavu.layers.models import tokens_of_sample
        from alpa_dejavu.planning import plan_model
        from alpa_dejavu.planning.rivals import UnlikePipelinesError
        from alpa_dejavu.problem.limits import check_sizes
        from alpa_dejavu.schedules.schedule_file import schedule_text

        check_outputs(*paths, *kept_beside(json_path))
        by_itself = sequence is None and has_own_length(model)
        model = model_text(model, sequence, training)
        check_sizes(batch, layers, micro_batches, hosts)
        check_copies(host_fails_every, copy_every)
        whole = asked_steps(steps, samples, tokens, batch, model)
        ask = functools.partial(
            plan_model,
            model,
            connected() if cluster == "ray" else cluster,
            hosts,
            batch,
            micro_batches,
            layers,
            runs_on=runs_on or "",
            history=history,
            attention=attention or "",
            risk=DEFAULT_RISK if risk is None else risk,
            **choices,
        )
        try:
            with interrupts_stop():
                planned = ask(replicas=least_replicas(replicas, rule, tolerate))
        except UnlikePipelinesError as error:
            unlike = error
    to = console(takes_stdout(*paths))
    if unlike is not None:
        tables.print_pipelines(unlike.plan, unlike.cluster, to)
        if any(path is not None for path in paths):
            raise unlike
        return
    lacking = ""
    try:
        tables.print_planned(dataclasses.replace(planned, front=()) if tolerate else planned, to)
        if by_itself and (tokens_of_sample(model) or 0) > _LONG:
            to.print("a sample has as many tokens as the model may have: --sequence takes fewer")
        if tolerate:
            print_tolerance(planned, lambda least: ask(replicas=least), replicas, rule, tolerate, to)
        if host_fails_every is not None:
            print_copies(planned, host_fails_every, copy_every, to)
        if whole is not None:
            print_whole_run(planned, whole, to)
        if other_schedules:
            tables.print_other_schedules(planned, to)
        order = None if order_path is None else tables.print_improved_order(planned, to)
        if history is not None and planned.plan.correction is None:
            to.fact("not corrected", f"{history} has no runs on such devices yet")
    finally:
        # Where nothing can be printed, or another file can't be written, what was planned isn't lost.
        written: list[pathlib.Path] = []
        if json_path is not None:
            from alpa_dejavu.planning.changed.kept import Kept

            written, lacking = write_pair(planned.plan, Kept.of(planned), json_path)
        try:
            written += write_outputs(planned, None, *paths[1:4], steps=whole)
        finally:
            to.wrote(written)
    if order_path is not None and order is not None:
        to.wrote(write_output(order_path, schedule_text(order)))
    if lacking:
        to.print(lacking)
