"""`alpa-dejavu playground jobs` and `draw-jobs`: several jobs on one cluster."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import click

from alpa_dejavu._util import units
from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.files import OUTPUT, check_outputs, takes_stdout, write_output
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import CLUSTER, hosts_option
from alpa_dejavu.cli.table import new_table
from alpa_dejavu.cli.working import working

_FILE = click.Path(path_type=pathlib.Path, dir_okay=False)
_POLICIES = ("fifo", "equal-shares", "sensitivity")


@click.command(
    cls=Command,
    examples=(
        "alpa-dejavu playground jobs trace.csv --cluster p3.16xlarge --cores 64 --memory-gib 488 --model gpt-125m",
        "alpa-dejavu playground jobs trace.csv --cluster p3.16xlarge --hosts 4 --cores 64 --memory-gib 488 "
        "--model gpt-125m --policy fifo",
    ),
    rests_on="A job's speed is the predicted step of plans for parts of the cluster; nothing is run.",
)
@click.argument("path", type=_FILE, metavar="TRACE")
@option("--cluster", "machine", group=CLUSTER, required=True, metavar="NAME|FILE",
        help="Machine (`alpa-dejavu machines`), or a file.")  # fmt: skip
@hosts_option
@option("--cores", type=float, required=True, help="CPU cores of each host for jobs' data loading.")
@option("--memory-gib", type=float, required=True, help="GiB of each host for jobs' data loading.")
@option("--model", "models", multiple=True, required=True,
        help="Model whose plans give jobs their speed; jobs are divided among several.")  # fmt: skip
@option("--batch", type=click.IntRange(min=1), default=64, show_default=True, help="Samples of a step.")
@option("--layers", type=click.IntRange(min=1), default=4, show_default=True, help="Layers that models are cut into.")
@option("--micro-batches", type=click.IntRange(min=1), default=8, show_default=True, help="Micro-batches of a step.")
@option("--policy", "policies", multiple=True, help="Scheduling policy; may be repeated.  [default: all but exact]")
@option("--machines", type=_FILE, metavar="FILE",
        help="CSV file of when hosts are lost and return, in the columns of machine_meta.")  # fmt: skip
@option("--restart-s", type=float, default=30.0, show_default=True, help="Seconds that a restart takes.")
def jobs(
    path: pathlib.Path, machine: str, hosts: int, cores: float, memory_gib: float, models: Sequence[str], batch: int,
    layers: int, micro_batches: int, policies: Sequence[str], machines: pathlib.Path | None, restart_s: float,
) -> None:  # fmt: skip
    """Schedules the jobs of a trace by several policies. The trace is a CSV file in the columns of pai_task_table."""
    from alpa_dejavu.clusters import named_cluster
    from alpa_dejavu.playground.jobs import Pool, StepCurve, Workload, planned_curve, policy, schedule
    from alpa_dejavu.playground.jobs.trace import read_host_changes, read_jobs

    chosen = {name: policy(name) for name in policies or _POLICIES}
    cluster = named_cluster(machine, hosts)
    pool = Pool.of(cluster, cores, memory_gib * units.GIBIBYTES.value)
    changes = () if machines is None else read_host_changes(machines, pool.hosts)
    read_jobs(path, [StepCurve({1: 1.0})])  # a broken line is told before minutes of planning
    with working("planning for parts of the cluster"):
        curves = [planned_curve(model, cluster, batch, layers=layers, micro_batches=micro_batches) for model in models]
    trace = read_jobs(path, curves)
    workload = Workload(trace.jobs, pool, changes, restart_s)
    to = console()
    left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(trace.left_out.items()))
    to.print(f"{len(trace.jobs)} jobs on {pool.hosts} hosts of {pool.devices} devices; left out: {left_out or 'none'}")
    table = new_table(("policy",), ("mean completion", "95 % are below", "longest starved", "ended", "never ran"))
    for name, way in chosen.items():
        with working(f"running {name}"):
            outcome = schedule(workload, way)
        counts = (
            str(int((outcome.completion_s < float("inf")).sum())),
            str(int((outcome.first_s == float("inf")).sum())),
        )
        table.add_row(name, *map(units.seconds, (outcome.mean_s, outcome.high_s, outcome.starved_s.max())), *counts)
    to.print(table)


@click.command(
    "draw-jobs",
    cls=Command,
    examples=("alpa-dejavu playground draw-jobs trace.csv --seed 1", "alpa-dejavu playground draw-jobs - --jobs 10"),
    rests_on="Jobs are drawn by the seed, not taken from a cluster.",
)
@click.argument("path", type=OUTPUT, metavar="FILE")
@option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the trace.")
@option("--jobs", "count", type=click.IntRange(min=1), default=60, show_default=True, help="Number of jobs.")
@option("--between-s", type=float, default=60.0, show_default=True, help="Mean seconds between two arrivals.")
def draw_jobs(path: pathlib.Path, seed: int, count: int, between_s: float) -> None:
    """Draws a random trace of jobs. Arrivals are a Poisson process, and durations are log-normal; the columns are those
    of pai_task_table.
    """
    from alpa_dejavu.playground.jobs.trace import drawn_jobs

    check_outputs(path)
    to = console(takes_stdout(path))
    to.wrote(write_output(path, drawn_jobs(seed, count, between_s)))
