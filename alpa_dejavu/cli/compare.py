"""`alpa-dejavu compare`."""

from __future__ import annotations

import itertools
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from alpa_dejavu._util import units
from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.cli.commands import PREDICTIONS, Command, option
from alpa_dejavu.cli.files import OUTPUT, check_outputs, takes_stdout, write_output
from alpa_dejavu.cli.models import model_option, model_text, sequence_option, training_options
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import (
    CLUSTER,
    FILES,
    MEMORY,
    SEARCH,
    batch_option,
    communication_option,
    layers_option,
    micro_batches_option,
    pricing_options,
)
from alpa_dejavu.cli.plan_costs import asked_steps, whole_run_options
from alpa_dejavu.cli.table import Table, new_table
from alpa_dejavu.cli.working import working

if TYPE_CHECKING:
    from alpa_dejavu.planning.given.comparison import Cell, Comparison, Figures, Order

_SAVINGS = ("none", "remat", "ZeRO", "offload", "remat+ZeRO")


@click.command(
    cls=Command,
    examples=(
        "alpa-dejavu compare --model gpt-1.3b --cluster '2 x p3.16xlarge' --cluster p4d.24xlarge --batch 256",
        "alpa-dejavu compare --model my_model:step --cluster a.json --cluster b.json --batch 64 --json compared.json",
    ),
    rests_on=f"{PREDICTIONS} An order is sure that holds in 90 % of draws of these errors.",
)
@model_option
@sequence_option
@training_options
@option("--cluster", "clusters", group=CLUSTER, multiple=True, required=True,
        help="Machine, `2 x p3.16xlarge`, or a file; once for each cluster.")  # fmt: skip
@batch_option
@micro_batches_option
@layers_option
@option("--saving", "savings", group=MEMORY, type=click.Choice(_SAVINGS), multiple=True,
        help="Memory saving to compare; may be repeated.  [default: all]")  # fmt: skip
@option("--objective", group=SEARCH, type=click.Choice(("time", "price")), default="time", show_default=True,
        help="Quantity that each plan minimises.")  # fmt: skip
@whole_run_options
@communication_option
@pricing_options
@option("--json", "json_path", group=FILES, type=OUTPUT, metavar="FILE", help="Write all figures.")
@collector_paused()
def compare(
    model: str,
    sequence: int | None,
    training: Mapping[str, Any],
    clusters: Sequence[str],
    batch: int,
    savings: Sequence[str],
    steps: int | None,
    samples: int | None,
    tokens: int | None,
    attention: str | None,
    json_path: pathlib.Path | None,
    **choices: Any,
) -> None:
    """Says which cluster trains a model soonest and cheapest.

    It plans for each cluster with each memory saving: none (as `plan` does with `--remat none --zero 0`), remat
    (`--zero 0`: activation recomputation), ZeRO (`--remat none`: sharding of optimizer state, gradients and
    parameters), offload (`--remat none --zero 0 --offload auto`), and remat+ZeRO (as `plan` does by itself).
    """
    check_outputs(json_path)
    model = model_text(model, sequence, training)
    whole = asked_steps(steps, samples, tokens, batch, model)
    from alpa_dejavu.layers.models import model_title

    with working(f"comparing {units.counted(len(clusters), 'cluster')} for {model_title(model)}"):
        from alpa_dejavu.planning.given.comparison import SAVINGS, comparison_text
        from alpa_dejavu.planning.given.comparison import compare as compared

        comparison = compared(
            model, clusters, batch, savings=[way for way in SAVINGS if way.name in (savings or _SAVINGS)], steps=whole,
            attention=attention or "", **choices,
        )  # fmt: skip
    to = console(takes_stdout(json_path))
    on = units.counted(len(comparison.clusters), "cluster")
    to.print(f"{model_title(comparison.model)}, batch {comparison.batch}, on {on}:")
    to.print(_table(comparison))
    to.print()
    for name, text in _facts(comparison):
        to.fact(name, text)
    if json_path is not None:
        to.wrote(write_output(json_path, comparison_text(comparison)))


def _table(comparison: Comparison) -> Table:
    """A row for each saving and cluster, with the clusters of each saving in their order by seconds."""
    training = () if comparison.steps is None else ("training", "its price")
    figures = ("expected step", "price of a step", *training, "memory", "with 90 %")
    leave = ("with 90 %", "memory", *(["price of a step"] if training else []))
    table = new_table(("saving", "cluster"), figures, ("it uses",), leave=leave)
    for saving in comparison.savings:
        ranked = comparison.order(saving.name).clusters
        for cluster in (*ranked, *(name for name in comparison.clusters if name not in ranked)):
            table.add_row(saving.name, cluster, *_cells(comparison.cell(cluster, saving.name), bool(training)))
    return table


def _cells(cell: Cell, training: bool) -> Iterator[str]:
    figures = cell.figures
    if figures is None:
        yield "not planned" if cell.fits else "doesn't fit"
        yield from [""] * (5 if training else 3)
        yield "see below" if cell.fits else f"enough: {' or '.join(cell.remedies) or 'nothing that was tried'}"
        return
    yield units.seconds(figures.expected_step_s)
    yield _price(figures.price)
    if figures.training is not None:
        yield units.hours(figures.training.seconds, figures.training.deviation_s)
        yield _price(figures.training.price)
    yield units.size(figures.memory_bytes)
    yield "" if figures.interval_s is None else units.span(figures.interval_s, units.seconds)
    yield ", ".join(figures.uses) or "no saving"


def _price(value: float | None) -> str:
    return "unknown" if value is None else units.price(value)


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Facts on the order and where it changes, on what wasn't planned, and on what the seconds rest on."""
    for measure in ("seconds", "price"):
        texts = {
            saving.name: _order_text(comparison, comparison.order(saving.name, measure))
            for saving in comparison.savings
        }
        for text in dict.fromkeys(texts.values()):
            names = [name for name, other_text in texts.items() if other_text == text]
            yield f"by {measure}", f"{', '.join(names) if len(names) < len(texts) else 'with any saving'}: {text}"
    changes = [change for measure in ("seconds", "price") for change in comparison.changes(measure)]
    for change in changes:
        before, behind = ", ".join(change.before), ", ".join(change.behind)
        text = f"by {change.measure} {change.one} is before {change.other} with {before}, and behind it with {behind}"
        yield "the order changes" if change.sure else "it may change", text
    if not changes:
        yield "the order stays", "the same with every saving"
    then = "what is after 'then', and changes, is so in 90 % of draws of how far off predictions may be"
    yield "how sure", f"{then}; what is after 'then perhaps', and may change, in fewer"
    unplanned: dict[tuple[str, str], list[str]] = {}
    for cell in comparison.cells:
        if cell.figures is None and cell.fits:
            unplanned.setdefault((cell.cluster, cell.why_not), []).append(cell.saving)
    for (cluster, why), names in unplanned.items():
        which = f"{', '.join(names)} " if len(names) < len(comparison.savings) else ""
        yield "not planned", f"{which}on {cluster}: {why}"
    for cluster in comparison.clusters:
        figures = next((cell.figures for cell in comparison.cells if cell.cluster == cluster and cell.figures), None)
        if figures is not None:
            yield cluster, _footing_text(figures)


def _order_text(comparison: Comparison, order: Order) -> str:
    text = "".join(order.clusters[:1])
    for sooner, other in itertools.pairwise(order.clusters):
        text += f", then {other}" if order.is_before(sooner, other) else f", then perhaps {other}"
    unfit = f"{', '.join(order.unfit)} {'doesn' if len(order.unfit) == 1 else 'don'}'t fit" if order.unfit else ""
    planned = [cell.cluster for cell in comparison.cells if cell.saving == order.saving and cell.figures]
    unpriced = ", ".join(name for name in planned if name not in order.clusters)
    unpriced = unpriced and f"no price is known of {unpriced}"
    return "; ".join(filter(None, (text, unfit, unpriced))) or "nothing is known"


def _footing_text(figures: Figures) -> str:
    parts = ", ".join(
        f"{footing.rests_on} {100 * footing.share:.0f} %" for footing in figures.footings if footing.share >= 0.005
    )
    by = f" the calibration {figures.calibration}" if figures.calibration else ""
    text = f"its seconds rest on{by}: {parts} of the work"
    if figures.interval_s is None:
        return text
    low, high = figures.interval_s
    return f"{text}; with 90 % they are within a factor of {math.sqrt(high / low):.1f}"
