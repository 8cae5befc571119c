"""The cache of stage profiles: `AutoStageOption(cached_profile_result=...)` reads what the last search wrote.

Alpa writes it by `numpy.save`, reads it by `pickle.load` (which stops at the `.npy` header), compares it with the job
at hand by a loop that lacks a `zip`, and names variables by `repr`, which in today's jax is an address. Here the file
is read by an unpickler that knows the classes that occur in it and refuses all others, and variables are named by
where they first occur in the layers, so that the same job has the same names in every process.
"""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Iterable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO

from alpa_stock_jax._patch import Patch
from alpa_stock_jax._restricted_pickle import NUMPY_CLASSES, read

_STAGE_PROFILING = "alpa.pipeline_parallel.stage_profiling"
_STAGE_CONSTRUCTION = "alpa.pipeline_parallel.stage_construction"

_ALLOWED = NUMPY_CLASSES | {(_STAGE_PROFILING, "StageProfileResult"), (_STAGE_PROFILING, "ModuleProfileResult")}


def read_profile_results(file: BinaryIO) -> dict[tuple[int, ...], Any]:
    """The stage profiles in a file that a search wrote, by stage index.

    Args:
        file: open for reading bytes; what `numpy.save` wrote, or a plain pickle of the same dictionary.

    Raises:
        pickle.UnpicklingError: the file holds anything else.
    """
    found = read(file, _ALLOWED)
    if not isinstance(found, dict):
        raise pickle.UnpicklingError(
            f"the profile cache holds a {type(found).__name__} instead of a dictionary of stage profiles"
        )
    return found


def name_of_variable(variable: Any) -> str:
    """A short name that no other variable of this process has; `repr` prints the whole suffix, too."""
    return f"v{variable.count}"


class VariableNames:
    """Names of variables by first occurrence: `v0`, `v1`, … in the order in which they are met."""

    def __init__(self, variables: Iterable[Any] = ()) -> None:
        self._names: dict[Any, str] = {}
        for variable in variables:
            self(variable)

    def __call__(self, variable: Any) -> str:
        """The variable's name, given to it now if it has none."""
        return self._names.setdefault(variable, f"v{len(self._names)}")


def _occurrences(layers: Sequence[Any]) -> Iterable[Any]:
    for layer in layers:
        if layer is not None:
            yield from layer.invars
            yield from layer.outvars


def _consistent_with(stages: Sequence[Any], profile_results: dict[tuple[int, ...], Any]) -> None:
    """Raises AssertionError where a cached profile is of another job than the stages."""
    fields = ("invar_names", "outvar_names", "donated_invars", "acc_grad_invars_indices", "acc_grad_outvars_indices")
    for stage_index, stage_config, _ in stages:
        cached = profile_results.get(stage_index)
        if cached is None:
            continue
        if cached.n_modules != stage_config.n_modules:
            raise AssertionError(
                f"stage {stage_index} of the profile cache has {cached.n_modules} modules, "
                f"this job's has {stage_config.n_modules}; search without cached_profile_result"
            )
        for profile, config in zip(cached.module_profile_results, stage_config.module_profile_configs, strict=True):
            for field in fields if profile is not None else ():
                if getattr(profile, field) != getattr(config, field):
                    raise AssertionError(
                        f"the profile cache is of another job: {field} of stage {stage_index} differs; "
                        "search without cached_profile_result"
                    )


def _read_by_allow_list(module: ModuleType) -> None:
    module.pickle = SimpleNamespace(load=read_profile_results)  # type: ignore[attr-defined]


def _compare_all_modules(module: ModuleType) -> None:
    module.check_profile_results_consistent = _consistent_with  # type: ignore[attr-defined]


def _name_by_occurrence(module: ModuleType) -> None:
    get_compute_cost = module.get_compute_cost
    module.repr = name_of_variable  # type: ignore[attr-defined]

    signature = inspect.signature(get_compute_cost)

    @functools.wraps(get_compute_cost)
    def with_stable_names(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        layers = (*given["layers"], *given["apply_grad_layers"])
        module.repr = VariableNames(_occurrences(layers))  # type: ignore[attr-defined]
        try:
            return get_compute_cost(*args, **kwargs)
        finally:
            module.repr = name_of_variable  # type: ignore[attr-defined]

    module.get_compute_cost = with_stable_names  # type: ignore[attr-defined]


def _tell_last_file(module: ModuleType) -> None:
    from alpa.pipeline_parallel import stage_profiling

    get_last_dp_result = module.get_last_dp_result

    @functools.wraps(get_last_dp_result)
    def with_file_name() -> Any:
        module.last_compute_cost_file_name = (  # type: ignore[attr-defined]
            stage_profiling.last_compute_cost_file_name
        )
        return get_last_dp_result()

    module.get_last_dp_result = with_file_name  # type: ignore[attr-defined]


PATCHES: tuple[Patch, ...] = (
    Patch(
        module=_STAGE_PROFILING,
        reason="the profile cache is read as what numpy.save wrote, by an allow-list of classes",
        apply=_read_by_allow_list,
        expects={"pickle.load": None},
    ),
    Patch(
        module=_STAGE_PROFILING,
        reason="a cached profile is compared with the job module by module (a zip was missing)",
        apply=_compare_all_modules,
        expects={"check_profile_results_consistent": ("stages", "profile_results")},
    ),
    Patch(
        module=_STAGE_PROFILING,
        reason="variables in stage profiles are named by occurrence: their repr is an address in today's jax",
        apply=_name_by_occurrence,
        expects={
            "get_compute_cost": (
                "virtual_mesh",
                "submesh_choices",
                "autosharding_configs",
                "layers",
                "accumulator_mapping",
                "acc_grad_invars",
                "acc_grad_outvars",
                "apply_grad_layers",
                "apply_grad_global_info",
                "num_micro_batches",
                "default_as_option",
                "auto_stage_option",
                "inference_mode",
            )
        },
    ),
    Patch(
        module=_STAGE_CONSTRUCTION,
        reason="get_last_dp_result tells the last profile file (it was imported by value, so always None)",
        apply=_tell_last_file,
        expects={"get_last_dp_result": (), "last_compute_cost_file_name": None},
    ),
)
