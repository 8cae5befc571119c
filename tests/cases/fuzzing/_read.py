"""Reads a file by itself, without what a command does then: `python -m fuzzing._read result FILE`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import click

from alpa_dejavu.cli.commands import ReportingGroup
from alpa_dejavu.clusters import read_cluster
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.training.initialization import read_result

SIZES = Transformer(64, 8, 4, 128, 16, feed_forward=128)
"""Of the model that other runtimes' files are of."""
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


@main.command()
@click.argument("kind")
@click.argument("path", type=click.Path(path_type=pathlib.Path))
def file(kind: str, path: pathlib.Path) -> None:
    """Reads a file of a kind."""
    READERS[kind](path)


def _config(path: pathlib.Path) -> object:
    from alpa_dejavu.exports import read_model

    return read_model(path)


def _foreign(source: str) -> Callable[[pathlib.Path], object]:
    def read(path: pathlib.Path) -> object:
        from alpa_dejavu.exports import TARGETS

        reader = TARGETS[source].reader
        assert reader is not None, "it is a source"
        return reader(path, 4, SIZES)

    return read


def _history(path: pathlib.Path) -> object:
    from alpa_dejavu.calibration.history import Store

    return Store(path).runs()


def _hosts(path: pathlib.Path) -> object:
    from alpa_dejavu.playground.jobs.trace import read_host_changes

    return read_host_changes(path, 2)


def _jobs(path: pathlib.Path) -> object:
    from alpa_dejavu.playground.jobs import StepCurve
    from alpa_dejavu.playground.jobs.trace import read_jobs

    return read_jobs(path, [StepCurve({1: 1.0, 2: 0.5, 4: 0.25})])


def _kept(path: pathlib.Path) -> object:
    from alpa_dejavu.planning.changed.kept import read_kept

    return read_kept(path)


def _lengths(path: pathlib.Path) -> object:
    from alpa_dejavu.planning.inference import Lengths

    return Lengths.read(path)


def _pickle(path: pathlib.Path) -> object:
    from alpa_dejavu.calibration.alpa_pickle import read_alpa_database
    from alpa_dejavu.calibration.database import converted

    return converted(read_alpa_database(path), path)


def _runs(path: pathlib.Path) -> object:
    from alpa_dejavu.playground.scenarios import read_runs

    return read_runs(path)


def _scenario(path: pathlib.Path) -> object:
    from alpa_dejavu.playground.scenarios import read_scenario

    return read_scenario(path)


def _serving(path: pathlib.Path) -> object:
    from alpa_dejavu.planning.inference.serving_plan import read_serving_plan

    return read_serving_plan(path)


def _schedule(path: pathlib.Path) -> object:
    from alpa_dejavu.schedules.schedule_file import read_schedule

    return read_schedule(path)


READERS: Mapping[str, Callable[[pathlib.Path], object]] = {
    "config": _config,
    "cluster": read_cluster,
    "deepspeed": _foreign("deepspeed"),
    "galvatron": _foreign("galvatron"),
    "history": _history,
    "hosts": _hosts,
    "jobs": _jobs,
    "kept": _kept,
    "lengths": _lengths,
    "megatron": _foreign("megatron"),
    "pickle": _pickle,
    "plan": read_plan,
    "runs": _runs,
    "scenario": _scenario,
    "schedule": _schedule,
    "serving": _serving,
    "torchtitan": _foreign("torchtitan"),
    "written for torchtitan": _foreign("torchtitan"),
}
"""What reads a file of each kind."""


def like() -> Any:
    """The shapes of the state."""
    import jax

    return {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in SHAPES.items()}


if __name__ == "__main__":
    main()
