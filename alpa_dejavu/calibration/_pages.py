"""Pictures as pages in a folder, which open without network: plotly's code lies beside them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

from alpa_dejavu._util.json_file import write_whole


def write_pages(folder: pathlib.Path, pages: Iterable[tuple[str, Any]]) -> list[pathlib.Path]:
    """Writes them and returns their files.

    Args:
        folder: is made if it isn't there.
        pages: names without ending, and figures of plotly.

    Raises:
        ValueError: they can't be written.
    """
    from plotly.offline import get_plotlyjs

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} can't be made: {error.strerror}; give another folder for the pictures") from None
    written = []
    for name, figure in pages:
        written.append(folder / f"{name}.html")
        write_whole(written[-1], figure.to_html(include_plotlyjs="directory"))
    if written:
        write_whole(folder / "plotly.min.js", get_plotlyjs())
    return written
