"""Scenarios run twice: predicted by simulation, and measured by real worker processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from alpa_dejavu._util import units
from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground._simulate import simulate
from alpa_dejavu.playground.scenarios._comparison import Compared
from alpa_dejavu.playground.scenarios._scenario import INTERVALS, Run, Runs, Scenario, no_runs

if TYPE_CHECKING:
    from alpa_dejavu.playground.real import RealWorkers

__all__ = ["growing_real_runs", "side_by_side"]

_PREDICTED, _MEASURED = ", predicted", ", measured"
_HEADS = ("exchange", "predicted", "measured", "predicted over measured", "to the target, predicted", "measured ")


def growing_real_runs(scenario: Scenario, workers: RealWorkers, progress: bool = False) -> Iterator[Runs]:
    """Yields the runs of a scenario that are finished, as `growing_runs` does, two for each exchange and seed: a
    simulation, which is told the seconds of a gradient and the links as they were measured before, and a real run. An
    exchange's name says which.

    Args:
        scenario: the scenario.
        workers: real workers of its job on its cluster.
        progress: whether bars are shown for what takes more than two seconds.

    Raises:
        ValueError: an exchange or a fault can't be for real, or there are variants; nothing has been run then.
    """
    if scenario.variants:
        raise ValueError(f"{scenario.name}: variants are {', '.join(one.name for one in scenario.variants)}, but real "
                         "workers run one scenario; give a file without variants")  # fmt: skip
    for exchange in scenario.exchanges.values():
        workers.check(exchange, scenario.faults, scenario.until)
    job, cluster = workers.measured()
    runs = no_runs(scenario)
    for name, exchange in scenario.exchanges.items():
        for n, seed in enumerate(scenario.seeds):
            intervals = INTERVALS if n == 0 else 0
            predicted = simulate(
                job, cluster, exchange, faults=scenario.faults, conditions=tuple(scenario.conditions.values()),
                until=scenario.until, seed=seed, looks=scenario.looks, progress=progress, intervals=intervals,
            )  # fmt: skip
            measured = workers.run(
                exchange, faults=scenario.faults, until=scenario.until, seed=seed, looks=scenario.looks,
                intervals=intervals,
            )  # fmt: skip
            both = Run(name + _PREDICTED, seed, predicted), Run(name + _MEASURED, seed, measured)
            runs = dataclasses.replace(runs, runs=(*runs.runs, *both))
            yield runs


def side_by_side(every: Sequence[Compared]) -> tuple[Sequence[str], list[list[str]]]:
    """Returns heads and rows of a table with predicted and measured seconds of each exchange, means over seeds."""
    known = {one.name: one for one in every}
    rows = []
    for name, one in known.items():
        other = known.get(name.removesuffix(_PREDICTED) + _MEASURED)
        if name.endswith(_PREDICTED) and other is not None:
            pairs = zip(one.runs, other.runs, strict=True)
            ratio = Interval.of([first.history.end_s / second.history.end_s for first, second in pairs])
            rows.append([
                name.removesuffix(_PREDICTED), units.seconds(one.end_s.mean), units.seconds(other.end_s.mean),
                f"{ratio.mean:.2f}", *(_to_target(each) for each in (one, other)),
            ])  # fmt: skip
    return _HEADS, rows


def _to_target(one: Compared) -> str:
    if one.target is None:
        return ""
    return units.seconds(one.to_target["seconds"].mean) if "seconds" in one.to_target else "not reached"
