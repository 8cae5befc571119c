"""Pictures of the links from host to host: a map of rates and one of latencies, from rows to columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from alpa_dejavu.calibration._host_links import HostLinks
from alpa_dejavu.clusters.link_map import link_map

__all__ = ["matrix_pages"]


def matrix_pages(found: HostLinks, name: str) -> Iterator[tuple[str, Any]]:
    """Names and figures of the pages; a title has the calibration's name."""
    for page, figure, what in (
        ("host-rates", "bytes_per_s", "bytes per second"),
        ("host-latencies", "latency_s", "latency"),
    ):
        shown = link_map(found.hosts, found.links, figure)
        shown.update_layout(title=f"{name}: {what} from host (row) to host (column)")
        yield page, shown
