"""The sensitivity of a step: its derivative by the speed of devices and links and the cost of layers, at a plan."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, final

from alpa_dejavu._util import units
from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu.problem import Plan, StagePlan
from alpa_dejavu.simulation.plan_times import PlanStep, Times, scaled
from alpa_dejavu.simulation.step import StageTimes

__all__ = ["LEVERS", "Figure", "Sensitivity", "alike", "derivatives", "ranked", "sensitivities"]

LEVERS = ("devices", "links", "layers")
"""The things that a figure may be about."""
_NOTHING = 1e-6
"""A figure that moves a step by no more than this share of it isn't listed."""
_NUMBERED = re.compile(r"(.*(?:stage|layer) )(\d+)((?: .*)?)")
_Taking: TypeAlias = Callable[[Times, Sequence[int], float], Times]
"""The times where something in some stages takes a share of its time."""


@final
@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """How much a plan's step depends on one figure, such as the speed of a host's devices.

    The step is convex and piecewise linear in its tasks' seconds. Where several ways through the schedule are equally
    long, as with stages alike, a better figure saves less than a worse one costs.

    Attributes:
        what: the figure's name, such as "devices of host a".
        part: "devices" (their speed), "links" (their speed), or "layers" (their cost: half of it is twice as good).
        step_s: the seconds of the plan's step.
        saved_s: -d step / d ln(figure), in seconds, where the figure gets better: 1 % better saves a hundredth of it.
        cost_s: the same where the figure gets worse: 1 % worse costs a hundredth of it.
        twice_s: the seconds of the same plan's step with the figure twice as good.
        best_s: the seconds of a step of the plan that is best then; None: it wasn't searched for.
        best: that plan, if it is another one.
    """

    what: str
    part: str
    step_s: float
    saved_s: float
    cost_s: float
    twice_s: float
    best_s: float | None = None
    best: Plan | None = None

    @property
    def elasticity(self) -> float:
        """Returns by how many percent a step gets shorter for each percent by which the figure gets better."""
        return self.saved_s / self.step_s

    @property
    def worse_elasticity(self) -> float:
        """Returns by how many percent a step gets longer for each percent by which the figure gets worse."""
        return self.cost_s / self.step_s

    @property
    def gained_s(self) -> float:
        """Returns the seconds of a step saved if the figure gets twice as good, by the best plan known for that."""
        return self.step_s - min(self.twice_s, self.twice_s if self.best_s is None else self.best_s)


@final
@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure whose influence on a step is asked for, such as a link's speed, with the stages' times if it were
    another.

    Attributes:
        what: the figure's name, for people.
        part: "devices", "links" or "layers": what the figure is about.
        better, worse: the stages' times where the figure is better, or worse, by `unit` in its logarithm.
        unit: the size of that change. Where times go by 1 / speed, `better` may have none of the seconds in question
            and `worse` twice as many; the unit is then 1.
        twice: the stages' times where the figure is twice as good.
    """

    what: str
    part: str
    better: Times
    worse: Times
    twice: Times
    unit: float = 1.0


def sensitivities(plan: Plan) -> tuple[Sensitivity, ...]:
    """Returns how much a plan's step depends on the speed of its devices, links and stages, what helps most first.

    The figures are the speeds of computing, collectives and transfers, of all stages and of each, and of the devices of
    each host. Latency and bandwidth of links count as one figure: a plan doesn't tell what of a collective is bytes.
    Figures that don't matter aren't listed.
    """
    step = PlanStep(plan)
    return ranked(derivatives(step, plan, _figures(plan, step.times)))


def derivatives(step: PlanStep, plan: Plan, figures: Iterable[Figure]) -> list[Sensitivity]:
    """Returns how much a plan's step, as a function of its stages' times, depends on each of some figures."""
    asked = list(figures)
    slopes = step.slopes([times for figure in asked for times in (figure.better, figure.worse)]).reshape(-1, 2)
    results = []
    for figure, (better, worse) in zip(asked, slopes.tolist(), strict=True):
        saved_s, cost_s = (max(0.0, slope / figure.unit) for slope in (-better, worse))
        # What goes by 1 / speed and saves nothing at first never does: the step is convex.
        helps = saved_s > _NOTHING * plan.step_s or figure.unit != 1.0
        twice_s = step.seconds(figure.twice) if helps else plan.step_s
        results.append(Sensitivity(figure.what, figure.part, plan.step_s, saved_s, cost_s, twice_s))
    return results


def ranked(results: Iterable[Sensitivity]) -> tuple[Sensitivity, ...]:
    """Returns sensitivities ordered by how much their figures help, without those that don't matter."""
    matter = [s for s in results if max(s.saved_s, s.cost_s, s.gained_s) > _NOTHING * s.step_s]
    return tuple(sorted(matter, key=lambda s: (-s.gained_s, -s.saved_s, -s.cost_s)))


def alike(results: Iterable[Sensitivity]) -> list[tuple[str, list[Sensitivity]]]:
    """Returns sensitivities in the same order, those of stages or layers that help as much together by one name.

    >>> of_stages = (Sensitivity(f"links within stage {n}", "links", 9.0, 1.0, 1.0, 8.0) for n in (2, 0, 1))
    >>> [name for name, _ in alike(of_stages)]
    ['links within stages [0-2]']
    """
    groups: dict[tuple[str, str, str, object], list[tuple[str, Sensitivity]]] = {}
    for result in results:
        parts = _NUMBERED.fullmatch(result.what)
        before, number, after = parts.groups() if parts else (result.what, "", "")
        after = "" if after.startswith(" (") else after  # which layers and hosts a stage has
        best = None if result.best is None else result.best.stages
        key = before, after, units.seconds(result.step_s - result.gained_s), best
        groups.setdefault(key, []).append((number, result))
    named = []
    for (before, after, *_), group in groups.items():
        name = group[0][1].what
        if group[1:]:
            numbers = name_ranges(f"{before}{number}" for number, _ in group).removeprefix(before)
            name = f"{before.rstrip()}s {numbers}{after}"
        named.append((name, [own for _, own in group]))
    return named


def tells(together: Sequence[Sensitivity]) -> bool:
    """Returns whether one of some sensitivities is more than nothing in the digits of `slope_texts`."""
    return any(max(slope.elasticity, slope.worse_elasticity) >= _LEAST_TOLD for slope in together)


_LEAST_TOLD = 0.0005


def slope_texts(together: Sequence[Sensitivity]) -> tuple[str, str, str]:
    """Returns what 1 % better saves and 1 % worse costs of the step, and the step with twice as good a figure, as texts
    for sensitivities of one name.
    """
    percent = "{:.3f} %".format
    return (
        units.span([slope.elasticity for slope in together], percent),
        units.span([slope.worse_elasticity for slope in together], percent),
        units.span([slope.twice_s for slope in together], units.seconds),
    )


def _figures(plan: Plan, times: Times) -> Iterator[Figure]:
    """Yields the figures that a plan itself tells apart, by the times of its stages."""
    everywhere = range(len(times))
    yield _figure("all devices", "devices", times, everywhere, _computing)
    yield _figure("all links within stages", "links", times, everywhere, _links)
    if len(times) == 1:
        return
    yield _figure("all links between stages", "links", times, everywhere, _sends)
    for n, stage in enumerate(plan.stages):
        # As well a matter of its devices as of its layers.
        what = f"computing of stage {n} ({_layers(stage)} on {name_ranges(stage.hosts)})"
        yield _figure(what, "layers", times, [n], _computing)
        yield _figure(f"links within stage {n}", "links", times, [n], _links)
        if n:
            yield _figure(f"links between stage {n - 1} and the next", "links", times, [n - 1], _sends)
    yield from _host_figures(plan.stages, times)


def _layers(stage: StagePlan) -> str:
    first, last = stage.layers
    return f"layer {first}" if first == last else f"layers {first}-{last}"


def _figure(what: str, part: str, times: Times, stages: Sequence[int], taking: _Taking) -> Figure:
    """The figure of something that takes seconds by 1 / speed in some stages."""
    better, worse, twice = (taking(times, stages, share) for share in (0.0, 2.0, 0.5))
    return Figure(what, part, better, worse, twice)


def _host_figures(stages: Sequence[StagePlan], times: Times) -> Iterator[Figure]:
    """Yields figures of the devices of one host each; hosts that have the same stages are told together.

    A stage waits for its slowest host: faster devices of one help its own stages alone, slower ones hold up all.
    """
    of_hosts: dict[str, list[int]] = {}
    for n, stage in enumerate(stages):
        for host in stage.hosts:
            of_hosts.setdefault(host, []).append(n)
    alike: dict[tuple[int, ...], list[str]] = {}
    for host, own in of_hosts.items():
        alike.setdefault(tuple(own), []).append(host)
    if len(of_hosts) == 1:
        return
    for common, hosts in alike.items():
        alone = [n for n in common if len(stages[n].hosts) == 1]
        if len(common) == len(alone) == 1:
            continue  # that is the computing of this stage
        some = name_ranges(hosts)
        what = f"devices of host {some}" if len(hosts) == 1 else f"devices of one of the hosts {some}"
        if len(hosts) > 1 and len(common) == 1:
            what = f"devices of one host of stage {common[0]} ({some})"
        better, twice = (_computing(times, alone, share) for share in (0.0, 0.5))
        yield Figure(what, "devices", better=better, worse=_computing(times, common, 2.0), twice=twice)


def _computing(times: Times, stages: Sequence[int], share: float) -> Times:
    return _changed(times, {n: scaled(times[n], computing=share) for n in stages})


def _links(times: Times, stages: Sequence[int], share: float) -> Times:
    return _changed(times, {n: scaled(times[n], links=share) for n in stages})


def _sends(times: Times, stages: Sequence[int], share: float) -> Times:
    """The times where transfers from some stages to the next, and back, take a share of their time."""
    ahead = set(stages)
    back = {n + 1 for n in ahead}
    factors = {n: (share if n in ahead else 1.0, share if n in back else 1.0) for n in range(len(times))}
    return _changed(times, {n: scaled(times[n], sends=both) for n, both in factors.items()})


def _changed(times: Times, others: Mapping[int, StageTimes]) -> Times:
    return tuple(others.get(n, stage) for n, stage in enumerate(times))
