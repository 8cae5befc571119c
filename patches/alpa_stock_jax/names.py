"""Names that Alpa imports from jax 0.3.22 and that stock jax has moved or lost."""

from __future__ import annotations

import functools
import pkgutil
import sys
from types import ModuleType

from alpa_stock_jax._patch import Patch


def _add_names(module: ModuleType, sources: dict[str, str]) -> None:
    """Gives a module the names that it lacks; `sources` says what each stands for. Modules become importable by
    theirs.
    """
    for name, source in sources.items():
        if name in vars(module):
            continue
        found = pkgutil.resolve_name(source)
        setattr(module, name, found)
        if isinstance(found, ModuleType) and hasattr(module, "__path__"):
            sys.modules.setdefault(f"{module.__name__}.{name}", found)


def _names(module: str, reason: str, **sources: str) -> Patch:
    return Patch(
        module=module,
        reason=reason,
        apply=functools.partial(_add_names, sources=sources),
        uses=tuple(sources.values()),
        before=True,
    )


def _make_maps_importable(module: ModuleType) -> None:
    from alpa_stock_jax import _frozen_dict

    module.maps = _frozen_dict  # type: ignore[attr-defined]
    sys.modules["jax.experimental.maps"] = _frozen_dict


PATCHES: tuple[Patch, ...] = (
    _names(
        "jax",
        "names of jax that moved under jax._src, jax.core or jax.interpreters",
        linear_util="jax._src.linear_util",
        abstract_arrays="jax._src.abstract_arrays",
        ShapedArray="jax.core.ShapedArray",
    ),
    _names(
        "jax._src.lib",
        "the bridge to XLA moved out of jax._src.lib",
        xla_bridge="jax._src.xla_bridge",
    ),
    _names(
        "jax._src.xla_bridge",
        "compile options are made in jax._src.compiler now",
        get_compile_options="jax._src.compiler.get_compile_options",
    ),
    _names(
        "jax.interpreters.xla",
        "names of the interpreter that compiled by XlaBuilder; every array is an ArrayImpl now",
        xops="jax._src.lib.xla_client.ops",
        DeviceArray="jax._src.array.ArrayImpl",
        _DeviceArray="jax._src.array.ArrayImpl",
        _CppDeviceArray="jax._src.array.ArrayImpl",
        AxisEnv="jax._src.sharding_impls.AxisEnv",
        translations="alpa_stock_jax._translations.translations",
        register_translation="alpa_stock_jax._translations.register_translation",
    ),
    _names("jax", "jax.xla was the name of jax.interpreters.xla", xla="jax.interpreters.xla"),
    _names(
        "jaxlib.xla_extension",
        "the one class of device arrays is called ArrayImpl now",
        DeviceArray="jax._src.array.ArrayImpl",
    ),
    _names(
        "jax.interpreters.pxla",
        "names of sharded arrays, given by this package for jax.Array",
        ShardedDeviceArray="alpa_stock_jax.sharded_array.ShardedDeviceArray",
        _ShardedDeviceArray="alpa_stock_jax.sharded_array.make_sharded_array",
        _hashable_index="alpa_stock_jax.sharding_specs.hashable_index",
        sharding_spec_sharding_proto="alpa_stock_jax.sharding_specs.sharding_proto",
        new_mesh_sharding_specs="alpa_stock_jax.sharding_specs.new_mesh_sharding_specs",
    ),
    _names(
        "jax.experimental.pjit",
        "parts of pjit that Alpa's manual sharding parses partition specs with",
        PartitionSpec="jax.sharding.PartitionSpec",
        ParsedPartitionSpec="jax._src.sharding_impls.ParsedPartitionSpec",
        get_array_mapping="jax._src.sharding_impls.get_array_mapping",
        _is_unspecified="jax._src.sharding_impls.is_unspecified",
        _is_auto="jax._src.sharding_impls.is_auto",
        _is_from_gda="alpa_stock_jax.manual_sharding.is_from_global_device_array",
        _prepare_axis_resources="alpa_stock_jax.manual_sharding.prepare_axis_resources",
    ),
    _names(
        "jax._src.api",
        "flags are in jax._src.config, and callables are checked in jax._src.api_util now",
        FLAGS="jax._src.config.config",
        _check_callable="jax._src.api_util.check_callable",
    ),
    _names("jax.api_util", "PyTreeDef is public in jax.tree_util", PyTreeDef="jax.tree_util.PyTreeDef"),
    _names(
        "jax.core",
        "a call primitive that jax lost; Alpa compares with it",
        named_call_p="alpa_stock_jax._lost_primitives.named_call_p",
    ),
    _names(
        "jax.interpreters.partial_eval",
        "a call primitive that jax lost; Alpa compares with it",
        remat_call_p="alpa_stock_jax._lost_primitives.remat_call_p",
    ),
    Patch(
        module="jax.experimental",
        reason="jax.experimental.maps is gone, and Alpa takes a hashable dictionary from it",
        apply=_make_maps_importable,
        before=True,
    ),
)
