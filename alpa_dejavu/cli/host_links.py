"""Links from host to host as a table."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from alpa_dejavu._util import units
from alpa_dejavu.cli.table import Table, new_table

if TYPE_CHECKING:
    from alpa_dejavu.calibration import HostLinks
    from alpa_dejavu.problem import Link


def host_link_table(found: HostLinks) -> Table:
    """Returns a table with a row for each kind of link from host to host, named by the first pair that has it, and for
    each medium that links share.
    """
    figures = ("links", "latency", "rate", "send latency", "send rate")
    table = new_table(("link from host to host",), figures)
    kinds: dict[Link, list[str]] = {}
    for a, row in enumerate(found.links):
        for b, link in enumerate(row):
            if link is not None:
                alike = dataclasses.replace(link, shares=())
                kinds.setdefault(alike, []).append(f"{found.hosts[a]} to {found.hosts[b]}")
    for link, pairs in kinds.items():
        sent_s, sent_rate = link.sending
        rates = units.byte_rate(link.bytes_per_s), units.byte_rate(sent_rate)
        name = pairs[0] if len(pairs) == 1 else f"{pairs[0]}, and others"
        table.add_row(name, str(len(pairs)), units.seconds(link.latency_s), rates[0], units.seconds(sent_s), rates[1])
    for name, rate in found.media.items():
        over = sum(name in link.shares for row in found.links for link in row if link is not None)
        table.add_row(f"shared: {name}", str(over), "", units.byte_rate(rate), "", "")
    return table
