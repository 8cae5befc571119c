"""Looks at some steps of an executable while it trains, says once where another plan would be better, and learns.

Steps are waited for until they have settled. If they are off then, or a history is kept, the workers note three more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, final

from alpa_dejavu.alpa._workers import StageWorkers
from alpa_dejavu.alpa.option import DejavuStageOption
from alpa_dejavu.calibration.measurement import StepNotes, measured
from alpa_dejavu.planning.changed.deviation import deviation, has_settled, is_off, measured_run

_log = logging.getLogger("alpa_dejavu")

_LOOKS = (3, 30, 300, 3000)
"""The steps before which it looks: after those that warm up, and later, since a machine may become slower."""
_WINDOW, _MOST = 5, 25
"""Steps are timed in a look until two windows of so many agree; a look at so many that haven't settled is given up."""
_NOTED = 3
"""So many steps are noted in a look."""


@final
class StepWatch:
    """A watch over the steps of an executable by a stage option's plan, whose `launch_on_driver` is wrapped until
    nothing is left to look at. `workers` makes what has the workers note a step; `clock` tells seconds.
    """

    def __init__(
        self,
        executable: Any,
        option: DejavuStageOption,
        workers: Callable[[Any], StageWorkers] = StageWorkers,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        assert option.last_plan is not None, "Alpa has compiled, so there is a plan"
        assert option.task is not None, "and a task that it was made for"
        self._executable, self._make_workers, self._clock = executable, workers, clock
        self._plan, self._task, self._history = option.last_plan, option.task, option.history
        self._launch: Callable[..., Any] = executable.launch_on_driver
        self._count, self._looks, self._learns = 0, list(_LOOKS), option.history is not None
        self._steps_s: list[float] = []
        self._notes: list[StepNotes] = []
        self._workers: StageWorkers | None = None
        executable.launch_on_driver = self._step

    def _step(self, *args: Any) -> Any:
        """Runs a step of the executable, and looks at it if its turn has come."""
        self._count += 1
        if self._count <= self._looks[0]:
            return self._launch(*args)
        if not has_settled(self._steps_s, _WINDOW):
            self._executable.sync()
            begun = self._clock()
            result = self._launch(*args)
            self._executable.sync()
            self._steps_s.append(self._clock() - begun)
            settled = has_settled(self._steps_s, _WINDOW)
            if len(self._steps_s) == _MOST or (settled and not (self._learns or self._is_off())):
                self._next_look()
            return result
        if self._workers is None:
            try:
                self._workers = self._make_workers(self._executable)
                self._workers.noting(True)
            except Exception as error:  # training goes on
                _log.warning("steps can't be looked at: %s", error)
                self._end()
                return self._launch(*args)
        result, notes = self._workers.timed(lambda: self._launch(*args))
        self._notes.append(notes)
        if len(self._notes) == _NOTED:
            self._workers.release()
            self._tell()
        return result

    def _is_off(self) -> bool:
        """Returns whether the steps that have settled are off their prediction, and those that are noted, too."""
        noted_s = [notes.step_s for notes in self._notes]
        return is_off(self._plan, self._steps_s[-_WINDOW:]) and (not noted_s or is_off(self._plan, noted_s))

    def _next_look(self) -> None:
        del self._looks[0]
        self._steps_s, self._notes, self._workers = [], [], None
        if not self._looks:
            self._end()

    def _tell(self) -> None:
        """Says where another plan would be better, and adds the run to the history; failures are told alone."""
        learns, self._learns, ends = self._learns, False, False
        try:
            task, plan = self._task, self._plan
            devices = [stage.submesh.num_devices for stage in plan.stages]
            run = measured(self._steps_s[-2 * _WINDOW :], self._notes, plan.num_micro_batches, plan.schedule, devices)
            if learns and self._history is not None:
                from alpa_dejavu.calibration.history import Store

                Store(self._history).append(measured_run(task, plan, run))
            if self._is_off() and (off := deviation(task, plan, run)).matters:
                ends = True
                advice = f"the next start plans by what {self._history} has of it"
                if self._history is None:
                    advice = "give DejavuStageOption(history=FILE), and the next start plans by what its stages take"
                _log.warning("%s; %s", off, advice)
        except Exception as error:  # training goes on
            ends = True
            _log.warning("the steps that were looked at can't be explained: %s", error)
        self._end() if ends else self._next_look()

    def _end(self) -> None:
        vars(self._executable).pop("launch_on_driver", None)
        del self._task
