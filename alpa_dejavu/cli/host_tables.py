"""Links from host to host, and the measured memory of hosts, as tables."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from alpa_dejavu._util import units
from alpa_dejavu.cli.table import Table, new_table

if TYPE_CHECKING:
    from alpa_dejavu.calibration import Calibration
    from alpa_dejavu.calibration.measured_hosts import MeasuredHostMemory
    from alpa_dejavu.problem import Link


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
