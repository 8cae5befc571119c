"""Putting our functions where Alpa's are, if those have the expected parameters, and taking them out again.

Putting one in twice does nothing; taking it out leaves what somebody else has put over it meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, final

_replaced: dict[Callable[..., Any], Callable[..., Any]] = {}
"""The function of Alpa that each of ours stands for, for as long as ours is in."""


class HookError(RuntimeError):
    """An error that says which function of Alpa isn't as a hook expects it, what was expected and what is there."""


@final
@dataclasses.dataclass(frozen=True)
class Hook:
    """A hook that replaces one function of Alpa by this package's version of it, in all modules that import it."""

    name: str
    modules: tuple[str, ...]  # the modules that hold the function under its name
    parameters: tuple[str, ...]  # the names of the parameters that the function must have
    replacement: Callable[[Callable[..., Any]], Callable[..., Any]]  # takes Alpa's function, and returns ours

    def install(self) -> None:
        """Replaces one of Alpa's functions; raises HookError, and changes nothing, if its parameters are others."""
        modules = [importlib.import_module(module) for module in self.modules]
        functions = [getattr(module, self.name, None) for module in modules]
        for path, function in zip(self.modules, functions, strict=True):
            names = tuple(inspect.signature(function).parameters) if callable(function) else None
            if names != self.parameters:
                raise HookError(
                    f"{path}.{self.name} takes {names}, but alpa_dejavu expects {self.parameters}; "
                    "install alpa 0.2.3 (the tag v0.2.3), or take out what else patches it"
                )
        for module, function in zip(modules, functions, strict=True):
            assert function is not None, "checked above"
            if not _is_in(function):
                ours = self.replacement(function)
                _replaced[ours] = function
                setattr(module, self.name, ours)

    def uninstall(self) -> None:
        """Puts one of Alpa's own functions back in the place of this package's version, in each module that has it."""
        for module in map(importlib.import_module, self.modules):
            original = _replaced.pop(getattr(module, self.name), None)
            if original is not None:
                setattr(module, self.name, original)


def _is_in(function: Callable[..., Any]) -> bool:
    """Returns whether a function is one of ours, or somebody else's around one of ours."""
    inner: Any = function
    while inner is not None and inner not in _replaced:
        inner = getattr(inner, "__wrapped__", None)
    return inner is not None


def _hooks() -> dict[str, Hook]:
    from alpa_dejavu.alpa import _checks, _places, _recorder, _search, _stages

    construction, compilation = "alpa.pipeline_parallel.stage_construction", "alpa.pipeline_parallel.compile_executable"

    def like(function: Callable[..., Any], *modules: str, drop: int = 0) -> Hook:
        parameters = tuple(inspect.signature(function).parameters)
        return Hook(function.__name__, modules, parameters[: len(parameters) - drop], lambda _: _plain(function, drop))

    return {
        "stages": Hook(
            "cluster_layers_and_slice_mesh", (construction, compilation), _stages.PARAMETERS, _stages.planning
        ),
        "submeshes": Hook("get_sliced_virtual_submeshes", (construction,), _places.PARAMETERS, _places.slicing),
        "checks": Hook(
            "compile_pipeshard_executable", (compilation, "alpa.parallel_method"), _checks.PARAMETERS, _checks.checking
        ),
        "shutdown": Hook("shutdown_global_cluster", ("alpa.device_mesh", "alpa.api"), (), _recorder.recording),
        "get_compute_cost": like(_search.get_compute_cost, construction),
        "training_dp": like(_search.training_dp, construction, drop=1),
        "inference_dp": like(_search.inference_dp, construction),
    }


def _plain(function: Callable[..., Any], drop: int) -> Callable[..., Any]:
    """Returns the function as another object, with the parameters of Alpa alone."""

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    replaced.__signature__ = signature.replace(parameters=parameters[: len(parameters) - drop])  # type: ignore[attr-defined]
    replaced.__name__, replaced.__doc__ = function.__name__, function.__doc__
    return replaced


DEFAULT = ("stages", "submeshes", "checks")
"""The hooks that `DejavuStageOption` needs; they leave every other stage option alone."""


def install(*names: str) -> None:
    """Puts hooks into Alpa, by which some of its functions are replaced by this package's: "stages", "submeshes" and
    "checks", which `DejavuStageOption` needs, by default; "shutdown", which records runs; "get_compute_cost",
    "training_dp" and "inference_dp" for Alpa's functions of these names, for plain `AutoStageOption` too.

    Raises ValueError for another name, and HookError, with nothing replaced, if a function has other parameters.
    """
    for hook in _chosen(names or DEFAULT):
        hook.install()


def uninstall(*names: str) -> None:
    """Takes hooks out of Alpa, so that its own functions are back; without names, all hooks."""
    for hook in _chosen(names or tuple(_hooks())):
        hook.uninstall()


@contextlib.contextmanager
def installed(*names: str) -> Iterator[None]:
    """Replaces some of Alpa's functions, by names as `install` has them, for the time of a `with` block."""
    install(*names)
    try:
        yield
    finally:
        uninstall(*(names or DEFAULT))


def _chosen(names: tuple[str, ...]) -> list[Hook]:
    hooks = _hooks()
    for name in names:
        if name not in hooks:
            raise ValueError(f"there is no hook {name!r}; choose among {', '.join(map(repr, hooks))}")
    return [hooks[name] for name in names]
