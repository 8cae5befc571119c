"""`Client.compile` for what Alpa compiles: HLO computations, annotated or partitioned, on a mesh's devices."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from jax._src.lib import xla_client as xc
from jax._src.lib import xla_extension as xe

from alpa_dejavu.sharding.hlo import HloModuleProto, inline_calls
from alpa_stock_jax._patch import Patch
from alpa_stock_jax.executable import MeshExecutable
from alpa_stock_jax.hlo_combine import optimize_collectives
from alpa_stock_jax.hlo_markers import remove_markers
from alpa_stock_jax.partition import partition
from alpa_stock_jax.pass_context import option
from alpa_stock_jax.sharding_pass import without_shardings

__all__ = ["MeshBackend", "compile_computation"]

_stock_compile = xe.Client.compile


class MeshBackend:
    """A client whose executables run on the devices of one mesh, in the mesh's order; otherwise the client itself."""

    def __init__(self, client: Any, devices: Sequence[Any]) -> None:
        self._client = client
        self._mesh_devices = tuple(devices)

    def compile(self, computation: Any, compile_options: Any = None, *rest: Any) -> Any:
        """Compiles for the mesh's devices."""
        if isinstance(computation, xe.XlaComputation):
            return compile_computation(self._client, computation, compile_options, self._mesh_devices)
        return self._client.compile(computation, compile_options or xc.CompileOptions(), *rest)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_client":
            raise AttributeError(name)
        return getattr(self._client, name)


def compile_computation(
    client: Any, computation: xe.XlaComputation, options: Any = None, devices: Sequence[Any] | None = None
) -> MeshExecutable:
    """Compiles a computation; an annotated one is partitioned first.

    Args:
        client: the client to compile with.
        computation: an HLO computation for one device, annotated with shardings, or partitioned already.
        options: Alpa's compile options; the devices in them are numbers within `devices`.
        devices: the mesh's devices; by default all of the client's, of which the first are taken.
    """
    module = HloModuleProto.FromString(computation.as_serialized_hlo_module_proto())
    build = (options or xc.CompileOptions()).executable_build_options
    count = int(build.num_partitions)
    if count > 1 and build.use_spmd_partitioning:
        module = partition(module, count)
    module = remove_markers(inline_calls(module))
    chosen = _choose(client, count, devices)
    if count == 1:
        return MeshExecutable(client, without_shardings(module), chosen, count)
    thresholds = option("combiner::all_reduce_threshold", 0), option("combiner::all_gather_threshold", 0)

    def optimize(module: HloModuleProto) -> HloModuleProto:
        return optimize_collectives(module, count, *thresholds)

    return MeshExecutable(client, module, chosen, count, optimize)


def _choose(client: Any, count: int, devices: Sequence[Any] | None) -> Sequence[Any] | None:
    if option("build_option::bypass_device_assignment_check", False):
        return None
    available = client.devices() if devices is None else devices
    if len(available) < count:
        raise RuntimeError(f"a module of {count} partitions needs as many devices; there are {len(available)}")
    return available[:count]


def _compile(client: Any, computation: Any, compile_options: Any = None, *rest: Any, **more: Any) -> Any:
    """Stock compilation, and compilation of HLO computations, which stock clients refuse."""
    if isinstance(computation, xe.XlaComputation):
        return compile_computation(client, computation, compile_options)
    if compile_options is None:
        return _stock_compile(client, computation, *rest, **more)
    return _stock_compile(client, computation, compile_options, *rest, **more)


def _install(module: ModuleType) -> None:
    module.Client.compile = _compile


def _replace_compile_options(module: ModuleType) -> None:
    def get_compile_options(
        num_replicas: int,
        num_partitions: int,
        device_assignment: np.ndarray,
        use_spmd_partitioning: bool,
        parameter_is_tupled_arguments: int,
        build_random_seed: int,
        spmd_propagation_to_outputs: bool = False,
    ) -> xc.CompileOptions:
        """Options of a compilation; seeds are given to executions, not to compilations, by stock XLA."""
        options = xc.CompileOptions()
        options.num_replicas, options.num_partitions = int(num_replicas), int(num_partitions)
        options.parameter_is_tupled_arguments = bool(parameter_is_tupled_arguments)
        build = options.executable_build_options
        build.num_replicas, build.num_partitions = int(num_replicas), int(num_partitions)
        build.use_spmd_partitioning = bool(use_spmd_partitioning)
        build.device_assignment = xc.DeviceAssignment.create(device_assignment)
        build.allow_spmd_sharding_propagation_to_output = [bool(spmd_propagation_to_outputs)]
        return options

    module.get_compile_options = get_compile_options  # type: ignore[attr-defined]


def _use_mesh_backends(module: ModuleType) -> None:
    mesh: Any = module.LocalPhysicalDeviceMesh
    stock_init = mesh.__init__

    def __init__(self: Any, devices: Sequence[Any] | None = None) -> None:
        stock_init(self, devices)
        if all(device is not None for device in self.devices):
            self.backend = MeshBackend(self.backend, self.devices)

    mesh.__init__ = __init__


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="jaxlib.xla_extension",
        reason="clients compile HLO computations, which stock ones take as MLIR only",
        apply=_install,
        expects={"Client.compile": None},
        before=True,
    ),
    Patch(
        module="alpa.util",
        reason="compile options of stock XLA have no seed, and a list where Alpa sets a flag",
        apply=_replace_compile_options,
        expects={
            "get_compile_options": (
                "num_replicas", "num_partitions", "device_assignment", "use_spmd_partitioning",
                "parameter_is_tupled_arguments", "build_random_seed", "spmd_propagation_to_outputs",
            ),
        },
    ),
    Patch(
        module="alpa.device_mesh",
        reason="what is compiled for a local mesh runs on that mesh's devices",
        apply=_use_mesh_backends,
        expects={"LocalPhysicalDeviceMesh.__init__": ("self", "devices")},
    ),
)  # fmt: skip
