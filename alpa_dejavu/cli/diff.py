"""`alpa-dejavu diff`."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from alpa_dejavu._util import units
from alpa_dejavu._util.columns import Head
from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.output import Pages, console
from alpa_dejavu.cli.parameters import PLAN_FILE, trust_option
from alpa_dejavu.cli.table import Table, new_table
from alpa_dejavu.cli.working import working
from alpa_dejavu.layers.models import model_title
from alpa_dejavu.plans.difference import differences
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.plans.table import lacking
from alpa_dejavu.problem import Cluster, NoPlanError, Plan, PricedBy
from alpa_dejavu.simulation.breakdown import breakdown

if TYPE_CHECKING:
    from alpa_dejavu.planning.given.plan_estimate import PlanEstimator

_AGREE = 1e-3
"""Costs that are so near to what the files say, as a share of a step, are the files'."""
_signed = functools.partial(units.seconds, signed=True)


@click.command(
    cls=Command,
    examples=("alpa-dejavu diff plan.json other.json", "alpa-dejavu diff plan.json other.json --cluster mine.json"),
    rests_on="Plans in between are estimated as the plans themselves were; no difference is measured.",
)
@click.argument("first_path", type=PLAN_FILE, metavar="A.json")
@click.argument("second_path", type=PLAN_FILE, metavar="B.json")
@option("--model", help="Model instead of the plans': a name, or module:function.")
@trust_option
@option("--cluster", help="Cluster instead of the plans': a machine, or a file.")
def diff(
    first_path: pathlib.Path, second_path: pathlib.Path, model: str | None, trust_model: bool, cluster: str | None
) -> None:
    """Says how two plans differ, and what each difference costs.

    The costs, in seconds of a step, add up to the whole difference. The first plan is changed into the second one
    choice at a time, in the order of the table and in the reverse order; a cost is the mean of both.
    """
    from alpa_dejavu.planning.changed.kept_task import kept_cluster

    first, second = read_plan(first_path), read_plan(second_path)
    on = cluster or kept_cluster(first, first_path) or kept_cluster(second, second_path)
    print_difference(first, second, (str(first_path), str(second_path)), console(), model, trust_model, on)


def print_difference(
    first: Plan,
    second: Plan,
    names: tuple[str, str],
    to: Pages,
    model: str | None = None,
    trust_model: bool = False,
    cluster: str | Cluster | None = None,
) -> None:
    """Prints in what two plans (by their names in the tables) differ, what each difference costs, and both plans'
    figures.

    Plans in between are estimated for the model and the cluster; None: the plans' own.
    """
    refused: list[str] = []
    first, second = _with_sizes(first, second)
    with working("estimating the plans in between"):
        estimators = _estimators(first, second, model, trust_model, cluster)
        changes = differences(first, second, functools.partial(_step_s, estimators, refused))
    if not changes:
        to.print("the plans don't differ in what they run")
    costs = [change.cost_s for change in changes if change.cost_s is not None]
    # Both values stand wherever there is room, and the costs if there are any.
    heads = [Head("what", "name"), *(Head(name, "text") for name in names), *([Head("costs")] if costs else [])]
    table = Table(heads, leave=("costs",))
    for change in changes:
        texts = [model_title(text) if change.what == "model" else text for text in (change.first, change.second)]
        table.add_row(change.what, *texts, *([] if change.cost_s is None else [_signed(change.cost_s)]))
    if len(costs) > 1:
        table.add_row("together", "", "", _signed(sum(costs)))
    if changes:
        to.print(table)
        to.print()
    if changes and not costs and not refused:
        to.print(
            f'rows have no costs, as plans in between need the same "{changes[0].what}"; the next table says in which '
            "work the steps differ"
        )
    for line in _caveats(first, second, names, costs, refused):
        to.print(line)
    figures = new_table(("a device's step, on average",), (*names, "difference"))
    parts = [breakdown(plan) for plan in (first, second)]
    for part in dict.fromkeys([*parts[0], *parts[1]]):
        times = [shares.get(part, 0.0) for shares in parts]
        figures.add_row(part, *map(units.seconds, times), _signed(times[1] - times[0]))
    times = [first.step_s, second.step_s]
    figures.add_row("iteration", *map(units.seconds, times), _signed(times[1] - times[0]))
    memory = [max(stage.memory_bytes for stage in plan.stages) for plan in (first, second)]
    figures.add_row("fullest memory", *map(units.size, memory), units.size(memory[1] - memory[0], signed=True))
    to.print(figures)


def _caveats(
    first: Plan, second: Plan, names: tuple[str, str], costs: Sequence[float], refused: Sequence[str]
) -> Iterator[str]:
    """Returns sentences on what the costs leave out, and on where they aren't those of the files."""
    if refused:
        without = "costs are of other orders" if costs else "every order that was tried has one, so there are no costs"
        between = units.counted(len(refused), "plan")
        yield f"{between} in between can't be estimated, and {without}; the first: {refused[0]}"
    elif len(costs) > 1:
        yield "a cost is the mean of making the changes in this order and in the reverse order"
    for plan, name in zip((first, second), names, strict=True):
        yield from (f"{name} doesn't fit: {sentence}" for sentence in lacking(plan))
    files = second.step_s - first.step_s
    if costs and abs(sum(costs) - files) > _AGREE * max(first.step_s, second.step_s):
        yield (
            f"the files' own times differ by {_signed(files)}, not by {_signed(sum(costs))}: they were priced by other "
            "models or figures"
        )


def _with_sizes(first: Plan, second: Plan) -> tuple[Plan, Plan]:
    """Returns plans of two transformers with these named by their sizes, which tell what is unlike in them."""
    from alpa_dejavu.layers.models import transformer_size

    sizes = [transformer_size(plan.model) for plan in (first, second)]
    if first.model == second.model or sizes[0] is None or sizes[1] is None:
        return first, second
    return dataclasses.replace(first, model=sizes[0].text), dataclasses.replace(second, model=sizes[1].text)


def _estimators(
    first: Plan, second: Plan, model: str | None, trust_model: bool, cluster: str | Cluster | None
) -> Callable[[PricedBy | None, str], PlanEstimator]:
    """Traces a model when a plan is first asked for, and once for each way of pricing."""
    fuller = max((first, second), key=lambda plan: (plan.hardware is not None, len(plan.devices_of_hosts)))

    @functools.cache
    def estimator_of(priced_by: PricedBy | None, of: str) -> PlanEstimator:
        from alpa_dejavu.planning.given.plan_estimate import PlanEstimator

        priced = dataclasses.replace(fuller, priced_by=priced_by, model=of)
        return PlanEstimator(priced, model, cluster, trust_model=trust_model)

    return estimator_of


def _step_s(estimator_of: Callable[[PricedBy | None, str], PlanEstimator], refused: list[str], plan: Plan) -> float:
    """Seconds by what the plan was priced by; why it can't be estimated is noted."""
    by = plan.priced_by
    chosen = "latency", "communication", "calibration", "runtime", "attention", "sequence_parallel"
    estimator = estimator_of(by and PricedBy(**{name: getattr(by, name) for name in chosen}), plan.model)
    try:
        step_s = estimator.estimate(plan).plan.step_s
    except (NoPlanError, ValueError) as error:
        refused.append(str(error))
        raise
    return step_s if plan.correction is None else step_s * plan.correction.factor
