"""`alpa-dejavu plan`."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import click

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.cli.commands import PREDICTIONS, Command, option
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
from alpa_dejavu.cli.models import has_own_length, model_option, model_text, sequence_option, training_options
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import (
    BY_DEFAULT,
    CLUSTER,
    DEGREES,
    FAILURES,
    FILES,
    HISTORY,
    MEMORY,
    PREDICTED,
    SEARCH,
    LateChoice,
    ScheduleName,
    checkpoint_option,
    communication_option,
    division_options,
    for_option,
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
    whole_run_options,
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
@model_option
@sequence_option
@training_options
@option("--cluster", group=CLUSTER, required=True,
        help="Machine (`alpa-dejavu machines`), `2 x p3.16xlarge`, a file, or `ray`.")  # fmt: skip
@hosts_option
@option("--batch", group=DEGREES, type=click.IntRange(min=1),
        help="Samples of a step.  [required in training]")  # fmt: skip
@micro_batches_option
@layers_option
@option(
    "--schedule",
    group=SEARCH,
    rare=True,
    type=ScheduleName(),
    help="Pipeline schedule. auto searches all, or those that the given runtime has; Alpa has 1f1b, "
    "1f1b_overlap_friendly, gpipe and inference.  [default: 1f1b, or auto with --for]",
)
@for_option
@slicer_option
@option("--risk", group=MEMORY, rare=True, type=float, metavar="SHARE",
        help="Probability of running out of memory that a plan may have.  [default: 0.01]")  # fmt: skip
@memory_margin_option
@option("--history", group=PREDICTED, rare=True, type=HISTORY, envvar="ALPA_DEJAVU_HISTORY", metavar="FILE",
        help="Correct the predictions by the past runs in this file.")  # fmt: skip
@option("--objective", group=SEARCH, type=LateChoice("planning.task:OBJECTIVES"), default="time", show_default=True,
        help="Quantity to minimise.")  # fmt: skip
@saving_options
@division_options
@offload_option
@option("--replicas", group=FAILURES, rare=True, type=click.IntRange(min=1), default=1,
        help="Least number of data-parallel replicas of each stage.  [default: 1]")  # fmt: skip
@option("--tolerate", group=FAILURES, rare=True, type=click.IntRange(min=0), default=0,
        help="Number of faulty replicas of a stage to tolerate; a table says what that costs.")  # fmt: skip
@option("--rule", group=FAILURES, rare=True, default="suspicion", show_default=True,
        help="Robust aggregation rule that tolerates them, such as krum.")  # fmt: skip
@option("--host-fails-every", group=FAILURES, rare=True, type=float, metavar="DAYS",
        help="Say what copies of the training state on neighbouring hosts cost, if a host fails so often.")  # fmt: skip
@option("--copy-every", group=FAILURES, rare=True, type=click.IntRange(min=1), metavar="STEPS",
        help="Steps between two copies.  [default: those that cost least]")  # fmt: skip
@checkpoint_option
@option("--contingencies", group=FAILURES, rare=True, is_flag=True,
        help="Plan for the loss of each host, too, which takes longer.")  # fmt: skip
@option("--strategy", group=SEARCH, rare=True, type=LateChoice("planning.result:STRATEGIES"), default="dejavu",
        show_default=True, help="Planner that searches; pipelines only lists several unlike ones.")  # fmt: skip
@option("--other-schedules", group=SEARCH, rare=True, is_flag=True, help="Say what other schedules would gain.")
@whole_run_options
@option("--order", "order_path", group=FILES, rare=True, type=OUTPUT, metavar="FILE",
        help="Improve the order of the schedule's passes, and write it as CSV.")  # fmt: skip
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
    """Finds the best plan for a model on a cluster. No device is needed."""
    paths, unlike = (json_path, python_path, html_path, trace_path, order_path), None
    with working(f"planning {model} on {cluster}"):
        # What takes long to import comes once something is shown.
        from alpa_dejavu.cli import tables
        from alpa_dejavu.costs.memory_margin import DEFAULT_RISK
        from alpa_dejavu.layers.models import tokens_of_sample, transformer_size
        from alpa_dejavu.planning import plan_model
        from alpa_dejavu.planning.rivals import UnlikePipelinesError
        from alpa_dejavu.problem.limits import check_sizes
        from alpa_dejavu.schedules.schedule_file import schedule_text

        check_outputs(*paths, *kept_beside(json_path))
        by_itself = sequence is None and has_own_length(model)
        model = model_text(model, sequence, training)
        check_sizes(batch, layers, micro_batches, hosts)
        check_copies(host_fails_every, copy_every)
        whole = asked_steps(steps, samples, tokens, batch, model, sequence)
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
        if not runs_on and choices["runtime"] is None and transformer_size(model) is not None:
            to.print(BY_DEFAULT)
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
