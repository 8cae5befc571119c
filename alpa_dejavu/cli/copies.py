"""`alpa-dejavu plan --host-fails-every`: what copies of the training state in neighbours' memory cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util import units
from alpa_dejavu.cli.output import Pages
from alpa_dejavu.cli.table import new_table
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from alpa_dejavu.planning import PlanningResult

__all__ = ["check_copies", "print_copies"]

_DAY_S = 86400.0


def check_copies(host_fails_every_days: float | None, copy_every: int | None) -> None:
    """Checks the options.

    Raises:
        ValueError: the days aren't above 0, or steps between copies are given without the days.
    """
    if host_fails_every_days is not None:
        checks.positive("plan", "--host-fails-every", host_fails_every_days)
    elif copy_every is not None:
        raise ValueError(f"--copy-every is {copy_every}, but must come with --host-fails-every; say in how many days a "
                         "host fails once")  # fmt: skip


def print_copies(planned: PlanningResult, host_fails_every_days: float, copy_every: int | None, to: Pages) -> None:
    """Prints which host keeps whose copy, what a copy takes, and after how many steps it is made.

    Args:
        planned: the plan, with its model and cluster.
        host_fails_every_days: the mean days between two failures of one host.
        copy_every: the steps between two copies; None: those that cost least.
        to: where to print.
    """
    from alpa_dejavu.planning.changed.neighbour_copies import neighbour_copies
    from alpa_dejavu.planning.changed.state_migration import layer_state

    plan, days = planned.plan, host_fails_every_days
    copies = neighbour_copies(plan, planned.cluster, layer_state(planned.model), days * _DAY_S, copy_every)
    table = new_table(("host", "neighbour"), ("sent", "memory for copies"))
    for each in copies.hosts:
        sizes = units.size(each.sent_bytes), units.size(each.memory_bytes)
        table.add_row(each.host, each.neighbour or "hosts of its stages", *sizes)
    to.print("copies of the training state in neighbours' memory:")
    to.print(table)
    best = "" if copy_every else ", which costs least"
    every = f"after every {units.counted(copies.every, 'step')}{best}"
    to.fact("a copy", f"{units.seconds(copies.copy_s)}, {every}")
    to.fact("longer iteration", f"{units.seconds(copies.step_s)} ({100 * copies.step_s / plan.step_s:.2f} %)")
    every_days = units.number(copies.between_s / _DAY_S)
    to.fact("lost by a failure", f"{units.seconds(copies.lost_s)} of steps on average, every {every_days} days")
