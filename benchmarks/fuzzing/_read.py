"""Reads a file of a format that no command of `alpa-dejavu` reads: `python -m fuzzing._read result FILE`."""

from __future__ import annotations

import pathlib
from typing import Any

import click

from alpa_dejavu.cli.errors import ReportingGroup
from alpa_dejavu.training.initialization import read_result

SHAPES = {"weight": (3, 2), "bias": (2,)}
"""Of the state that a result is read for."""


@click.group(cls=ReportingGroup)
def main() -> None:
    """Reads a file, and fails as the commands do."""


@main.command()
@click.argument("path", type=click.Path(path_type=pathlib.Path))
def result(path: pathlib.Path) -> None:
    """Reads the result of a parallel initialization."""
    found = read_result(path, like())
    click.echo(f"{len(found.curves)} candidates, the chosen one is {found.chosen}")


def like() -> Any:
    """The shapes of the state."""
    import jax

    return {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in SHAPES.items()}


if __name__ == "__main__":
    main()
