"""`alpa-dejavu plan --tolerate`: a table of the seconds that replicas cost which do no harm when they are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from alpa_dejavu._util import units
from alpa_dejavu.cli.output import Pages
from alpa_dejavu.cli.table import new_table

if TYPE_CHECKING:
    from alpa_dejavu.planning import PlanningResult

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
    """Prints a row for each number of wrong replicas up to one: the replicas that the rule needs, and the step.

    Args:
        planned: the plan for the highest number.
        ask: plans with at least so many replicas of each stage.
        asked: how many replicas each stage must have anyway.
        rule: the rule's name.
        wrong: the highest number of wrong replicas.
        to: where to print.
    """
    from alpa_dejavu.planning.gathered_gradients import gathering_step_s
    from alpa_dejavu.planning.price import price_per_step

    needs = [least_replicas(asked, rule, count) for count in range(wrong + 1)]
    plans = {needs[-1]: planned}
    for need in needs:
        if need not in plans:
            plans[need] = ask(need)
    first_s = plans[needs[0]].plan.step_s
    figures = "each stage has at least", "iteration", "with all gradients gathered", "longer", "price of a step"
    table = new_table(("wrong replicas",), figures)
    for count, need in enumerate(needs):
        plan = plans[need].plan
        step_s = gathering_step_s(plan) if count else plan.step_s
        price = price_per_step(plan, plans[need].cluster)
        table.add_row(
            str(count), units.counted(need, "replica"), units.seconds(plan.step_s), units.seconds(step_s),
            f"{100 * (step_s / first_s - 1):.1f} %", "" if price is None else units.price(price * step_s / plan.step_s),
        )  # fmt: skip
    to.print(f"what it costs to tolerate wrong replicas of each stage by the rule {rule}:")
    to.print(table)
