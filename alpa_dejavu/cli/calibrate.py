"""`alpa-dejavu calibrate`."""

from __future__ import annotations

import datetime
import logging
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from alpa_dejavu._util import units
from alpa_dejavu.cli.calibration import host_link_table, host_memory_table
from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.files import check_outputs
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import PLAN_FILE, local_option
from alpa_dejavu.cli.ray_cluster import ray_cluster
from alpa_dejavu.cli.table import Table, new_table
from alpa_dejavu.cli.traces import traced_steps
from alpa_dejavu.cli.working import working
from alpa_dejavu.plans.plan_file import read_plan

if TYPE_CHECKING:
    from alpa_dejavu.calibration import Calibration
    from alpa_dejavu.problem import Cluster

_log = logging.getLogger(__name__)

_LEAST_S = 1.0
"""What probing the links of a few hosts takes at most."""


@click.command(
    cls=Command,
    examples=("alpa-dejavu calibrate --output here.json", "alpa-dejavu calibrate --output here.json --links"),
    rests_on="All figures are measured on Ray's cluster; errors are those of measurements that a fit left out.",
)
@option("--output", type=PLAN_FILE, required=True, metavar="FILE", help="Calibration file to write (JSON).")
@option(
    "--budget", type=click.FloatRange(min=_LEAST_S), default=150.0, show_default=True, metavar="SECONDS",
    help="Seconds that measuring may take.",
)  # fmt: skip
@option("--resume", is_flag=True, help="Go on from the measurements of an interrupted run.")
@option("--machine", metavar="NAME|FILE", help="Machine of devices whose names in Ray are unknown.")
@option(
    "--database",
    type=PLAN_FILE,
    metavar="FILE",
    help="Database by `calibration convert` that collectives and products are fitted to.",
)
@local_option
@option("--hosts", type=click.IntRange(min=1), default=1, show_default=True,
        help="Hosts of N devices each, with --local.")  # fmt: skip
@option("--folder", default="", metavar="DIR", help="Folder on the drives to measure.  [default: temporary files']")
@option("--links", is_flag=True, help="Measure only the links between hosts, and add them to FILE.")
@option("--from-trace", "traces", multiple=True, type=click.Path(path_type=pathlib.Path), metavar="TRACE",
        help="Take figures from a profiler's trace of a step (a file a rank, or a folder), not from Ray.")  # fmt: skip
@option("--plan", "plan_path", type=PLAN_FILE, metavar="PLAN.json", help="Plan of the step, with --from-trace.")
@option("--every-pair", is_flag=True, help="With --links, probe all pairs of hosts, even of equal ones.")
@click.pass_obj  # what tells seconds, where a caller of the command hands one in
def calibrate(
    clock: Callable[[], float] | None,
    output: pathlib.Path,
    budget: float,
    resume: bool,
    machine: str | None,
    database: pathlib.Path | None,
    local: int | None,
    hosts: int,
    folder: str,
    links: bool,
    traces: Sequence[pathlib.Path],
    plan_path: pathlib.Path | None,
    every_pair: bool,
) -> None:
    """Measures Ray's cluster, and writes a calibration; or takes it from the trace of a step.

    It measures links, kernel launches and host memory; operators are predicted as without a calibration. On CPU devices
    it is experimental, except for --links: stages are predicted no better than without it (docs/results.md). Every
    measurement is kept in FILE.measurements.jsonl (with --links, FILE.links.jsonl) as soon as it is taken.
    """
    check_outputs(output)
    if hosts > 1 and local is None:
        raise click.UsageError("--hosts is of --local N; without it the hosts are those that Ray has")
    if bool(traces) != (plan_path is not None):
        raise click.UsageError("--from-trace and --plan go together: the trace is of a step of that plan")
    if traces and plan_path is not None:
        _from_trace(output, traces, plan_path)
        return
    if every_pair and not links:
        raise click.UsageError("--every-pair is of --links; without it no pairs of hosts are probed")
    if links:
        _links(output, resume, machine, every_pair, local, hosts)
        return
    kept = output.with_name(f"{output.name}.measurements.jsonl")
    _check_kept(output, kept, resume)
    from alpa_dejavu.calibration import write_calibration
    from alpa_dejavu.calibration.calibrate import calibrate as measure
    from alpa_dejavu.calibration.calibrate import identity
    from alpa_dejavu.calibration.calibrate_links import with_host_links
    from alpa_dejavu.calibration.database import read_database
    from alpa_dejavu.calibration.measurements import Measurements

    before = None if database is None else read_database(database)
    earlier = _calibrated_before(output)
    with working("measuring the cluster", budget) as report, ray_cluster(local, hosts):
        from alpa_dejavu.alpa.ray_bench import ray_bench

        report("connecting")
        cluster, bench = ray_bench(machine)
        measurements = Measurements(kept, identity(cluster), resume)
        measured = measure(
            cluster, bench, measurements, budget, output.stem, report, clock or time.monotonic, before, folder
        )
    measured = measured if earlier is None else with_host_links(measured, earlier, cluster)
    measured.applied_to(cluster)
    write_calibration(measured, output)
    tables = device_table(cluster, measured), link_table(measured), host_memory_table(measured)
    fits = []
    for fit in measured.fits:
        error = f", off by {100 * fit.held_out['mape']:.0f} % where left out" if "mape" in fit.held_out else ""
        fits.append(f"{fit.part}: {fit.rows} measured{error}")
    _print_written(measured, output, kept, *tables, *fits)


def _from_trace(output: pathlib.Path, traces: Sequence[pathlib.Path], plan_path: pathlib.Path) -> None:
    """The figures that a traced step of a plan has; Ray isn't asked."""
    from alpa_dejavu.calibration import write_calibration
    from alpa_dejavu.planning.given.plan_estimate import cluster_of_plan
    from alpa_dejavu.planning.given.traced_calibration import calibration_of_trace

    plan = read_plan(plan_path)
    cluster = cluster_of_plan(plan)
    with working("reading traces") as report:
        steps, notes = traced_steps(traces)
        report("fitting")
        traced = calibration_of_trace(plan, steps, cluster, name=output.stem, date=datetime.date.today())
    write_calibration(traced.calibration, output)
    to = console()
    for table in (device_table(cluster, traced.calibration), link_table(traced.calibration)):
        to.print(table)
    to.fact("the step", f"{units.seconds(traced.measured_s)} measured, {units.seconds(traced.estimated_s)} by this")
    to.fact("rests on", ", ".join(f"{count} {name}" for name, count in traced.events.items()))
    for note in notes:
        to.print(note)
    to.wrote([output])


def _calibrated_before(output: pathlib.Path) -> Calibration | None:
    """Reads the calibration of a file, if plans can be made by it: one that can't be read is replaced whole."""
    from alpa_dejavu.calibration import read_calibration

    try:
        return read_calibration(output) if output.exists() else None
    except ValueError as error:
        _log.warning("what is in %s is replaced: %s", output, error)
        return None


def _links(
    output: pathlib.Path, resume: bool, machine: str | None, every_pair: bool, local: int | None, hosts: int
) -> None:
    """The links from host to host, into a calibration that may be there."""
    from alpa_dejavu.calibration import read_calibration, write_calibration
    from alpa_dejavu.calibration.calibrate_links import calibrate_links, links_identity
    from alpa_dejavu.calibration.measurements import Measurements

    kept = output.with_name(f"{output.name}.links.jsonl")
    before = read_calibration(output) if output.exists() else None
    with working("measuring the links") as report, ray_cluster(local, hosts):
        from alpa_dejavu.alpa.ray_bench import ray_bench

        report("connecting")
        cluster, bench = ray_bench(machine)
        measurements = Measurements(kept, links_identity(cluster), resume)
        measured = calibrate_links(cluster, bench, measurements, output.stem, before, every_pair, report)
    write_calibration(measured, output)
    _print_written(measured, output, kept, host_link_table(measured))


def _print_written(calibration: Calibration, output: pathlib.Path, kept: pathlib.Path, *measured: Table | str) -> None:
    """Prints what was measured, what is missing, and where both are kept."""
    to = console()
    missing = (f"missing: {sentence}" for sentence in calibration.missing)
    for shown in (*measured, *missing, f"wrote {output} (measurements: {kept})"):
        to.print(shown)


def device_table(cluster: Cluster, calibration: Calibration) -> Table:
    """Returns a table of each kind of device's calibrated figures: before, as measured, and how uncertain they are."""
    table = new_table(("device", "figure"), ("before", "measured", "unsure by"))
    before = {host.device.name: host.device for host in cluster.hosts}
    for name, device in calibration.devices.items():
        for figure, spread in calibration.device_spread.get(name, {}).items():
            old, new = (_figure(state, figure) for state in (before[name], device))
            table.add_row(name, figure, old, new, f"{100 * spread:.0f} %")
    return table


def link_table(calibration: Calibration) -> Table:
    """Returns a table of each calibrated kind of link: its latencies, its rates, and their uncertainties."""
    table = new_table(("link", "where"), ("latency", "rate", "send latency", "send rate", "unsure by"))
    for kind in calibration.links:
        link = kind.link
        sent_s, sent_rate = link.sending
        unsure = " ".join(f"{100 * spread:.0f}" for spread in kind.spread.values())
        table.add_row(
            " - ".join(kind.devices), "within a host" if kind.within else "between hosts",
            units.seconds(link.latency_s),
            units.byte_rate(link.bytes_per_s), units.seconds(sent_s), units.byte_rate(sent_rate), f"{unsure} %",
        )  # fmt: skip
    return table


def _figure(device: object, name: str) -> str:
    field, _, part = name.rstrip("]").partition("[")
    value = getattr(device, field)
    if part:
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    value = getattr(value, "share", value)
    return "-" if value is None else units.by_name(field, value)


def _check_kept(output: pathlib.Path, kept: pathlib.Path, resume: bool) -> None:
    """Measurements that no calibration was made of yet aren't overwritten."""
    if kept.exists() and not resume and not output.exists():
        raise ValueError(
            f"{kept} has the measurements of a run that was interrupted; go on with --resume, or delete it"
        )
