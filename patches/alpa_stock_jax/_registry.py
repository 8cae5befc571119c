"""All patches, in the order in which they are applied; a module of this package for each reason."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from types import ModuleType

from alpa_stock_jax._patch import Patch

# Each has a tuple PATCHES. The order matters only where two change the same module.
_ROOMS = (
    "alpa_stock_jax.names",
    "alpa_stock_jax.sharded_array",
    "alpa_stock_jax.sharding_methods",
    "alpa_stock_jax.counted_variables",
    "alpa_stock_jax.environment",
    "alpa_stock_jax.lazy_numba",
    "alpa_stock_jax.device_counts",
    "alpa_stock_jax.arguments",
    "alpa_stock_jax.random_numbers",
    "alpa_stock_jax.primitives",
    "alpa_stock_jax.lowering",
    "alpa_stock_jax.devices",
    "alpa_stock_jax.local_mesh",
    "alpa_stock_jax.interpreter_exit",
    "alpa_stock_jax.mesh_operators",
    "alpa_stock_jax.hlo_module",
    "alpa_stock_jax.pass_context",
    "alpa_stock_jax.xla_passes",
    "alpa_stock_jax.compile",
    "alpa_stock_jax.pipeline_variables",
    "alpa_stock_jax.pipeline_named_call",
    "alpa_stock_jax.pipeline_all_reduce",
    "alpa_stock_jax.pipeline_reductions",
    "alpa_stock_jax.pipeline_layers",
    "alpa_stock_jax.pipeline_local",
    "alpa_stock_jax.pipeline_overlap",
    "alpa_stock_jax.pipeline_moves",
    "alpa_stock_jax.pipeline_scalars",
    "alpa_stock_jax.micro_batches",
    "alpa_stock_jax.pipeline_profile_cache",
    "alpa_stock_jax.pipeline_profile_faults",
    "alpa_stock_jax.pipeline_profile_workers",
    "alpa_stock_jax.ray_nodes",
    "alpa_stock_jax.ray_cluster",
    "alpa_stock_jax.ray_launch",
    "alpa_stock_jax.ray_hosts",
    "alpa_stock_jax.ray_groups",
    "alpa_stock_jax.ray_faults",
    "alpa_stock_jax.ray_session",
    "alpa_stock_jax.ray_checkpoint",
    "alpa_stock_jax.ray_compilers",
)


@functools.cache
def patches() -> tuple[Patch, ...]:
    """Every patch, in the order of application."""
    return tuple(
        dataclasses.replace(patch, room=room) for room in _ROOMS for patch in importlib.import_module(room).PATCHES
    )


@functools.cache
def is_needed() -> bool:
    """Whether jaxlib is a stock one: Alpa's own fork can run its auto-sharding pass and is left alone."""
    from jaxlib import xla_extension

    return not hasattr(xla_extension, "get_alpa_jaxlib_version")


@functools.cache
def apply_before() -> None:
    """Applies what Alpa needs before its first module runs."""
    for patch in patches():
        if patch.before:
            _apply(patch, importlib.import_module(patch.module))


def apply_after(module: ModuleType) -> None:
    """Applies the patches for a module of Alpa that has just run."""
    for patch in patches():
        if patch.module == module.__name__ and not patch.before:
            _apply(patch, module)


def _apply(patch: Patch, module: ModuleType) -> None:
    patch.check(module)
    patch.apply(module)
