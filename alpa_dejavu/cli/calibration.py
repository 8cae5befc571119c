"""`alpa-dejavu calibration`."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from alpa_dejavu._util import units
from alpa_dejavu.cli.commands import Command, CommandGroup, option
from alpa_dejavu.cli.convert import convert, is_database, show_database
from alpa_dejavu.cli.files import PAGE, check_outputs, takes_stdout, write_output
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.table import Table, new_table
from alpa_dejavu.cli.working import working

if TYPE_CHECKING:
    from alpa_dejavu.calibration import Calibration
    from alpa_dejavu.calibration.measured_hosts import MeasuredHostMemory
    from alpa_dejavu.costs.memory_margin import MemoryResiduals
    from alpa_dejavu.problem import Link


@click.group(cls=CommandGroup)
def calibration() -> None:
    """Shows a calibration, or converts Alpa's profiling database."""


@calibration.command(
    cls=Command,
    examples=("alpa-dejavu calibration show here.json", "alpa-dejavu calibration show here.json --html here.html"),
    rests_on="Each row names its origin: measurements, or a data sheet.",
)
@click.argument("choice", metavar="FILE")
@option(
    "--html",
    "html_path",
    type=PAGE,
    metavar="FILE",
    help="Write a page with what was measured, the fits, and maps of links.",
)
def show(choice: str, html_path: pathlib.Path | None) -> None:
    """Prints a calibration, or a converted profiling database."""
    from alpa_dejavu.calibration import chosen_calibration

    check_outputs(html_path)
    if is_database(choice):
        show_database(choice, html_path)
        return
    content = chosen_calibration(choice)
    to = console(takes_stdout(html_path))
    to.print(f"{content.name}, of {content.date}: {content.origin}")
    for table in (_devices, _links, host_link_table, host_memory_table, _fits, _collectives, _figures):
        shown = table(content)
        if shown.row_count:
            to.print()
            to.print(shown)
    if content.memory is not None:
        to.print()
        to.print(_memory(content.memory))
    if content.missing:
        to.print()
        to.print("what it doesn't know:")
    for sentence in content.missing:
        to.print(f"- {sentence}")
    if html_path is not None:
        with working(f"drawing {html_path}"):
            from alpa_dejavu.report.calibration_page import calibration_page

            records = pathlib.Path(f"{choice}.measurements.jsonl")
            page = calibration_page(content, records if records.is_file() else None)
        if page:
            to.wrote(write_output(html_path, page))
        else:
            to.print("wrote no page: nothing in it has a curve")


def _devices(measured: Calibration) -> Table:
    table = new_table(("device, measured",), ("memory", "float32", "elements", "memory's rate", "kernel"), ("origin",))
    for name, device in measured.devices.items():
        spread = measured.device_spread.get(name, {})
        table.add_row(
            name,
            units.size(device.memory_bytes),
            units.flop_rate(device.flop_per_s["float32"]) + _of(spread, "flop_per_s[float32]"),
            units.flop_rate(device.vector_flop_per_s) + _of(spread, "vector_flop_per_s"),
            units.byte_rate(device.memory_bytes_per_s) + _of(spread, "memory_bytes_per_s"),
            units.seconds(device.kernel_s) + _of(spread, "kernel_s"),
            device.origin,
        )
    return table


def _links(measured: Calibration) -> Table:
    table = new_table(("link, measured",), ("latency", "rate", "send latency", "send rate"))
    for kind in measured.links:
        link, spread = kind.link, kind.spread
        latency_s, rate = link.sending
        table.add_row(
            f"{' - '.join(kind.devices)}, {'in a host' if kind.within else 'between hosts'}",
            units.seconds(link.latency_s) + _of(spread, "latency_s"),
            units.byte_rate(link.bytes_per_s) + _of(spread, "bytes_per_s"),
            units.seconds(latency_s) + _of(spread, "send_latency_s"),
            units.byte_rate(rate) + _of(spread, "send_bytes_per_s"),
        )
    return table


def _fits(measured: Calibration) -> Table:
    shown = {"MAPE": "mape", "median": "median_ape", "in the 90 % interval": "coverage_90"}
    table = new_table(("fit", "left out in turn"), ("rows", *shown), ("measurements",))
    for fit in measured.fits:
        errors = [f"{100 * fit.held_out[key]:.1f} %" if key in fit.held_out else "" for key in shown.values()]
        table.add_row(fit.part, fit.left_out, str(fit.rows), *errors, fit.origin)
    return table


def _collectives(measured: Calibration) -> Table:
    table = new_table(("collectives",), ("devices", "up to"), ("which",))
    for where, model in (("within hosts", measured.within), ("across hosts", measured.across)):
        if model is not None:
            sizes = ", ".join(map(str, model.sizes))
            table.add_row(where, sizes, units.size(model.most_bytes), ", ".join(model.names))
    return table


def _figures(measured: Calibration) -> Table:
    table = new_table(("fit", "figure"), ("value",))
    for fit in measured.fits:
        for name, value in fit.figures.items():
            table.add_row(fit.part, name, units.by_name(name, value))
    return table


def _memory(residuals: MemoryResiduals) -> str:
    """Returns a line on the measured peaks of memory."""
    kinds = [
        f"{kind} {len(ratios)} times, {math.exp(min(ratios)):.2f} to {math.exp(max(ratios)):.2f} of the count"
        for kind, ratios in residuals.log_ratios.items()
    ]
    of = f"{residuals.num_groups} groups under {residuals.framework}"
    return f"memory, measured: {'; '.join(kinds)}, in {of}" + (f" ({residuals.origin})" if residuals.origin else "")


def _of(spread: Mapping[str, float], name: str) -> str:
    """A spread in percent."""
    return f" ± {100 * spread[name]:.0f} %" if name in spread else ""


calibration.add_command(convert)


def host_link_table(measured: Calibration) -> Table:
    """Returns a table of each kind of link from host to host, named by its first pair, and of shared media."""
    figures = ("links", "latency", "rate", "send latency", "send rate")
    table, links = new_table(("link from host to host",), figures), measured.host_links
    if links is None:
        return table
    kinds: dict[Link, list[str]] = {}
    for a, row in enumerate(links.links):
        for b, link in enumerate(row):
            if link is not None:
                alike = dataclasses.replace(link, shares=())
                kinds.setdefault(alike, []).append(f"{links.hosts[a]} to {links.hosts[b]}")
    for link, pairs in kinds.items():
        sent_s, sent_rate = link.sending
        rates = units.byte_rate(link.bytes_per_s), units.byte_rate(sent_rate)
        name = pairs[0] if len(pairs) == 1 else f"{pairs[0]}, and others"
        table.add_row(name, str(len(pairs)), units.seconds(link.latency_s), rates[0], units.seconds(sent_s), rates[1])
    for name, rate in links.media.items():
        over = sum(name in link.shares for row in links.links for link in row if link is not None)
        table.add_row(f"shared: {name}", str(over), "", units.byte_rate(rate), "", "")
    return table


_RATES = {
    "bytes_per_s": ("bandwidth, by Adam's update", "update"),
    "device_bytes_per_s": ("copies of one device", "copies"),
    "shared_bytes_per_s": ("copies of all devices", ""),
    "read_bytes_per_s": ("reads of a file", "reads"),
    "write_bytes_per_s": ("writes of a file", "writes"),
}
"""For each rate its text, and what is slowed down while something else goes on beside it."""


def host_memory_table(measured: Calibration) -> Table:
    """Returns a table of each measured figure of each kind of host: its value, its uncertainty, and how many times as
    long it takes beside copies or updates, or beside the other of reads and writes.
    """
    table = new_table(("hosts with", "memory"), ("measured", "unsure by", "beside the other"))
    for device, memory in measured.host_memory.items():
        for row in _rows(memory):
            table.add_row(device, *row)
    return table


def _rows(memory: MeasuredHostMemory) -> list[tuple[str, str, str, str]]:
    rows = []
    for field, name in (("num_bytes", "size"), ("free_bytes", "free on drives")):
        value = getattr(memory, field)
        rows += [] if value is None else [(name, units.size(value), "", "")]
    for field, (name, beside) in _RATES.items():
        value = getattr(memory, field)
        if value is not None:
            spread = f"{100 * memory.spread[field]:.0f} %" if field in memory.spread else ""
            slowdown = f"{memory.slowdown[beside]:.2f} times as long" if beside in memory.slowdown else ""
            stood_in = " (between processes)" if memory.stand_in and name.startswith("copies") else ""
            rows.append((name + stood_in, units.byte_rate(value), spread, slowdown))
    return rows
