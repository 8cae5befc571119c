"""`alpa-dejavu diff`."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import click

from alpa_dejavu._cli.output import console, gibibytes, progress, seconds
from alpa_dejavu._cli.parameters import PLAN_FILE, trust_option
from alpa_dejavu._cli.tables import new_table
from alpa_dejavu.breakdown import breakdown
from alpa_dejavu.difference import differences
from alpa_dejavu.plan_file import read_plan
from alpa_dejavu.problem import Plan


@click.command()
@click.argument("first_path", type=PLAN_FILE, metavar="A.json")
@click.argument("second_path", type=PLAN_FILE, metavar="B.json")
@click.option("--model", help="Instead of the plans': a known name, or module:function.")
@trust_option
@click.option("--cluster", help="Instead of the plans': a known machine, or a JSON file.")
def diff(
    first_path: pathlib.Path, second_path: pathlib.Path, model: str | None, trust_model: bool, cluster: str | None
) -> None:
    """Says what two plans differ in, and what each difference costs.

    A is changed into B, a difference at a time, and every plan in between is estimated; costs add up to the whole.
    """
    first, second = read_plan(first_path), read_plan(second_path)
    with progress().status("estimating the plans in between"):
        found = differences(first, second, functools.partial(_step_s, _estimator(first, model, trust_model, cluster)))
    to = console()
    if not found:
        to.print("the plans don't differ in what they run")
    table = new_table(("what",), (), (str(first_path), str(second_path)))
    table.add_column("costs", justify="right", no_wrap=True)
    for one in found:
        table.add_row(one.what, one.first, one.second, "" if one.cost_s is None else _signed(one.cost_s))
    if found:
        to.print(table)
    figures = new_table(("of the average device",), (str(first_path), str(second_path), "difference"))
    parts = [breakdown(plan) for plan in (first, second)]
    for part in parts[0]:
        figures.add_row(part, *(seconds(each[part]) for each in parts), _signed(parts[1][part] - parts[0][part]))
    figures.add_row("iteration", seconds(first.step_s), seconds(second.step_s), _signed(second.step_s - first.step_s))
    memory = [max(stage.memory_bytes for stage in plan.stages) for plan in (first, second)]
    figures.add_row("fullest memory", *map(gibibytes, memory), f"{(memory[1] - memory[0]) / 2**30:+.2f} GiB")
    to.print(figures)


def _estimator(
    plan: Plan, model: str | None, trust_model: bool, cluster: str | None
) -> Callable[[], Callable[[Plan], float]]:
    """Traces the model when it is first asked, and once."""

    @functools.cache
    def made() -> Callable[[Plan], float]:
        from alpa_dejavu.plan_estimate import PlanEstimator

        estimator = PlanEstimator(plan, model, cluster, trust_model=trust_model)
        return lambda given: estimator.estimate(given).plan.step_s

    return made


def _step_s(made: Callable[[], Callable[[Plan], float]], plan: Plan) -> float:
    return made()(plan)


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + seconds(value)
