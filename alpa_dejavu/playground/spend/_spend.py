"""The comparison itself: costs by the planner, gains by a trial, and the seconds to the same loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, final

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground.spend._costs import Cost, SpendCosts, Way, ways
from alpa_dejavu.playground.spend._gains import USUAL, Gain, Trial, gains
from alpa_dejavu.playground.spend._trial_model import trial_model
from alpa_dejavu.problem import Cluster
from alpa_dejavu.problem.checks import positive


@final
@dataclasses.dataclass(frozen=True)
class SpendRow:
    """A way to spend the devices, with its predicted cost and its measured gain.

    Attributes:
        to_loss_s: seconds to the loss that plain training has after the seconds that were asked for, by the gain's
            mean and interval.
    """

    way: Way
    cost: Cost
    gain: Gain
    steps: float
    to_loss_s: Interval

    @property
    def why_not(self) -> str:
        """Returns why the way can't be taken, or wasn't tried; empty if neither."""
        return self.cost.why or self.gain.why


@final
@dataclasses.dataclass(frozen=True)
class Spending:
    """The ways to spend a cluster's devices for some seconds, the fastest to the same loss first.

    Attributes:
        stands_in: why that isn't the model itself; empty: it is.
        seeds, trial_steps: how many trainings each way had, and of how many steps.
        target: the loss that the trial's plain trainings came to.
    """

    model: str
    cluster: str
    batch: int
    seconds: float
    rows: tuple[SpendRow, ...]
    trained: str
    stands_in: str
    num_parameters: int
    seeds: int
    trial_steps: int
    trial_s: float
    target: float

    @property
    def best(self) -> SpendRow:
        """Returns the way that is there first."""
        return self.rows[0]

    @property
    def is_sure(self) -> bool:
        """Returns whether the best way's whole interval is below the plain way's seconds."""
        return self.best.way.kind != "plain" and self.best.to_loss_s.high < self.seconds

    def data(self) -> dict[str, Any]:
        """Returns all figures as JSON has them; numbers that aren't finite are null."""
        told = dataclasses.asdict(self)
        for row, shown in zip(told["rows"], self.rows, strict=True):
            row["name"] = str(shown.way)
        return {"version": 1, **_finite(told)}


def spend(
    model: str | Callable[..., Any], cluster: Cluster, batch: int, seconds: float, *, plan: Callable[..., Any],
    own: bool = True, trial: Trial = USUAL, on_way: Callable[[str, Way], None] = lambda doing, way: None,
) -> Spending:  # fmt: skip
    """Returns what a cluster's devices are best spent on for some seconds: larger batches, starts, or OptEx.

    Costs are predicted by the planner, for the model on the cluster and its parts. Gains are measured by trainings of a
    few steps on this machine, of the model itself if it is small and brings its data, else of a stand-in. That the
    gains of a short, small training are those of a long, large one is taken for granted; the seconds are no better.

    Args:
        model: a known model's name, "module:function" or a function that takes a batch size.
        batch, seconds: samples of a plain step, and how long the devices are there.
        plan: plans for a model, a cluster and a batch, as `alpa_dejavu.planning.plan_model` with its other arguments.
        on_way: is called with "plan" or "try" and the way, before it is done.

    Raises:
        NoPlanError: the model doesn't fit on the cluster.
        ValueError: a number isn't positive, a name isn't known, or the model's step tells no loss.
    """
    positive("spend", "seconds", seconds)
    trained = trial_model(model, own=own)
    costs = SpendCosts(lambda part, size: plan(model, part, 1, size), cluster, batch)
    asked = ways(cluster.num_devices)
    if not costs.plain.model.training:
        raise ValueError(f"the step of {model} takes no gradient of a loss, but must train; give a model function "
                         "whose step does")  # fmt: skip
    priced = {}
    for way in asked:
        on_way("plan", way)
        priced[way] = costs.of(way)
    possible = [way for way in asked if not priced[way].why]
    measured = gains(trained, possible, trial, lambda way: on_way("try", way))
    plain_s = priced[asked[0]].step_s
    untried = Gain(Interval(math.nan, math.nan, math.nan))
    rows = [_row(way, priced[way], measured.gains.get(way, untried), plain_s, seconds) for way in asked]
    rows.sort(key=lambda row: (bool(row.why_not), row.to_loss_s.mean if not row.why_not else 0.0))
    name = model if isinstance(model, str) else getattr(model, "__qualname__", repr(model))
    return Spending(
        name, cluster.name, batch, seconds, tuple(rows), trained.name, trained.why, trained.num_parameters,
        trial.seeds, trial.steps, measured.seconds, measured.target,
    )  # fmt: skip


def _row(way: Way, cost: Cost, gain: Gain, plain_s: float, seconds: float) -> SpendRow:
    """A race takes a quarter of a training's steps on the parts, the rest on all devices."""
    if cost.why or gain.why:
        return SpendRow(way, cost, gain, math.nan, Interval(math.nan, math.nan, math.nan))
    racing_s = cost.step_s if cost.race_step_s is None else cost.race_step_s
    mean_s = gain.race * racing_s + (1 - gain.race) * cost.step_s
    told = [seconds / plain_s * ratio * mean_s for ratio in (gain.steps.mean, gain.steps.low, gain.steps.high)]
    return SpendRow(way, cost, gain, seconds / mean_s, Interval(*told))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, (list, tuple)) else value
