"""`alpa-dejavu playground`."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from alpa_dejavu._util.json_file import peek
from alpa_dejavu.cli.commands import Command, CommandGroup, option
from alpa_dejavu.cli.files import OUTPUT, PAGE, check_outputs, takes_stdout, write_output
from alpa_dejavu.cli.output import Pages, console, progress
from alpa_dejavu.cli.playground_jobs import draw_jobs, jobs
from alpa_dejavu.cli.table import new_table
from alpa_dejavu.cli.working import working

if TYPE_CHECKING:
    from alpa_dejavu.playground.scenarios import Runs

_FILE = click.Path(path_type=pathlib.Path, dir_okay=False)
_html_option = option(
    "--html",
    "html_path",
    type=PAGE,
    metavar="FILE",
    help="Write a page with curves, the table, and each worker's timeline.",
)


@click.group(cls=CommandGroup)
def playground() -> None:
    """Simulates distributed training: time and convergence together."""


@playground.command(
    "list", cls=Command, examples=("alpa-dejavu playground list", "alpa-dejavu playground list | grep gossip")
)
def list_names() -> None:
    """Lists exchanges, faults, problems and policies with their settings."""
    from alpa_dejavu.playground.condition import CONDITIONS
    from alpa_dejavu.playground.data import MOVES, SPLITS
    from alpa_dejavu.playground.exchanges import EXCHANGES
    from alpa_dejavu.playground.fault import FAULTS
    from alpa_dejavu.playground.jobs import POLICIES
    from alpa_dejavu.playground.problems import PROBLEMS, problem_summary
    from alpa_dejavu.playground.scenarios import TOPOLOGY_WORDS

    to = console()
    kinds: Sequence[tuple[str, Mapping[str, type]]] = (
        ("exchanges", EXCHANGES), ("topologies of gossip", TOPOLOGY_WORDS), ("faults", FAULTS),
        ("conditions", CONDITIONS),
        ("splits of the data", SPLITS), ("policies of moving samples", MOVES),
        ("policies of scheduling, for `playground jobs`", POLICIES),
    )  # fmt: skip
    for title, classes in kinds:
        to.print(f"{title}:")
        for name, kind in classes.items():
            to.fact(f"  {name}", f"{_summary(kind)}{_settings(kind)}")
    to.print("problems:")
    for name in PROBLEMS:
        to.fact(f"  {name}", problem_summary(name))


@playground.command(
    cls=Command,
    examples=(
        "alpa-dejavu playground run examples/playground/slow-worker.yaml --html run.html --json run.json",
        "alpa-dejavu playground run examples/playground/slow-worker.yaml --keep runs",
    ),
    rests_on="Gradients are computed; seconds are virtual, by the scenario's cluster.",
)
@click.argument("path", type=_FILE, metavar="SCENARIO")
@_html_option
@option("--json", "json_path", type=OUTPUT, metavar="FILE", help="Write all histories, which `compare` reads.")
@option(
    "--keep",
    "folder",
    type=click.Path(path_type=pathlib.Path, file_okay=False),
    metavar="FOLDER",
    help="Folder of checkpoints, from which the same command goes on after an interrupt.",
)
def run(
    path: pathlib.Path, html_path: pathlib.Path | None, json_path: pathlib.Path | None, folder: pathlib.Path | None
) -> None:  # fmt: skip
    """Runs a scenario file: each of its exchanges with each of its seeds."""
    check_outputs(html_path, json_path)
    _show([_run(path, json_path, folder)], html_path, json_path)


@playground.command(
    cls=Command,
    examples=(
        "alpa-dejavu playground compare run.json other.json",
        "alpa-dejavu playground compare run.json other.json --html both.html",
    ),
    rests_on="Figures are those of `playground run`; intervals are Student's t over the seeds.",
)
@click.argument("paths", type=_FILE, metavar="FILE...", nargs=-1, required=True)
@_html_option
def compare(paths: Sequence[pathlib.Path], html_path: pathlib.Path | None) -> None:
    """Compares files of `run --json`, and scenarios, which it runs."""
    check_outputs(html_path)
    every = [_read_or_run(path) for path in paths]
    names = [runs.name for runs in every]
    _show([
        dataclasses.replace(runs, name=f"{runs.name} ({n})") if names.count(runs.name) > 1 else runs
        for n, runs in enumerate(every, 1)
    ], html_path)  # fmt: skip


def _read_or_run(path: pathlib.Path) -> Runs:
    from alpa_dejavu.playground.scenarios import read_runs

    data = peek(path)
    return read_runs(path) if isinstance(data, dict) and "runs" in data else _run(path)


def _run(path: pathlib.Path, json_path: pathlib.Path | None = None, folder: pathlib.Path | None = None) -> Runs:
    """Runs a scenario; where a run fails or is interrupted, those before it are written to a file, if there is one."""
    with working(f"reading {path}"):
        from alpa_dejavu.playground.scenarios import growing_runs, read_scenario, runs_text

        scenario = read_scenario(path)
    runs: Runs | None = None
    try:
        for finished in growing_runs(scenario, progress=True, folder=folder):
            runs = finished
    except BaseException:
        if runs is not None and json_path is not None:
            write_output(json_path, runs_text(runs))
            count = len(scenario.names) * len(scenario.seeds)
            progress().print(f"{len(runs.runs)} of {count} runs were finished, and are in {json_path}")
        raise
    assert runs is not None, "a scenario has an exchange and a seed"
    return runs


def _show(every: Sequence[Runs], html_path: pathlib.Path | None, json_path: pathlib.Path | None = None) -> None:
    to = console(takes_stdout(html_path, json_path))
    try:
        _print_table(every, to)
    finally:
        # Where nothing can be printed, what was simulated isn't lost.
        written = []
        if html_path is not None:
            from alpa_dejavu.playground.scenarios import runs_page

            written += write_output(html_path, runs_page(*every))
        if json_path is not None:
            from alpa_dejavu.playground.scenarios import runs_text

            written += write_output(json_path, runs_text(every[0]))
    to.wrote(written)


def _print_table(every: Sequence[Runs], to: Pages) -> None:
    from alpa_dejavu.playground.scenarios import NOTE, answer_lines, compared, details, tables, target_text

    to.print(f"{', '.join(runs.name for runs in every)}: target {target_text(every)}")
    exchanges = compared(every)
    for texts in tables(exchanges):
        table = new_table(texts.heads[:1], texts.heads[1:-1], texts.heads[-1:])
        for row in texts.rows:
            table.add_row(*row)
        to.print()
        to.print(table)
    to.print()
    for line in (*answer_lines(every), *details(exchanges), NOTE):
        to.print(line)


def _summary(kind: type) -> str:
    """Returns the first sentence of a class's docstring, or its part before a semicolon."""
    text = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    return re.split(r"(?<!\.)\.(?: |$)|;", text, maxsplit=1)[0]


def _settings(kind: type) -> str:
    """Returns the settings of a class in brackets, with the values of those that need not be given."""
    settings = [
        f"{name}{_default(parameter.default)}" for name, parameter in inspect.signature(kind).parameters.items()
    ]
    return f" [{', '.join(settings)}]" if settings else ""


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    is_written = isinstance(value, (str, bool, int, float)) and value != float("inf")
    return f"={value:g}" if is_written and isinstance(value, float) else f"={value}" if is_written else " (optional)"


playground.add_command(draw_jobs)
playground.add_command(jobs)
