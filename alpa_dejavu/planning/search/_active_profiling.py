"""Plans, and measures only what decides: stages whose error, once known, could change the chosen plan."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.measured_memory import StageMeasurement, log_ratio, margin_with, with_peaks
from alpa_dejavu.costs.memory_margin import MemoryMargin
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.planning.search._bench import Bench
from alpa_dejavu.planning.search._candidate import Candidate, Costs, best_first, simulated
from alpa_dejavu.planning.search._clock import Clock
from alpa_dejavu.planning.search._learned import errors_after
from alpa_dejavu.planning.search._searched import Searched
from alpa_dejavu.planning.search.uncertainty import Errors, Factors, Resolver, confidence, meet, redrawn, step_draws
from alpa_dejavu.planning.search.uncertainty._decide import LEAST_GAIN, most_worthwhile
from alpa_dejavu.planning.search.uncertainty._errors import entry_seconds
from alpa_dejavu.planning.search.uncertainty._steps import resolved_stage
from alpa_dejavu.planning.task import Chooser, Found, PlanningTask
from alpa_dejavu.problem import Cluster, StageChoice, Submesh
from alpa_dejavu.slicing import Slicer

__all__ = ["Measure", "Measured"]

_log = logging.getLogger(__name__)

Measure = Callable[[StageChoice], StageMeasurement | float | None]
"""A stage alone on its submesh, or its seconds where no more is known; None if it can't be measured."""
_DRAWS, _DRAWN_PLANS = 1000, 8
_NOISE = {False: 0.03, True: 0.1}
"""How far off a measurement of a stage is taken to be, as a share of it; parts of one CPU disturb each other."""
_EVEN = 0.49
"""A risk at which what is left free is about what measured peaks are in the middle."""
_FIRST_S, _RUNS = 3.0, 30
"""Compiling the first stage is reckoned with so many seconds, and a measurement with so many runs."""


@final
@dataclasses.dataclass
class _State:
    """The measurements so far: seconds of the stages tried, and logarithms of measured over counted memory peaks."""

    errors: Errors
    seen: dict[StageChoice, None] = dataclasses.field(default_factory=dict)
    tried: dict[StageChoice, float | None] = dataclasses.field(default_factory=dict)
    peaks: dict[StageChoice, float] = dataclasses.field(default_factory=dict)
    spent_s: float = 0.0

    @property
    def takes_s(self) -> float:
        """Returns the seconds that measuring a stage takes, compiling included: the mean so far, or a first guess."""
        return self.spent_s / len(self.tried) if self.tried else _FIRST_S


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Search:
    """A search by the costs with measured peaks of memory; it keeps those by the count alone, too."""

    costs: Costs
    counted: CostTable
    slicer: Slicer
    resolver: Resolver

    def candidates(self, errors: Errors) -> list[Candidate]:
        """Returns the candidate plans that are worth comparing, the one with the shortest step first.

        They are the best plan by the most probable costs, plans with a few more or fewer stages, and the best plan in
        each of some random draws of the costs. `errors` is the distribution of prediction errors.
        """
        best = self._best(errors.middle, 0)
        if best is None:
            return []
        drawn = errors.drawn(_DRAWN_PLANS, seed=1)
        found = [
            best,
            *_alternative_slicings(best, self.slicer),
            *(self._best(drawn, draw) for draw in range(_DRAWN_PLANS)),
        ]
        each: dict[tuple[StageChoice, ...], Candidate] = {}
        for candidate in found:
            if candidate is not None:
                each.setdefault(candidate.stages, candidate)
        # All by the same costs, whichever they were found by.
        known = [simulated(dataclasses.replace(one, costs=best.costs)) for one in each.values()]
        return best_first(known)

    def after(self, state: _State, given: MemoryMargin) -> tuple[_Search, list[Candidate]]:
        """Searches for plans again after stages were measured, and returns the new search with its candidate plans; no
        candidates if nothing fits into memory any more.

        How much memory is left free follows from how far measured peaks are off the counted ones. Where nothing fits
        with that much left free, the median of these differences counts, unless `given` rests on measured peaks itself.

        Args:
            state: all measurements so far.
            given: the rule of the planning task for how much memory stays free.
        """
        if not state.peaks:
            return self, self.candidates(state.errors)
        margins = [margin_with(given, list(state.peaks.values()))]
        if given.residuals is None and margins[0] is not given:
            margins.append(dataclasses.replace(margins[0], risk=_EVEN))
        search: _Search = self
        candidates: list[Candidate] = []
        for margin in margins:
            if not candidates:
                table = with_peaks(self.counted, self.costs.run, state.peaks, margin)
                search = dataclasses.replace(self, costs=dataclasses.replace(self.costs, table=table))
                candidates = search.candidates(state.errors)
        return search, candidates

    def _best(self, factors: Factors, draw: int) -> Candidate | None:
        table = redrawn(self.costs.table, self.costs.space, self.resolver, factors, draw)
        return dataclasses.replace(self.costs, table=table).sliced(self.slicer)

    def predicted_s(self, candidate: Candidate, stage: StageChoice, factors: Factors) -> FloatArray:
        """Returns the predicted seconds of a stage's micro-batch in each of K draws of prediction errors, without
        interstage transfers; shape (K,).
        """
        resolved = resolved_stage(candidate, stage, self.resolver)
        return entry_seconds(resolved.micro_batch, resolved, stage.first, stage.last, factors)


def _alternative_slicings(best: Candidate, slicer: Slicer) -> list[Candidate | None]:
    """Returns the best plans with half as many stages, one less, one more, and, if hosts are left out, on all hosts."""
    length = len(best.stages)
    found = [best.costs.sliced(slicer, count) for count in sorted({length // 2, length - 1, length + 1} - {0})]
    if best.num_devices < best.cluster.num_devices:
        found.append(best.costs.sliced(slicer, devices="exactly"))
    return found


@final
@dataclasses.dataclass(frozen=True)
class Measured(Chooser):
    """A chooser of plans that first measures those stages whose prediction errors, once known, could change the choice.

    Attributes:
        measure: a function that runs one stage alone on its submesh and returns its seconds for a micro-batch, with or
            without its peak of memory; None if that fails.
        budget_s: the seconds that all measurements together may take.
        share: the part that they may take, at most, of the seconds in which all stages that the search offers would be
            measured one by one; None: any.
        sure: the probability of being nearly the best at which a plan is taken without further measurements; until then
            stages are measured also where they promise little. None: stages are measured for as long as that promises
            a clearly shorter step, however sure the plan is.
        spent_s: the seconds of measuring that came before, and count as spent.
        seconds: a clock in seconds, by which the budget is counted.
    """

    measure: Measure
    budget_s: float
    share: float | None = None
    sure: float | None = None
    spent_s: float = 0.0
    seconds: Callable[[], float] = time.perf_counter

    def within_s(self, num_offered: int, each_s: float) -> float:
        """Returns the seconds that measurements may take where this many stages are offered, each of which takes
        `each_s` seconds to be measured.

        >>> Measured(lambda stage: None, budget_s=20.0, share=0.05).within_s(60, 3.0)
        9.0
        """
        return self.budget_s if self.share is None else min(self.budget_s, self.share * num_offered * each_s)

    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        """Measures stages until no measurement is worth its time, and returns the candidate plans, best first."""
        if self.sure is not None:
            predicted = Searched().choose(task, clock)
            if len(predicted.candidates) < 2 or confidence(predicted.candidates).probability >= self.sure:
                return predicted
        return self._choose(task, clock)

    def _is_sure(self, candidates: Sequence[Candidate], state: _State, search: _Search) -> bool:
        if self.sure is None:
            return False
        return confidence(candidates, errors=state.errors, resolver=search.resolver).probability >= self.sure

    def _choose(self, task: PlanningTask, clock: Clock) -> Found:
        (layers,), (count,) = task.layers, task.micro_batches
        costs = Bench(dataclasses.replace(task, learned=()), clock).costs(layers, count)
        search = _Search(costs, costs.table, task.slicer, Resolver())
        meet(costs.table, costs.space, search.resolver)
        state = _State(errors_after(costs, task.learned, search.resolver))
        candidates = search.candidates(state.errors)
        clock.lap("slicing")
        num_offered = int(costs.table.offered.sum())
        while candidates:
            left_s = self.within_s(num_offered, state.takes_s) - self.spent_s - state.spent_s
            if self._is_sure(candidates, state, search) or not _measured(search, candidates, state, self, left_s):
                break
            search, candidates = search.after(state, task.margin)
            clock.lap("measuring")
        return Found(
            candidates,
            notes=(
                _note(state, num_offered, self.within_s(num_offered, state.takes_s)),
                *_memory_notes(search, state, task.margin),
            ),
            margin=search.costs.table.margin,
            errors=state.errors,
            resolver=search.resolver,
            measured=frozenset(state.peaks),
        )

    def again(self, task: PlanningTask, found: Sequence[Candidate], clock: Clock) -> Candidate | None:
        return Searched().again(task, found, clock)


def _measured(
    search: _Search,
    candidates: Sequence[Candidate],
    state: _State,
    by: Measured,
    left_s: float,
) -> bool:
    """Measures the stage that is most worth it, and returns True; False if none is."""
    stages = dict(_stages(candidates))
    state.seen |= dict.fromkeys(stages)
    cluster, submeshes = search.costs.cluster, search.costs.space.submeshes
    # A measurement is made in one process, and has nothing of what several exchange.
    left = {
        stage: candidate
        for stage, candidate in stages.items()
        if stage not in state.tried and not cluster.apart(submeshes[stage.submesh].num_hosts)
    }
    if not left:
        return False
    factors = state.errors.drawn(_DRAWS, seed=2 + len(state.tried))
    steps = step_draws(candidates, search.resolver, state.errors, factors)
    drawn = np.array([search.predicted_s(candidate, stage, factors) for stage, candidate in left.items()])
    takes = state.takes_s + _RUNS * np.median(drawn, axis=1)
    best = most_worthwhile(steps, np.log(drawn).T, takes, left_s, LEAST_GAIN if by.sure is None else -np.inf)
    if best is None:
        return False
    stage, candidate = list(left.items())[best]
    started = by.seconds()
    found = by.measure(stage)
    state.spent_s += by.seconds() - started
    seconds = found.seconds if isinstance(found, StageMeasurement) else found
    state.tried[stage] = seconds
    if isinstance(found, StageMeasurement) and found.peak_bytes is not None:
        ratio = log_ratio(search.counted, search.costs.run, stage, found.peak_bytes)
        state.peaks |= {} if ratio is None else {stage: ratio}
    nominal = Factors(np.ones_like(factors.common[:1]), np.ones_like(factors.own[:1]))
    predicted = float(search.predicted_s(candidate, stage, nominal)[0])
    predicted *= _alone(cluster, submeshes[stage.submesh])
    took = "it failed" if seconds is None else units.seconds(seconds)
    _log.info("measured %s: %s, predicted %s", stage, took, units.seconds(predicted))
    if seconds is not None:
        resolved = resolved_stage(candidate, stage, search.resolver)
        noise = _NOISE[cluster.shared]
        state.errors = state.errors.measured(
            resolved.micro_batch, resolved, stage.first, stage.last, seconds / predicted, noise
        )
    return True


def _stages(candidates: Sequence[Candidate]) -> Iterator[tuple[StageChoice, Candidate]]:
    return ((stage, candidate) for candidate in candidates for stage in candidate.stages)


def _alone(cluster: Cluster, submesh: Submesh) -> float:
    """Returns the share of its seconds beside others that a stage takes alone: parts of one CPU are faster alone."""
    return cluster.core_share(cluster.num_devices) / cluster.core_share(submesh.num_devices)


def _memory_notes(search: _Search, state: _State, given: MemoryMargin) -> list[str]:
    """Returns the notes on measured peaks of memory, and on a risk that they made larger."""
    if not state.peaks:
        return []
    ratios = [float(np.exp(ratio)) for ratio in state.peaks.values()]
    said = f"{len(ratios)} of their peaks of memory were measured: {min(ratios):.2f} to {max(ratios):.2f} of the count"
    if search.costs.table.margin.risk != given.risk:
        said += f"; nothing fits under a risk of {given.risk:.2%} by them, so a larger one is taken"
    return [said]


def _note(state: _State, num_offered: int, budget_s: float) -> str:
    failed = sum(seconds is None for seconds in state.tried.values())
    return (
        f"{len(state.tried) - failed} of {len(state.seen)} candidate stages were measured in "
        f"{units.seconds(state.spent_s)} of {units.seconds(budget_s)} ({num_offered} stages were offered)"
        + (f"; {failed} couldn't be measured" if failed else "")
    )
