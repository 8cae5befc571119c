"""The passes of Alpa's fork, by the names that Alpa calls them by: sharding, partitioning, questions about modules."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from alpa_dejavu.sharding.hlo import HloModuleProto, inline_calls, simplify
from alpa_dejavu.sharding.hlo import shardings as hlo_shardings
from alpa_stock_jax._patch import Patch
from alpa_stock_jax.hlo_cost import MeasuredCosts, count_flop_dot_conv_only, estimate_cost
from alpa_stock_jax.hlo_gradients import gradient_channels, rewrite_gradient_accumulation
from alpa_stock_jax.hlo_markers import hooked_shardings, remove_markers, slice_at_markers
from alpa_stock_jax.hlo_module import HloModule, to_proto
from alpa_stock_jax.partition import partition
from alpa_stock_jax.pass_context import option
from alpa_stock_jax.sharding_pass import shard, solution_vector, without_shardings

__all__: list[str] = []


def run_auto_sharding(module: HloModule, options: Any) -> None:
    """Writes shardings on a module, by the engine or else by propagation, and hands its stages to Alpa."""
    from alpa.shard_parallel import auto_sharding

    build = options.executable_build_options
    if build.num_partitions > 1:
        free_output = any(build.allow_spmd_sharding_propagation_to_output)
        sharded = shard(simplify(inline_calls(module.proto)), build.num_partitions, free_output)
        module.proto = sharded.module
        auto_sharding.last_s_val = solution_vector(sharded)
        auto_sharding.last_objective = sharded.objective
        hooked = hooked_shardings(module.proto)
    else:
        module.proto = without_shardings(inline_calls(module.proto))
        hooked = []
    stages = slice_at_markers(module.proto)
    if stages:
        names = [stage.name for stage in stages]
        auto_sharding.set_auto_sharded_hlo_stages((names, [HloModule(stage.module) for stage in stages]))
        auto_sharding.set_hooked_sharding_protos([sharding.SerializeToString() for sharding in hooked])


def run_spmd_partitioner(module: HloModule, options: Any) -> None:
    """Makes an annotated module one of its partitions; sums gradients before they are reduced, if Alpa says so."""
    build = options.executable_build_options
    if build.num_partitions == 1:
        module.proto = without_shardings(remove_markers(inline_calls(module.proto)))
        return
    module.proto = partition(module.proto, build.num_partitions)
    if option("auto_sharding::rewrite_for_grad_acc", False):
        module.proto = rewrite_gradient_accumulation(module.proto, option("auto_sharding::rewrite_indices"))


def set_hlo_module_input_shardings(module: HloModule, shardings: Sequence[Any]) -> None:
    """Writes shardings on the parameters of a module; "manual" means that the pass may choose."""
    module.proto = inline_calls(module.proto)
    hlo_shardings.set_parameter_shardings(module.proto, [to_proto(sharding) for sharding in shardings])


def set_hlo_module_output_shardings(module: HloModule, shardings: Sequence[Any]) -> None:
    """Writes shardings on the results of a module."""
    module.proto = inline_calls(module.proto)
    hlo_shardings.set_output_shardings(module.proto, [to_proto(sharding) for sharding in shardings])


def hlo_module_count_flop_dot_conv_only(module: Any) -> int:
    """The floating-point operations of a module's matrix products and convolutions."""
    return count_flop_dot_conv_only(_proto(module))


def get_grad_sync_channel_ids(module: Any) -> str:
    """The channels of the all-reduces that synchronize gradients, each followed by a period, after a first one."""
    source = getattr(module, "partitioned", None)
    return "".join([".", *(f"{channel}." for channel in gradient_channels(source or _proto(module)))])


def estimate_hlo_module_cost(module: Any) -> float:
    """Seconds of one run of a module, by the measurements in the pass context."""
    measured = option("gpu_cost_model::profiling_results")
    tables = {
        "all-reduce": measured.all_reduce_cost_dict,
        "all-gather": measured.all_gather_cost_dict,
        "reduce-scatter": measured.reduce_scatter_cost_dict,
        "all-to-all": measured.all_to_all_cost_dict,
    }
    source = getattr(module, "partitioned", None) or _proto(module)
    skipped = option("gpu_cost_model::grad_sync_channel_ids", "")
    return estimate_cost(
        source,
        MeasuredCosts(tables, measured.dot_cost_dict),
        getattr(module, "num_partitions", 1),
        option("gpu_cost_model::num_micro_batches", 1),
        [int(channel) for channel in skipped.split(".") if channel],
    )


def _proto(module: Any) -> HloModuleProto:
    if type(module) is HloModule:
        return module.proto
    return HloModuleProto.FromString(module.as_serialized_hlo_module_proto())


def _install(module: ModuleType) -> None:
    for function in (
        run_auto_sharding,
        run_spmd_partitioner,
        set_hlo_module_input_shardings,
        set_hlo_module_output_shardings,
        hlo_module_count_flop_dot_conv_only,
        get_grad_sync_channel_ids,
        estimate_hlo_module_cost,
    ):
        setattr(module, function.__name__, function)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="jaxlib.xla_extension",
        reason="the passes of Alpa's fork, in Python: sharding, partitioning, questions about modules",
        apply=_install,
        before=True,
    ),
)
