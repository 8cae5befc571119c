"""Steps of executables that keep a history: read from the timers of Alpa's workers when Alpa shuts down.

The workers time every step to its end only if Alpa waits for it (`alpa.global_config.pipeline_sync_for_timer`), which
is the user's to choose, since steps then don't overlap; without it nothing is recorded.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import logging
import pathlib
import weakref
from collections.abc import Callable
from typing import Any, final

from alpa_dejavu.alpa.option import DejavuStageOption
from alpa_dejavu.calibration.history import Origin, PastRun, Store
from alpa_dejavu.problem import Plan

_log = logging.getLogger("alpa_dejavu")

_WARM_UP = 3


@final
@dataclasses.dataclass
class _Watched:
    """An executable, what it runs, and how many of its steps have been dealt with."""

    executable: weakref.ref[Any]
    plan: Plan
    origin: Origin
    path: pathlib.Path
    done: int = 0


_watched: list[_Watched] = []


def watch(executable: Any, option: DejavuStageOption) -> None:
    """Has an executable's steps appended to the option's history when Alpa shuts down, or the program ends."""
    from alpa_dejavu.alpa import install

    assert option.history is not None, "only options with a history are watched"
    assert option.last_plan is not None, "Alpa has compiled, so there is a plan"
    assert option.last_origin is not None, "and what it was made from"
    if not _watched:
        atexit.register(_record_all)
    install("shutdown")
    path = pathlib.Path(option.history).absolute()
    _watched.append(_Watched(weakref.ref(executable), option.last_plan, option.last_origin, path))


def recording(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Alpa's `shutdown_global_cluster`, wrapped: step times are recorded before the workers end."""

    @functools.wraps(original)
    def shutdown_global_cluster() -> Any:
        _record_all()
        return original()

    return shutdown_global_cluster


def record(executable: Any) -> int:
    """Appends the times of an executable's steps, but for the first three and those that are there, to its file of past
    runs; waits for them, and returns how many.

    The executable is that of `parallelized_step.get_executable(...)`, compiled with `DejavuStageOption(history=...)`.
    Raises ValueError if it has no history, and RuntimeError if Alpa doesn't time steps (`pipeline_sync_for_timer`), or
    Ray has ended.
    """
    for watched in _watched:
        if watched.executable() is executable:
            return _record(watched)
    raise ValueError("this executable keeps no history; compile it with DejavuStageOption(history=FILE)")


def _record(watched: _Watched) -> int:
    import ray
    from alpa.global_env import global_config

    executable = watched.executable()
    if executable is None:
        return 0
    if not ray.is_initialized():
        raise RuntimeError("Ray has ended, and what it timed with it; call alpa.shutdown() before ray.shutdown()")
    if not global_config.pipeline_sync_for_timer:
        raise RuntimeError(
            "Alpa doesn't wait for steps, so their times aren't known; set alpa.global_config.pipeline_sync_for_timer "
            "= True before the first one"
        )
    seconds = [float(step_s) for step_s in executable.get_execution_time_costs()]
    new = tuple(seconds[max(watched.done, _WARM_UP) :])
    if new:
        Store(watched.path).append(PastRun(watched.plan, watched.origin, watched.plan.uncorrected_s, new))
    watched.done = len(seconds)
    return len(new)


def _record_all() -> None:
    """Whatever goes wrong is told and no more: the program is about to end well."""
    for watched in _watched:
        try:
            steps = _record(watched)
        except Exception as error:
            _log.warning("nothing was appended to the history %s: %s", watched.path, error)
        else:
            if steps:
                _log.info("appended %d steps to the history %s", steps, watched.path)
    _watched.clear()
