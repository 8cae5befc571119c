"""Checks that find what is wrong before anything is traced, compiled or started."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from alpa_dejavu.alpa._playoff import Argument, Playoff
from alpa_dejavu.alpa._recorder import watch
from alpa_dejavu.alpa._watch import StepWatch
from alpa_dejavu.alpa.option import DejavuStageOption

PARAMETERS = (
    "fun", "in_tree", "out_tree_thunk", "static_argnums", "donated_invars", "batch_invars", "virtual_mesh",
    "num_microbatch", "pipeline_schedule", "default_as_option", "layer_option", "stage_option",
    "global_input_shardings", "stage_input_shardings", "manual_shard_options", "avals",
)  # fmt: skip


def checking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Alpa's `compile_pipeshard_executable`, wrapped: batch, layers and submeshes are checked before anything
    is compiled by a `DejavuStageOption`, and steps are recorded if it has a history.
    """

    @functools.wraps(original)
    def compile_pipeshard_executable(*args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(PARAMETERS[:-1], args, strict=False)) | kwargs
        option = arguments["stage_option"]
        if not isinstance(option, DejavuStageOption):
            return original(*args, **kwargs)
        avals = args[len(PARAMETERS) - 1 :]
        _check_batch(arguments["num_microbatch"], arguments["batch_invars"], avals)
        _check_layers(arguments["layer_option"])
        _check_submeshes(option, arguments["virtual_mesh"])
        tries = option.profile == "playoff" and option.plan is None
        executable = _played(original, option, arguments, avals) if tries else original(*args, **kwargs)
        if option.history is not None:
            watch(executable, option)
        # A plan that is given has no task of its own, and who runs one to measure it looks at its steps himself.
        if option.plan is None and option.last_plan is not None and option.last_plan.confidence is not None:
            StepWatch(executable, option)
        return executable

    return compile_pipeshard_executable


def _played(
    original: Callable[..., Any], option: DejavuStageOption, arguments: Mapping[str, Any], avals: Sequence[Any]
) -> Any:
    """Returns the executable of the plan that is the fastest on the devices, of those that may be the best."""

    def compiled(stage_option: DejavuStageOption) -> Any:
        for store in filter(None, arguments["fun"].stores):  # they keep what was traced for the plan before
            store.reset()
        planned = {**arguments, "stage_option": stage_option}
        return original(*(planned[name] for name in PARAMETERS[:-1]), *avals)

    step_arguments = zip(avals, arguments["donated_invars"], arguments["batch_invars"], strict=True)
    return Playoff(
        compiled, option, arguments["virtual_mesh"], [Argument(*argument) for argument in step_arguments]
    ).fastest()


def _check_batch(num_micro_batches: int, batch_invars: Sequence[bool], avals: Sequence[Any]) -> None:
    if num_micro_batches < 1:
        raise ValueError(f"num_micro_batches is {num_micro_batches}, but must be at least 1")
    for aval, is_batch in zip(avals, batch_invars, strict=True):
        if is_batch and (not aval.shape or aval.shape[0] % num_micro_batches):
            divisors = [n for n in range(1, aval.shape[0] + 1) if aval.shape[0] % n == 0] if aval.shape else []
            raise ValueError(
                f"num_micro_batches is {num_micro_batches}, which doesn't divide the batch of {tuple(aval.shape)}; "
                f"choose one of {divisors}, or another batch size"
            )


def _check_layers(layer_option: Any) -> None:
    wanted = getattr(layer_option, "layer_num", None)
    if isinstance(wanted, int) and wanted < 1:
        raise ValueError(f"the layer option asks for {wanted} layers, but a plan needs one at least; give layer_num=1")


def _check_submeshes(option: DejavuStageOption, virtual_mesh: Any) -> None:
    hosts, devices = virtual_mesh.num_hosts, virtual_mesh.num_devices_per_host
    for wanted_hosts, wanted_devices in option.manually_specified_submeshes or ():
        if wanted_hosts > hosts or wanted_devices > devices or min(wanted_hosts, wanted_devices) < 1:
            raise ValueError(
                f"the submesh ({wanted_hosts}, {wanted_devices}) asks for more than there is: the cluster has {hosts} "
                f"hosts of {devices} devices; take it out of manually_specified_submeshes, or connect more"
            )
