"""`alpa-dejavu compare`."""

from __future__ import annotations

import functools
import itertools
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from alpa_dejavu._util import units
from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.cli.commands import PREDICTIONS, Command, option
from alpa_dejavu.cli.files import OUTPUT, check_outputs, takes_stdout, write_output
from alpa_dejavu.cli.models import model_option, model_text, sequence_option, training_options
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import (
    BY_DEFAULT,
    CLUSTER,
    FILES,
    MEMORY,
    SEARCH,
    batch_option,
    communication_option,
    for_option,
    layers_option,
    micro_batches_option,
    pricing_options,
)
from alpa_dejavu.cli.plan_costs import asked_steps, whole_run_options
from alpa_dejavu.cli.table import Table, new_table
from alpa_dejavu.cli.working import working

if TYPE_CHECKING:
    from alpa_dejavu.planning.given.comparison import Comparison, Figures, Order

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
@option("--saving", "savings", group=MEMORY, type=click.Choice((*_SAVINGS, "all")), multiple=True,
        default=_SAVINGS[-1:], show_default=True, help="Memory saving to compare; may be repeated.")  # fmt: skip
@for_option
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
    runs_on: str | None,
    attention: str | None,
    json_path: pathlib.Path | None,
    **choices: Any,
) -> None:
    """Says which cluster trains a model soonest and cheapest. Where that can't be told, it says so.

    It plans for each cluster as `plan` does by itself, or with each memory saving that is named: none (as `plan` does
    with `--remat none --zero 0`), remat (`--zero 0`: activation recomputation), ZeRO (`--remat none`: sharding of
    optimizer state, gradients and parameters), offload (`--remat none --zero 0 --offload auto`), or all of these.
    """
    check_outputs(json_path)
    model = model_text(model, sequence, training)
    whole = asked_steps(steps, samples, tokens, batch, model, sequence)
    from alpa_dejavu.layers.models import model_title, transformer_size

    with working(f"comparing {units.counted(len(clusters), 'cluster')} for {model_title(model)}"):
        from alpa_dejavu.planning.given.comparison import SAVINGS, comparison_text
        from alpa_dejavu.planning.given.comparison import compare as compared

        comparison = compared(
            model, clusters, batch, savings=[way for way in SAVINGS if {way.name, "all"} & {*savings}], steps=whole,
            runs_on=runs_on or "", attention=attention or "", **choices,
        )  # fmt: skip
    written = [] if json_path is None else write_output(json_path, comparison_text(comparison))
    to = console(takes_stdout(json_path))
    of = f"batch {comparison.batch}" + ("" if whole is None else f", {units.counted(whole, 'step')}")
    to.print(f"{model_title(comparison.model)}, {of}, on {units.counted(len(comparison.clusters), 'cluster')}:")
    for name, text in _answers(comparison) if len(clusters) > 1 else ():
        to.fact(name, text)
    to.print()
    to.print(_table(comparison))
    to.print()
    for name, text in _facts(comparison):
        to.fact(name, text)
    if not runs_on and choices["runtime"] is None and transformer_size(comparison.model) is not None:
        to.print(BY_DEFAULT)
    to.wrote(written)


def _table(comparison: Comparison) -> Table:
    """A row for each saving and cluster, the clusters of each saving in their order by seconds."""
    from alpa_dejavu.layers.models import tokens_of_sample

    length, several = tokens_of_sample(comparison.model), len(comparison.savings) > 1
    training = () if comparison.steps is None else ("training", "its price")
    rates = ("samples/s",) if length is None else ("tokens/s", "10^9 tokens")
    years = ("prices of",) if training or not several else ()  # beside a price that there is room for
    prices = (*training, *years, *rates) if training else (*rates, *years)
    figures = ("expected step", *prices, "memory", "price of a step", "with 90 %")
    leave = ("with 90 %", "price of a step", *(rates[1:] if training or several else ()), "memory")
    names, uses = (("saving", "cluster"), ("it uses",)) if several else (("cluster",), ())
    table = new_table(names, figures, uses, leave)
    for saving in comparison.savings:
        ranked = comparison.order(saving.name).clusters
        for cluster in (*ranked, *(name for name in comparison.clusters if name not in ranked)):
            cell, head = comparison.cell(cluster, saving.name), (saving.name, cluster) if several else (cluster,)
            if cell.figures is None:
                table.add_row(*head, "not planned" if cell.fits else "doesn't fit")
                continue
            row = dict(_cells(cell.figures, comparison.batch * (length or 1), length is not None))
            used = [", ".join(cell.figures.uses) or "no saving"] if several else []
            table.add_row(*head, *(row[name] for name in figures), *used)
    return table


def _cells(figures: Figures, samples: int, tokens: bool) -> Iterator[tuple[str, str]]:
    """The figures of a plan, of which a step trains so many samples, or tokens, by the heads of their columns."""
    yield "expected step", units.seconds(figures.expected_step_s)
    if figures.training is not None:
        yield "training", units.hours(figures.training.seconds)
        yield "its price", _price(figures.training.price)
    yield "prices of", _years(figures)
    yield "tokens/s" if tokens else "samples/s", units.number(samples / figures.expected_step_s)
    yield "10^9 tokens", _price(None if figures.price is None else figures.price / samples * 1e9)
    yield "memory", units.size(figures.memory_bytes)
    yield "price of a step", _price(figures.price)
    yield "with 90 %", _interval(figures)


def _interval(figures: Figures) -> str:
    """The 90 % interval of the step, or where a training is asked for, of that."""
    if figures.interval_s is None:
        return ""
    if figures.training is None:
        return units.span(figures.interval_s, units.seconds)
    ends = [end_s * figures.training.steps for end_s in figures.interval_s]
    return units.span(ends, functools.partial(units.hours, most=max(ends)))


def _price(value: float | None) -> str:
    return "unknown" if value is None else units.price(value)


def _years(figures: Figures) -> str:
    """The years that the hosts' prices are of, as far as their sources say them."""
    years = {year for source in figures.price_from for year in _YEAR.findall(_without_address(source))[-1:]}
    return ", ".join(sorted(years))


_YEAR = re.compile(r"\b20\d\d\b")


def _without_address(source: str) -> str:
    return source.partition(": http")[0]


def _answers(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Which cluster is the soonest and which the cheapest, where that can be told."""
    for name, measure in (("soonest", "seconds"), ("cheapest", "price")):
        yield from _by_saving(comparison, name, lambda order: _first_text(comparison, order), measure)


def _by_saving(
    comparison: Comparison, name: str, text_of: Callable[[Order], str], measure: str
) -> Iterator[tuple[str, str]]:
    """Yields a text for each order by a measure, once for all savings of which it is the same."""
    texts = {saving.name: text_of(comparison.order(saving.name, measure)) for saving in comparison.savings}
    for text in filter(None, dict.fromkeys(texts.values())):
        savings = [saving for saving, other_text in texts.items() if other_text == text]
        yield name, text if len(savings) == len(texts) else f"{', '.join(savings)}: {text}"


def _first_text(comparison: Comparison, order: Order) -> str:
    """The first cluster of an order if it is so for sure, or those that may be."""
    if not order.clusters:
        return "nothing fits" if order.measure == "seconds" else "no price is known"
    first, *others = order.clusters
    twins = [other for other in others if comparison.same_plan(first, other, order.saving)]
    rivals = [other for other in others if other not in twins and not order.is_before(first, other)]
    unpriced = _unpriced(comparison, order)
    if rivals:
        return f"can't be told: {', '.join([first, *rivals[:-1]])} or {rivals[-1]}{unpriced}"
    if unpriced and not others:
        return f"can't be told{unpriced}"
    figures = comparison.cell(first, order.saving).figures
    assert figures is not None, "an order has clusters with figures"
    run, years = figures.training, ""
    if order.measure == "seconds":
        text = units.seconds(figures.expected_step_s) if run is None else units.hours(run.seconds, run.deviation_s)
    else:
        text = _price(figures.price if run is None else run.price)
        years = f" at prices of {years}" if (years := _years(figures)) else ""
    same = f"; {', '.join(twins)}: the same plan" if twins else ""
    return f"{first}: {text}{'' if run else ' a step'}{years}{same}{unpriced}"


def _unpriced(comparison: Comparison, order: Order) -> str:
    planned = [cell.cluster for cell in comparison.cells if cell.saving == order.saving and cell.figures]
    names = ", ".join(name for name in planned if name not in order.clusters)
    return names and f"; no price is known of {names}"


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Facts on the order and where it changes, on what wasn't planned, and on what the seconds rest on."""
    from alpa_dejavu.planning.given.comparison import MEASURES

    for measure in MEASURES:
        yield from _by_saving(comparison, f"by {measure}", lambda order: _order_text(comparison, order), measure)
    if len(comparison.clusters) > 2:
        yield "how sure", "'then' is right with a probability of at least 90 %, 'perhaps' with a lower one"
    yield from dict.fromkeys(reason for order in comparison.orders for reason in _reasons(comparison, order))
    for change in (change for measure in MEASURES for change in comparison.changes(measure)):
        before, behind = ", ".join(change.before), ", ".join(change.behind)
        text = f"by {change.measure} {change.one} is before {change.other} with {before}, and behind it with {behind}"
        yield "the order changes" if change.sure else "it may change", text
    unplanned: dict[tuple[str, str, str], list[str]] = {}
    for cell in (cell for cell in comparison.cells if cell.figures is None):
        enough = f"enough: {' or '.join(cell.remedies) or 'nothing that was tried'}"
        reason = ("not planned", cell.why_not) if cell.fits else ("doesn't fit", enough)
        unplanned.setdefault((cell.cluster, *reason), []).append(cell.saving)
    for (cluster, what, why), names in unplanned.items():
        which = f"{', '.join(names)} " if len(names) < len(comparison.savings) else ""
        yield what, f"{which}on {cluster}: {why}"
    prices: dict[str, list[str]] = {}
    rest: dict[str, list[str]] = {}
    notes: dict[str, dict[str, None]] = {}
    for cluster in comparison.clusters:
        figures = [cell.figures for cell in comparison.cells if cell.cluster == cluster and cell.figures]
        if figures:
            rest.setdefault(_footing_text(figures[-1]), []).append(cluster)
            for note in figures[-1].notes:
                notes.setdefault(note, {})[cluster] = None
            sources = "; ".join(map(_without_address, figures[-1].price_from))
            prices.setdefault(sources, []).append(cluster)
    yield from ((", ".join(names), text) for text, names in rest.items())
    yield from (("note", f"{', '.join(names)}: {note}") for note, names in notes.items())
    yield from (("prices", f"{source}: {', '.join(names)}") for source, names in prices.items() if source)


def _order_text(comparison: Comparison, order: Order) -> str:
    text = "".join(order.clusters[:1]) if len(order.clusters) > 1 or order.unfit else ""
    for sooner, other in itertools.pairwise(order.clusters):
        if comparison.same_plan(sooner, other, order.saving):
            text += f" and {other} (the same plan)"
        else:
            text += f", then {other}" if order.is_before(sooner, other) else f", perhaps {other}"
    unfit = f"{', '.join(order.unfit)} {'doesn' if len(order.unfit) == 1 else 'don'}'t fit" if order.unfit else ""
    return "; ".join(filter(None, (text, unfit))) if len(comparison.clusters) > 2 or unfit else ""


def _reasons(comparison: Comparison, order: Order) -> Iterator[tuple[str, str]]:
    """Why the order of two clusters that follow each other can't be told, or that they take the same plan."""
    for first, other in itertools.pairwise(order.clusters):
        a, b = (comparison.cell(cluster, order.saving).figures for cluster in (first, other))
        if a is None or b is None or order.is_before(first, other):
            continue
        if comparison.same_plan(first, other, order.saving):
            yield "the same plan", f"{first} and {other}: on the same devices, so seconds and price are equal"
            continue
        share = 100 * order.before[order.clusters.index(first)][order.clusters.index(other)]
        why = f"by {order.measure} {first} is before {other} with a probability of {share:.0f} %; 90 % would be sure"
        if a.ground != b.ground:
            one_s, other_s = (figures.common_s or figures.expected_step_s for figures in (a, b))
            faster = first if one_s < other_s else other
            times = units.number(round(max(one_s, other_s) / min(one_s, other_s), 2))
            why += f". Its seconds are by {a.ground}, those of {other} by {b.ground}; priced on one ground "
            why += f"{faster} is {times} times as fast"
        yield "can't be told", why


def _footing_text(figures: Figures) -> str:
    shares = [(footing.rests_on, footing.share) for footing in figures.footings if footing.share >= 0.005]
    parts = ", ".join(f"{100 * share:.0f} % {rests_on}" for rests_on, share in shares)
    text = f"{figures.parallelism}; seconds by {figures.ground}{f' (of the work {parts})' if len(shares) > 1 else ''}"
    if interval := _interval(figures):
        text += f"; 90 % interval {interval}{'' if figures.training else ' a step'}"
    return text
