"""`alpa-dejavu calibration convert`, and a converted database as tables."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from alpa_dejavu._util import units
from alpa_dejavu._util.json_file import peek, write_whole
from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.files import check_outputs, takes_stdout, write_output
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import PLAN_FILE
from alpa_dejavu.cli.table import Table, new_table
from alpa_dejavu.cli.working import working

if TYPE_CHECKING:
    from alpa_dejavu.calibration.database import DatabaseData, SeriesData


@click.command(
    cls=Command,
    examples=(
        "alpa-dejavu calibration convert prof_database.pkl --output database.json",
        "alpa-dejavu calibration convert ~/prof_database.pkl --output p3.json",
    ),
    rests_on="The seconds are those that Alpa measured; a note says which were left out, and why.",
)
@click.argument("database", type=PLAN_FILE, metavar="DATABASE.pkl")
@option("--output", type=PLAN_FILE, required=True, metavar="FILE", help="JSON file to write.")
def convert(database: pathlib.Path, output: pathlib.Path) -> None:
    """Converts Alpa's profiling database, a pickle, into JSON.

    A pickle can name any code to run. This command imports and runs nothing that the file names, and stops at a name
    that no profiling database has.
    """
    check_outputs(output)
    click.echo(
        f"warning: {database} is a pickle, a kind of file that can run code when it is opened; it is read by a reader "
        "that runs none and knows numbers and Alpa's results only. Open it with nothing else unless you trust it.",
        err=True,
    )
    from alpa_dejavu.calibration.alpa_pickle import read_alpa_database
    from alpa_dejavu.calibration.database import converted
    from alpa_dejavu.calibration.text import json_text

    database_data = converted(read_alpa_database(database), database)
    write_whole(output, json_text(database_data))
    to = console()
    to.print(database_table(database_data))
    for line in left_out_lines(database_data):
        to.print(line)
    to.print(f"wrote {output}")


def database_table(database_data: DatabaseData) -> Table:
    """Returns a table of a converted database, by mesh and operator: how many measurements, their sizes and times."""
    from alpa_dejavu.calibration.database import sizes_of

    columns = ("groups' devices", "kept", "left out", "least", "most", "fastest", "slowest")
    table = new_table(("cluster", "mesh", "operator", "dtype"), columns)
    for mesh in database_data["meshes"]:
        kinds: dict[tuple[str, str], list[SeriesData]] = {}
        for series in mesh["series"]:
            kinds.setdefault((series["name"], series["dtype"]), []).append(series)
        for (name, dtype), alike in kinds.items():
            sizes = [size for series in alike for size in sizes_of(series)]
            times = [took for series in alike for took in series["seconds"]]
            devices = sorted({len(series["groups"][0]) for series in alike if series["groups"]})
            ends = [_size(name, end(sizes)) if sizes else "" for end in (min, max)]
            table.add_row(
                mesh["cluster"], "x".join(map(str, mesh["mesh"])), name, dtype, ", ".join(map(str, devices)),
                str(len(sizes)), str(sum(len(series["left_out"]) for series in alike)), *ends,
                *(units.seconds(end(times)) if times else "" for end in (min, max)),
            )  # fmt: skip
    return table


def left_out_lines(database_data: DatabaseData) -> list[str]:
    """Returns a line of text for each reason why measurements were left out, with their number and the first one."""
    first: dict[str, str] = {}
    reasons: list[str] = []
    for mesh in database_data["meshes"]:
        for series in mesh["series"]:
            rows: Sequence[Any] = series["left_out"]
            for row in rows:
                size, took, why = row.get("flop", row.get("num_bytes", 0.0)), row["seconds"], row["reason"]
                of = _size(series["name"], size)
                where = f"{series['name']} in {series['dtype']} of {of} on {'x'.join(map(str, mesh['mesh']))}"
                first.setdefault(why, where if took is None else f"{where}, {units.seconds(took)}")
                reasons.append(why)
    return [
        f"{reasons.count(why)} left out, {why} (the first: {where}); measure again what you need"
        for why, where in first.items()
    ]


def _size(name: str, value: float) -> str:
    return units.flop(value) if name == "dot" else units.size(value)


def is_database(choice: str) -> bool:
    """Returns whether a path is that of a converted profiling database; False for a file that can't be read."""
    data = peek(pathlib.Path(choice))
    return isinstance(data, dict) and data.get("kind") == "alpa-profiling-database"


def show_database(choice: str, html_path: pathlib.Path | None) -> None:
    """Prints what is in a converted database, and writes a page on it, with what is fitted to it, if asked."""
    from alpa_dejavu.calibration.database import read_database

    database_data = read_database(pathlib.Path(choice))
    to = console(takes_stdout(html_path))
    to.print(f"converted from {database_data['origin']}")
    to.print(database_table(database_data))
    for line in left_out_lines(database_data):
        to.print(line)
    if html_path is not None:
        with working(f"fitting, and drawing {html_path}"):
            from alpa_dejavu.report.calibration_page import database_page

            page = database_page(database_data)
        to.wrote(write_output(html_path, page))
