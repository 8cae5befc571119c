"""`alpa-dejavu plan --tolerate`: a table of the seconds that replicas cost which do no harm when they are wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from alpa_dejavu._util import units
from alpa_dejavu._util.name_ranges import name_ranges
from alpa_dejavu.cli.output import Pages
from alpa_dejavu.cli.table import Table, new_table

if TYPE_CHECKING:
    from alpa_dejavu.planning import PlanningResult
    from alpa_dejavu.planning.given.gathered_gradients import TolerantPlan
    from alpa_dejavu.problem import Plan

__all__ = ["least_replicas", "print_tolerance"]


def least_replicas(asked: int, rule: str, wrong: int) -> int:
    """Returns how many replicas each stage must have: as many as asked for, and as the rule needs.

    Raises:
        ValueError: there is no such rule, or it tolerates no wrong replica.
    """
    if not wrong:
        return asked
    from alpa_dejavu.training.robust import replicas_to_tolerate

    return max(asked, replicas_to_tolerate(rule, wrong))


def print_tolerance(
    planned: PlanningResult, ask: Callable[[int], PlanningResult], asked: int, rule: str, wrong: int, to: Pages
) -> None:
    """Prints a row for each number of wrong replicas up to one: the replicas that the rule needs, and the step. For the
    objective "pareto" it then prints the plans for which no other is as fast, as cheap and as tolerant.

    Args:
        planned: the plan for the highest number.
        ask: plans with at least so many replicas of each stage.
        asked: how many replicas each stage must have anyway.
        rule: the rule's name.
        wrong: the highest number of wrong replicas.
        to: where to print.
    """
    from alpa_dejavu.planning.given.gathered_gradients import gathering_step_s, tolerant_front
    from alpa_dejavu.planning.result import price_per_step

    needs = [least_replicas(asked, rule, count) for count in range(wrong + 1)]
    plans = {needs[-1]: planned}
    for need in needs:
        if need not in plans:
            plans[need] = ask(need)
    first_s = plans[needs[0]].plan.step_s
    figures = "each stage has at least", "iteration", "with all gradients gathered", "longer", "price of a step"
    table = new_table(("wrong replicas",), figures, ("stages", "hosts"))
    for count, need in enumerate(needs):
        plan = _fastest(plans[need]) if count else plans[need].plan
        step_s = gathering_step_s(plan) if count else plan.step_s
        price = price_per_step(plan, plans[need].cluster)
        table.add_row(
            str(count), units.counted(need, "replica"), units.seconds(plan.step_s), units.seconds(step_s),
            f"{100 * (step_s / first_s - 1):.1f} %",
            "unknown" if price is None else units.price(price * step_s / plan.step_s),
            str(len(plan.stages)), str(len(plan.devices_of_hosts)),
        )  # fmt: skip
    to.print(f"what it costs to tolerate wrong replicas of each stage by the rule {rule}:")
    to.print(table)
    if _fastest(planned) is not planned.plan:
        to.print("The plan above is the fastest without a rule; with all gradients gathered, the table's is faster.")
    if planned.front:
        to.print(_front_table(tolerant_front({count: plans[need].front for count, need in enumerate(needs)})))


def _fastest(planned: PlanningResult) -> Plan:
    """Returns the plan whose step is the shortest with all gradients gathered, of the best one and those next to it."""
    from alpa_dejavu.planning.given.gathered_gradients import gathering_step_s

    others = [*(one.plan for one in planned.runners_up), *(one.plan for one in planned.front)]
    return min([planned.plan, *others], key=gathering_step_s)


def _front_table(front: Sequence[TolerantPlan]) -> Table:
    table = new_table(("wrong replicas", "hosts used"), ("iteration", "price of a step"), ("which hosts",))
    for one in front:
        hosts = one.priced.hosts
        figures = units.seconds(one.step_s), units.price(one.price)
        table.add_row(str(one.wrong), str(len(hosts)), *figures, name_ranges(hosts))
    return table
