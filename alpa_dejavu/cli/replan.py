"""`alpa-dejavu replan`."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import click

from alpa_dejavu._util import units
from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.files import OUTPUT, check_outputs, kept_beside, takes_stdout, write_output, write_pair
from alpa_dejavu.cli.output import Pages, console
from alpa_dejavu.cli.parameters import (
    CLUSTER,
    FILES,
    PLAN_FILE,
    calibration_option,
    checkpoint_option,
    memory_margin_option,
    slicer_option,
)
from alpa_dejavu.cli.tables import print_plan, print_said
from alpa_dejavu.cli.working import working
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.problem import Cluster, Plan

if TYPE_CHECKING:
    from alpa_dejavu.planning.changed.replanning import Replanned


@click.command(
    cls=Command,
    examples=(
        "alpa-dejavu replan plan.json --without p3.16xlarge-3",
        "alpa-dejavu replan plan.json --slow p3.16xlarge-3=1.5 --json next.json",
    ),
    rests_on="Seconds are predicted as for the first plan; bytes that move are counted.",
)
@click.argument("path", type=PLAN_FILE, metavar="PLAN.json")
@option("--without", multiple=True, metavar="HOST", help="Host that was lost, or a device (HOST/3); may be repeated.")
@option("--without-replica", multiple=True, type=int, metavar="N",
        help="Replica of each stage to leave out; may be repeated.")  # fmt: skip
@option("--cluster", group=CLUSTER, metavar="NAME|FILE", help="New cluster: a machine, or a file.")
@option("--hosts", group=CLUSTER, type=click.IntRange(min=1), help="Hosts of the new cluster.  [default: as before]")
@option("--slow", multiple=True, metavar="HOST=FACTOR", help="Host that takes FACTOR times as long; may be repeated.")
@slicer_option
@calibration_option
@memory_margin_option
@checkpoint_option
@option("--json", "json_path", group=FILES, type=OUTPUT, metavar="FILE", help="Write the new plan file.")
@option("--python", "python_path", group=FILES, type=OUTPUT, metavar="FILE", help="Write the Python that runs it.")
def replan(
    path: pathlib.Path,
    without: tuple[str, ...],
    without_replica: tuple[int, ...],
    cluster: str | None,
    hosts: int | None,
    slow: tuple[str, ...],
    slicing: str,
    calibration: str | None,
    memory_margin: float | None,
    checkpoint_bytes_per_s: float | None,
    json_path: pathlib.Path | None,
    python_path: pathlib.Path | None,
) -> None:
    """Plans again for a changed cluster, and says which data move.

    It reads what `plan --json` kept beside the plan, so the model isn't traced again. Without that file it can take the
    contingency that `plan --contingencies` wrote for a lost host, unless you give another slicer or memory margin.
    `--without-replica` takes a replica that `alpa_dejavu.training.robust.Suspects` proposes.
    """
    from alpa_dejavu.planning.changed.kept import kept_path, read_kept
    from alpa_dejavu.planning.changed.replanning import fallback, replica_devices
    from alpa_dejavu.planning.changed.replanning import replan as plan_again

    if not (without or without_replica or cluster or slow or memory_margin is not None):
        raise click.UsageError("nothing has changed: give --without, --without-replica, --cluster, --slow or "
                               "--memory-margin")  # fmt: skip
    slower = dict(map(_factor, slow))
    check_outputs(json_path, python_path, *kept_beside(json_path))
    before = read_plan(path)
    other = without_replica or cluster or slow or slicing != "dynamic" or memory_margin is not None
    as_planned = len(without) == 1 and not other
    if as_planned and not kept_path(path).exists():
        replanned = fallback(before, without[0], checkpoint_bytes_per_s)
    else:
        kept = read_kept(path)
        named = None if cluster is None else _named(cluster, hosts, len(kept.cluster.hosts))
        with working(f"planning {path} again"):
            replanned = plan_again(
                before, kept, without=without, without_replicas=without_replica, cluster=named, slow=slower,
                slicing=slicing, calibration=calibration, memory_margin=memory_margin,
                checkpoint_bytes_per_s=checkpoint_bytes_per_s,
            )  # fmt: skip
    written, lacking = list[pathlib.Path](), ""
    if python_path is not None:
        from alpa_dejavu.exports.alpa_code import alpa_code

        written += write_output(python_path, alpa_code(replanned.plan))
    if json_path is not None:
        files, lacking = write_pair(replanned.plan, replanned.kept, json_path)
        written += files
    to = console(takes_stdout(json_path, python_path))
    left_out = (*without, *(replica_devices(before, without_replica) if without_replica else ()))
    _print_replanned(replanned, before, left_out, to)
    to.wrote(written)
    if lacking:
        to.print(lacking)


def _print_replanned(replanned: Replanned, before: Plan, without: tuple[str, ...], to: Pages) -> None:
    """Prints the new plan, what it takes next to the one before, and what moves for it."""
    print_plan(replanned.plan, to, more=[("before", f"{units.seconds(before.step_s)} a step")])
    if without:
        to.fact("without", " ".join(without))
    moved = replanned.moves
    to.fact(
        "moves",
        f"{moved.text}, for {units.counted(len(moved.layers), 'layer')}; {len(replanned.kept_layers)} of "
        f"{units.counted(replanned.plan.num_layers, 'layer')} stay",
    )
    print_said(replanned.plan, to)
    to.fact("planned again in", units.seconds(replanned.seconds))


def _named(cluster: str, hosts: int | None, before: int) -> Cluster:
    """Returns the cluster with so many hosts, or as many as before, where neither its name nor its file says that."""
    from alpa_dejavu.clusters import named_cluster
    from alpa_dejavu.clusters.cluster_file import is_cluster_file
    from alpa_dejavu.clusters.machine_file import counted_machine

    says = is_cluster_file(cluster) or counted_machine(cluster)[1] is not None
    return named_cluster(cluster, hosts or (1 if says else before))


def _factor(text: str) -> tuple[str, float]:
    """Returns the host and the factor of a "HOST=FACTOR"."""
    host, _, factor = text.rpartition("=")
    try:
        return host, float(factor)
    except ValueError:
        raise click.BadParameter(f"{text!r} isn't HOST=FACTOR, such as host-1=1.5", param_hint="--slow") from None
