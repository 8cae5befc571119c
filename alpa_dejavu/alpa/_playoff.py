"""A playoff: plans that may be the best are compiled in turn, each runs some steps, and the fastest is kept.

The steps run with arrays that the workers make up. The workers of one plan are stopped before those of the next one
start. The plan with the shortest predicted step comes last, so that it needn't be compiled again where it wins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu.alpa.option import DejavuStageOption
from alpa_dejavu.plans.plan_changes import stages_text
from alpa_dejavu.problem import Plan

_log = logging.getLogger("alpa_dejavu")

_MOST = 5
"""So many plans take part at most."""
_GUESS_S = 5.0
"""Compiling and running a plan is taken to need so many seconds, to choose how many plans take part."""
_STEPS, _FEWEST, _SHARE = 5, 2, 0.1
"""So many steps of a plan are timed; fewer, but so many at least, where they take more than this share of the budget.
"""
_AS_FAST = 1.02
"""Plans that take less than so many times the fastest one's step are as fast: the shorter prediction decides."""


def most_entrants(option: DejavuStageOption) -> int:
    """Returns how many plans may take part in the playoff that a stage option asks for; 1 where it asks for none."""
    return min(_MOST, 1 + int(option.measuring_s / _GUESS_S)) if option.profile == "playoff" else 1


@final
@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a train step: its shape and dtype, whether it is donated, and whether it is a batch."""

    aval: Any
    donated: bool
    batch: bool

    @property
    def zeros(self) -> Any:
        """Returns zeros of the argument's shape and dtype, which take no memory."""
        return np.broadcast_to(np.zeros((), self.aval.dtype), self.aval.shape)


@final
class Playoff:
    """A playoff of a stage option's `entrants` on the devices of Alpa's virtual mesh. `compiled` compiles the step by
    an option and starts its workers; `arguments` are the step's, flat.
    """

    def __init__(
        self,
        compiled: Callable[[DejavuStageOption], Any],
        option: DejavuStageOption,
        mesh: Any,
        arguments: Sequence[Argument],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._compiled, self._option, self._mesh, self._arguments = compiled, option, mesh, arguments
        self._clock = clock
        self._running: tuple[int, Any] | None = None
        self._step_s: dict[int, float] = {}
        self._free_before = mesh.launched_physical_mesh_group is None
        option.entrants = ()

    def fastest(self) -> Any:
        """Returns the executable of the fastest plan, and tells the option which plan that is."""
        try:
            return self._fastest()
        except BaseException:
            self._stop()
            raise

    def _fastest(self) -> Any:
        begun = self._clock()
        self._play(0)
        plans = self._option.entrants
        if len(plans) == 1:
            return self._compiled_plan(0)
        begun += sum(plans[-1].planning_s.values())
        last = len(plans) - 1
        for n in range(1, last):
            # Besides this plan there must be time for the last one.
            if (self._clock() - begun) * (n + 2) / n > self._option.measuring_s:
                break
            self._play(n)
        self._play(last)
        won, executable = self._kept()
        note = _note(plans, self._step_s, won)
        planning_s = {**plans[last].planning_s, "playoff": self._clock() - begun}
        fastest = dataclasses.replace(plans[won], planning_s=planning_s, notes=(*plans[won].notes, note))
        self._option.last_plan = fastest
        _log.info("%s", note)
        return executable

    def _kept(self) -> tuple[int, Any]:
        """Returns the number of the fastest plan, or the last if none ran, that compiles again; and its executable."""
        plans = self._option.entrants
        while True:
            fast = [n for n, seconds in self._step_s.items() if seconds < _AS_FAST * min(self._step_s.values())]
            won = min(fast or [len(plans) - 1], key=lambda n: (plans[n].step_s, -n))
            try:
                return won, self._compiled_plan(won)
            except Exception:
                if self._step_s.pop(won, None) is None:
                    raise
                self._stop()

    def _play(self, n: int) -> None:
        """Compiles the n-th plan and times its steps; where it fails, and others are there, that is logged."""
        try:
            executable = self._compiled_plan(n)
            if len(self._option.entrants) > 1:
                self._step_s[n] = self._timed(executable)
        except Exception as error:  # whatever a plan fails by, another one may run
            if len(self._option.entrants) < 2:
                raise
            reason = str(error).strip().partition("\n")[0]
            plan = stages_text(self._option.entrants[n])
            _log.warning("%s can't be tried: %s: %s", plan, type(error).__name__, reason)
            self._stop()

    def _compiled_plan(self, n: int) -> Any:
        """Returns the n-th plan's executable, whose workers run."""
        if self._running is not None and self._running[0] == n:
            return self._running[1]
        self._stop()
        option = self._option
        if option.entrants:
            option = dataclasses.replace(option, plan=option.entrants[n], profile="never", history=None)
        self._running = n, self._compiled(option)
        return self._running[1]

    def _stop(self) -> None:
        """Stops the workers of the plan that runs; those of a pipeline that ran before the playoff are left alone."""
        self._running = None
        group = self._mesh.launched_physical_mesh_group
        if group is not None and self._free_before:
            self._mesh.launched_physical_mesh_group = None
            try:
                group.exception_shutdown()
            except Exception:
                _log.warning("some workers of a plan that was tried didn't stop", exc_info=True)

    def _timed(self, executable: Any) -> float:
        """Returns the median seconds of a plan's steps, after one that warms up."""
        kept: dict[int, Any] = {}
        seconds: list[float] = []
        for _ in range(1 + _STEPS):
            arguments = self._stand_ins(executable, kept)
            executable.sync()
            begun = self._clock()
            result = executable.launch_on_driver(*arguments)
            executable.sync()
            seconds.append(self._clock() - begun)
            _check_results(result)
            del arguments, result
            if len(seconds) > _FEWEST and sum(seconds) > _SHARE * self._option.measuring_s:
                break
        _forget_steps(executable)
        return statistics.median(seconds[1:])

    def _stand_ins(self, executable: Any, kept: dict[int, Any]) -> list[Any]:
        """Returns arrays for a step; those that no step donates are `kept` for the next one."""
        arrays: list[Any] = []
        with _made_by_workers():
            for n, (argument, spec) in enumerate(zip(self._arguments, executable.input_placement_specs, strict=True)):
                if argument.batch or spec is None:  # the driver sends each batch, as it does in training
                    arrays.append(argument.zeros)
                elif n in kept:
                    arrays.append(kept[n])
                else:
                    arrays += executable.mesh_group.shard_args_to_arrays([spec], [argument.zeros])
                    if not argument.donated:
                        kept[n] = arrays[-1]
        return arrays


def _note(plans: Sequence[Plan], step_s: Mapping[int, float], won: int) -> str:
    """Returns a sentence on what was tried."""
    others = [f"{stages_text(plans[n])} {units.seconds(step_s[n])}" for n in sorted(step_s) if n != won]
    this = f"this one took {units.seconds(step_s[won])} a step" if won in step_s else "this one couldn't be tried"
    failed = "" if len(step_s) == len(plans) else f" ({len(plans) - len(step_s)} of {len(plans)} plans weren't tried)"
    return f"tried on the devices{failed}: {', '.join([this, *others])}"


@contextlib.contextmanager
def _made_by_workers() -> Iterator[None]:
    """Has Alpa make up arrays in its workers for as long as a `with` block runs, in place of sending them."""
    from alpa.global_env import global_config

    before = global_config.use_dummy_value_for_benchmarking
    global_config.use_dummy_value_for_benchmarking = True
    try:
        yield
    finally:
        global_config.use_dummy_value_for_benchmarking = before


def _check_results(arrays: Iterable[Any]) -> None:
    """Asks workers for a step's results: what failed in a worker raises an error only where its results are wanted."""
    from alpa.device_mesh import ReplicatedDistributedArray

    refs: dict[Any, list[Any]] = {}
    for array in arrays:
        replica = array.replica if isinstance(array, ReplicatedDistributedArray) else array
        refs.setdefault(replica.device_mesh, []).append(replica.remote_ref)
    for mesh, wanted in refs.items():
        mesh.block_until_ready_remote_buffers(wanted)


def _forget_steps(executable: Any) -> None:
    """Has the workers forget the times of the steps so far: a history is of the user's steps alone."""
    from alpa.mesh_executable import get_execution_timer_name

    for mesh in executable.mesh_group:
        mesh.reset_remote_timer(get_execution_timer_name(executable.exec_uuid))
