"""Steps of executables that keep a history: read from the timers of Alpa's workers when Alpa shuts down.

Nothing is put between Alpa and its workers: they time every step anyway. They do so to its end only if Alpa is told
to wait for it (`alpa.global_config.pipeline_sync_for_timer`), which is the user's to choose, since steps then don't
overlap; without it nothing is recorded.
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
    """Has the times of an executable's steps appended to the stage option's file of past runs when Alpa shuts down, or
    the program ends.
    """
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
    """Returns Alpa's `shutdown_global_cluster`, wrapped so that the times of training steps are recorded before it, as
    the workers that have timed them end with it.
    """

    @functools.wraps(original)
    def shutdown_global_cluster() -> Any:
        _record_all()
        return original()

    return shutdown_global_cluster


def record(executable: Any) -> int:
    """Appends the times of the steps that an executable has run to its file of past runs, without waiting for Alpa's
    shutdown; steps that are in the file already aren't appended again.

    Alpa's workers time the steps, and answer once all steps before are done, so this waits for those.

    Args:
        executable: what `parallelized_step.get_executable(...)` returns, compiled with
            `DejavuStageOption(history=...)`.

    Returns:
        How many steps were appended; the executable's first three are left out, as they warm up.

    Raises:
        ValueError: the executable has no file of past runs, or the file can't be written.
        RuntimeError: Alpa doesn't wait for steps (`pipeline_sync_for_timer`), so that their times aren't known; or Ray
            has ended.
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
