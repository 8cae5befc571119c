"""A run: the race, then the training of the best, with the result written on every way out."""

from __future__ import annotations

import dataclasses
import logging
import math
import pathlib
import time
from typing import final

from alpa_dejavu.training.initialization._field import Field, race
from alpa_dejavu.training.initialization._trainer import Runner
from alpa_dejavu.training.initialization.result_file import Curve, Initialized, state_file_of, write_result

_log = logging.getLogger("alpa_dejavu")


@final
@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a run of `parallel_initialize`.

    Attributes:
        step: the step of the candidate that has come farthest.
        living, begun: how many candidates aren't dropped, and how many there are.
        total_steps: the steps of all candidates so far.
    """

    step: int
    living: int
    begun: int
    total_steps: int


@final
class InitializationRun:
    """A run of `parallel_initialize` on its candidates: the race between them, and the training of the chosen one."""

    def __init__(self, field: Field, begun_s: float, save: pathlib.Path | None, notes: list[str]) -> None:
        self._field, self._begun_s, self._save, self._notes = field, begun_s, save, notes
        self._written: pathlib.Path | None = None

    def say_waves(self, workers: int) -> None:
        setting = self._field.setting
        waves = math.ceil(setting.num_candidates / (setting.lanes * workers))
        if waves > 1:
            message = f"{workers} x {setting.lanes} at a time"
            self._notes.append(f"{setting.num_candidates} candidates go in {waves} waves, {message}")
        for note in self._notes:
            _log.info("%s", note)

    def progress(self) -> Progress:
        field = self._field
        step = max(candidate.step for candidate in field.candidates.values())
        return Progress(step, len(field.living()), len(field.candidates), field.total_steps)

    def result(self, runner: Runner) -> Initialized:
        chosen: int | None = None
        try:
            chosen = self._trained(runner)
            return self._result(chosen, runner, interrupted=False)
        except BaseException:
            best = self._field.best_so_far()
            if chosen is None and best is not None and self._save is not None:
                self._result(best, runner, interrupted=True)
            raise

    def _trained(self, runner: Runner) -> int:
        """Races, trains the chosen candidate to the end, and returns it; if it diverges, the next finalist is it."""
        field, setting = self._field, self._field.setting
        finalists = race(field, runner)
        if self._save is not None:
            self._result(finalists[0], runner, interrupted=True)
        for place, number in enumerate(finalists, 1):
            candidate = field.candidates[number]
            field.train_to(runner, [number], setting.budget_steps)
            if candidate.is_living:
                candidate.why = f"chosen: place {place} of {len(finalists)} finalists"
                if len(setting.start.members) > 1:
                    candidate.why += f", begun by {candidate.method}"
                for other_place, other in enumerate(finalists, 1):
                    if other != number and field.candidates[other].is_living:
                        field.drop(other, f"place {other_place} of {len(finalists)} finalists")
                return number
        raise RuntimeError(
            f"all {len(finalists)} finalists are dropped after the race ({field.candidates[finalists[0]].why}); take "
            "smaller steps, or start from smaller weights (init=)"
        )

    def _result(self, chosen: int, runner: Runner, interrupted: bool) -> Initialized:
        field, setting = self._field, self._field.setting
        field.remember_end(chosen)
        result = Initialized(
            state=field.layout.state(field.store.get(chosen)),
            chosen=chosen,
            steps=field.candidates[chosen].step,
            curves=tuple(self._curve(number, chosen, interrupted) for number in field.candidates),
            rungs=setting.rungs,
            total_steps=field.total_steps,
            padded_steps=field.padded_steps,
            diverged=field.diverged,
            lost=field.lost,
            restarts=runner.restarts,
            seconds=time.perf_counter() - self._begun_s,
            seed=setting.seed,
            interrupted=interrupted,
            notes=tuple(self._notes),
        )
        if self._save is not None:
            self._write(result, self._save)
        return result

    def _curve(self, number: int, chosen: int, interrupted: bool) -> Curve:
        """Returns a candidate's curve; where the run was interrupted, it says so of one that wasn't dropped."""
        candidate = self._field.candidates[number]
        curve = candidate.curve()
        if not interrupted or not candidate.is_living:
            return curve
        message = f"one of {len(self._field.living())} that weren't dropped"
        if self._field.candidates[chosen].step:
            message += "; the best so far" if number == chosen else f"; {chosen} was the best so far"
        return dataclasses.replace(curve, why=message)

    def _write(self, result: Initialized, path: pathlib.Path) -> None:
        """Writes the result; the state of this run's earlier result goes once the file no longer names it."""
        write_result(result, path)
        state_file = state_file_of(result, path)
        if self._written is not None and self._written != state_file:
            self._written.unlink(missing_ok=True)
        self._written = state_file
