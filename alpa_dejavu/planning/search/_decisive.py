"""Plans, and measures only what decides: stages whose error, once known, could change the chosen plan."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.measured_memory import StageMeasurement, log_ratio, margin_with, with_peaks
from alpa_dejavu.costs.memory_margin import MemoryMargin
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.planning.search._candidate import Candidate, Costs, best_first, simulated
from alpa_dejavu.planning.search._priced_shapes import PricedShapes
from alpa_dejavu.planning.search._searched import Searched
from alpa_dejavu.planning.search.uncertainty import (
    Errors,
    Factors,
    Resolver,
    confidence,
    entry_seconds,
    errors_after,
    meet,
    redrawn,
    resolved_stage,
    step_draws,
)
from alpa_dejavu.planning.search.uncertainty._confidence import LEAST_GAIN, most_worthwhile
from alpa_dejavu.planning.task import Chooser, Clock, Found, PlanningTask
from alpa_dejavu.problem import StageChoice
from alpa_dejavu.slicing import Slicer

_log = logging.getLogger(__name__)

Measure = Callable[[StageChoice], StageMeasurement | float | None]
"""A stage alone on its submesh, or its seconds where no more is known; None if it can't be measured."""
_DRAWS, _DRAWN_PLANS = 1000, 8
_NOISE = {False: 0.03, True: 0.1}
"""How far off a measurement of a stage is taken to be, as a share of it; parts of one CPU disturb each other."""
_MEDIAN = 0.49
"""A risk at which what is left free is about what measured peaks are in the middle."""
_FIRST_S, _RUNS = 3.0, 30
"""Compiling the first stage is reckoned with so many seconds, and a measurement with so many runs."""


@final
@dataclasses.dataclass
class _MeasuringSearch:
    """A search for plans between measurements."""

    costs: Costs  # the costs, with the measured peaks of memory in the table
    counted: CostTable  # the table by the count of memory alone
    slicer: Slicer
    errors: Errors  # the distribution of prediction errors after the measurements
    seen: dict[StageChoice, None] = dataclasses.field(default_factory=dict)  # the stages of all candidates so far
    tried: dict[StageChoice, float | None] = dataclasses.field(default_factory=dict)  # seconds; None: failed
    peaks: dict[StageChoice, float] = dataclasses.field(default_factory=dict)  # logs of measured over counted
    spent_s: float = 0.0  # the seconds of measuring

    @property
    def takes_s(self) -> float:
        """Returns the seconds that measuring a stage takes, compiling included: the mean so far, or a first guess."""
        return self.spent_s / len(self.tried) if self.tried else _FIRST_S

    def candidates(self) -> list[Candidate]:
        """Returns the best plan by the most probable costs, plans with half as many stages, one less or one more, or on
        all hosts, and the best in each of some draws of the costs, the shortest step first.
        """
        best = self._best(self.errors.middle, 0)
        if best is None:
            return []
        length, drawn = len(best.stages), self.errors.drawn(_DRAWN_PLANS, seed=1)
        numbers = sorted({length // 2, length - 1, length + 1} - {0})
        plans = [best, *(best.costs.sliced(self.slicer, number) for number in numbers)]
        if best.num_devices < best.cluster.num_devices:
            plans.append(best.costs.sliced(self.slicer, devices="exactly"))
        plans += [self._best(drawn, draw) for draw in range(_DRAWN_PLANS)]
        different: dict[tuple[StageChoice, ...], Candidate] = {}
        for plan in plans:
            if plan is not None:
                different.setdefault(plan.stages, plan)
        # All by the same costs, whichever they were found by.
        return best_first(simulated(dataclasses.replace(plan, costs=best.costs)) for plan in different.values())

    def candidates_again(self, margin: MemoryMargin) -> list[Candidate]:
        """Searches again after stages were measured; there are none if nothing fits into memory any more.

        How much is left free follows from how far measured peaks are off the counted ones; where nothing fits so, from
        the median of these, unless the task's margin rests on measured peaks itself.
        """
        if not self.peaks:
            return self.candidates()
        margins = [margin_with(margin, list(self.peaks.values()))]
        if margin.residuals is None and margins[0] is not margin:
            margins.append(dataclasses.replace(margins[0], risk=_MEDIAN))
        for by_peaks in margins:
            table = with_peaks(self.counted, self.costs.run, self.peaks, by_peaks)
            self.costs = dataclasses.replace(self.costs, table=table)
            if candidates := self.candidates():
                return candidates
        return []

    def _best(self, factors: Factors, draw: int) -> Candidate | None:
        table = redrawn(self.costs.table, self.costs.space, self.errors.resolver, factors, draw)
        return dataclasses.replace(self.costs, table=table).sliced(self.slicer)

    def _predicted_s(self, candidate: Candidate, stage: StageChoice, factors: Factors) -> FloatArray:
        """Returns the seconds of a stage's micro-batch without transfers in each of K draws of errors, shape (K,)."""
        resolved = resolved_stage(candidate, stage, self.errors.resolver)
        return entry_seconds(resolved.micro_batch, resolved, stage.first, stage.last, factors)

    def measure_next(self, candidates: Sequence[Candidate], by: Decisive, left_s: float) -> bool:
        """Measures the stage that is most worth it, and returns True; False if none is."""
        stages = {stage: candidate for candidate in candidates for stage in candidate.stages}
        self.seen |= dict.fromkeys(stages)
        cluster, submeshes = self.costs.cluster, self.costs.space.submeshes
        # A measurement is made in one process, and has nothing of what several exchange.
        left = {
            stage: candidate
            for stage, candidate in stages.items()
            if stage not in self.tried and not cluster.apart(submeshes[stage.submesh].num_hosts)
        }
        if not left:
            return False
        factors = self.errors.drawn(_DRAWS, seed=2 + len(self.tried))
        steps = step_draws(candidates, self.errors, factors)
        drawn = np.array([self._predicted_s(candidate, stage, factors) for stage, candidate in left.items()])
        takes = self.takes_s + _RUNS * np.median(drawn, axis=1)
        best = most_worthwhile(steps, np.log(drawn).T, takes, left_s, LEAST_GAIN if by.sure is None else -np.inf)
        if best is None:
            return False
        stage, candidate = list(left.items())[best]
        started = by.seconds()
        measured = by.measure(stage)
        self.spent_s += by.seconds() - started
        seconds = measured.seconds if isinstance(measured, StageMeasurement) else measured
        self.tried[stage] = seconds
        if isinstance(measured, StageMeasurement) and measured.peak_bytes is not None:
            ratio = log_ratio(self.counted, self.costs.run, stage, measured.peak_bytes)
            self.peaks |= {} if ratio is None else {stage: ratio}
        nominal = Factors(np.ones_like(factors.common[:1]), np.ones_like(factors.own[:1]))
        predicted = float(self._predicted_s(candidate, stage, nominal)[0])
        # Parts of one CPU are faster alone than beside others.
        predicted *= cluster.core_share(cluster.num_devices) / cluster.core_share(submeshes[stage.submesh].num_devices)
        took = "it failed" if seconds is None else units.seconds(seconds)
        _log.info("measured %s: %s, predicted %s", stage, took, units.seconds(predicted))
        if seconds is not None:
            resolved = resolved_stage(candidate, stage, self.errors.resolver)
            layers, noise = (stage.first, stage.last), _NOISE[cluster.shared]
            self.errors = self.errors.measured(resolved.micro_batch, resolved, *layers, seconds / predicted, noise)
        return True

    def notes(self, num_offered: int, budget_s: float, risk: float) -> tuple[str, ...]:
        """Returns what was measured in words, and whether it made the task's risk larger."""
        failed = sum(seconds is None for seconds in self.tried.values())
        note = (
            f"{len(self.tried) - failed} of {len(self.seen)} candidate stages were measured in "
            f"{units.seconds(self.spent_s)} of {units.seconds(budget_s)} ({num_offered} stages were offered)"
            + (f"; {failed} couldn't be measured" if failed else "")
        )
        if not self.peaks:
            return (note,)
        ratios = [float(np.exp(ratio)) for ratio in self.peaks.values()]
        least, most = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
        peaks = f"{len(ratios)} of their peaks of memory were measured: {least} to {most} of the count"
        if self.costs.table.margin.risk != risk:
            peaks += f"; nothing fits under a risk of {risk:.2%} by them, so a larger one is taken"
        return note, peaks


@final
@dataclasses.dataclass(frozen=True)
class Decisive(Chooser):
    """A chooser of plans that first measures those stages whose errors, once known, could change the choice."""

    measure: Measure  # runs a stage alone; returns its seconds, with or without its peak of memory; None: it failed
    budget_s: float  # the seconds that all measurements together may take
    share: float | None = None  # the most they may take of what measuring all offered stages would take; None: any
    # The probability of being nearly the best at which a plan is taken without further measurements; until then stages
    # are measured also where they promise little. None: stages are measured for as long as that promises a clearly
    # shorter step, however sure the plan is.
    sure: float | None = None
    spent_s: float = 0.0  # the seconds of measuring that came before, and count as spent
    seconds: Callable[[], float] = time.perf_counter  # a clock in seconds, by which the budget is counted

    def within_s(self, num_offered: int, stage_s: float) -> float:
        """Returns the seconds that measurements may take where so many stages of `stage_s` each are offered.

        >>> Decisive(lambda stage: None, budget_s=20.0, share=0.05).within_s(60, 3.0)
        9.0
        """
        return self.budget_s if self.share is None else min(self.budget_s, self.share * num_offered * stage_s)

    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        """Measures stages until no measurement is worth its time, and returns the candidate plans, best first."""
        if self.sure is not None:
            predicted = Searched().choose(task, clock)
            if len(predicted.candidates) < 2 or self._is_sure(predicted.candidates):
                return predicted
        (layers,), (count,) = task.layers, task.micro_batches
        costs = PricedShapes(dataclasses.replace(task, learned=()), clock).costs(layers, count)
        resolver = Resolver()
        meet(costs.table, costs.space, resolver)
        session = _MeasuringSearch(costs, costs.table, task.slicer, errors_after(costs, task.learned, resolver))
        candidates = session.candidates()
        clock.lap("slicing")
        num_offered = int(np.sum(costs.table.offered))
        while candidates and not self._is_sure(candidates, session.errors):
            left_s = self.within_s(num_offered, session.takes_s) - self.spent_s - session.spent_s
            if not session.measure_next(candidates, self, left_s):
                break
            candidates = session.candidates_again(task.margin)
            clock.lap("measuring")
        return Found(
            candidates,
            notes=session.notes(num_offered, self.within_s(num_offered, session.takes_s), task.margin.risk),
            margin=session.costs.table.margin,
            errors=session.errors,
            measured=frozenset(session.peaks),
        )

    def _is_sure(self, candidates: Sequence[Candidate], errors: Errors | None = None) -> bool:
        return self.sure is not None and confidence(candidates, errors=errors).probability >= self.sure

    def again(self, task: PlanningTask, candidates: Sequence[Candidate], clock: Clock) -> list[Candidate]:
        return Searched().again(task, candidates, clock)
