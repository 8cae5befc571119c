"""An executable as Alpa's fork gives it: it runs on lists of buffers, can leave out collectives, and knows its memory.

Alpa names the gradients' all-reduces in an environment variable for all runs but that of the last micro-batch, which
leave them out. Stock XLA can't leave out any, so a second executable is compiled without them when they are first left
out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax._src.lib import xla_client as xc

from alpa_dejavu.sharding.hlo import HloModuleProto
from alpa_stock_jax._mlir_module import manual_module
from alpa_stock_jax.devices import note_execution
from alpa_stock_jax.hlo_gradients import gradient_channels, without_all_reduces
from alpa_stock_jax.hlo_module import HloModule
from alpa_stock_jax.partition import compile_options

__all__ = ["MeshExecutable", "OptimizedModule"]

_SKIP_SUFFIX = "XLA_SKIP_NCCL_COLLECTIVE_IDS"


class OptimizedModule(HloModule):
    """The module that really runs, after all of XLA's passes: its text is XLA's own.

    Attributes:
        partitioned: the module that was given to XLA.
        num_partitions: of how many partitions it is one.
    """

    def __init__(self, optimized: Any, partitioned: HloModuleProto, num_partitions: int) -> None:
        super().__init__(optimized.as_serialized_hlo_module_proto())
        self._optimized = optimized
        self.partitioned = partitioned
        self.num_partitions = num_partitions

    def stock(self) -> Any:
        """XLA's own module."""
        return self._optimized


class MeshExecutable:
    """A compiled module on given devices.

    Args:
        client: the client of the devices.
        module: one partition, or the whole for one device.
        devices: the device of each partition; None compiles for as many partitions as `num_partitions` without any.
        num_partitions: how many partitions there are.
        optimize: the last pass over a module before XLA compiles it.
    """

    def __init__(
        self,
        client: xc.Client,
        module: HloModuleProto,
        devices: Sequence[Any] | None,
        num_partitions: int,
        optimize: Callable[[HloModuleProto], HloModuleProto] = lambda module: module,
    ) -> None:
        self.client = client
        self._given, self._optimize = module, optimize
        self._module = optimize(module)
        self._num_partitions = num_partitions
        self._devices = None if devices is None else tuple(devices)
        self._compiled = self._compile(self._module)
        self._before_last: Any = None
        self._left_out = ""
        self._optimized: OptimizedModule | None = None
        self._local_devices = list(self._compiled.local_devices())
        self._stats = self._compiled.get_compiled_memory_stats()

    def _compile(self, module: HloModuleProto) -> Any:
        devices = self.client.local_devices()[:1] if self._devices is None else self._devices
        options = compile_options(len(devices), np.array([[device.id for device in devices]]))
        build = options.executable_build_options
        build.num_partitions, build.use_spmd_partitioning = self._num_partitions, self._num_partitions > 1
        if self._num_partitions > 1:
            count = max(1, len(module.host_program_shape.result.tuple_shapes))
            build.allow_spmd_sharding_propagation_to_output = [False] * count
        return _stock_compile(self.client, manual_module(module, self._num_partitions > 1), options)

    def hlo_modules(self) -> list[OptimizedModule]:
        """The module that runs."""
        if self._optimized is None:
            (stock,) = self._compiled.hlo_modules()
            self._optimized = OptimizedModule(stock, self._module, self._num_partitions)
        return [self._optimized]

    def local_devices(self) -> list[Any]:
        """The devices of this process that it runs on."""
        return list(self._local_devices)

    def execute_sharded_on_local_devices(self, arguments: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Runs it.

        Args:
            arguments: for each argument, a buffer on each local device.

        Returns:
            For each result, a buffer on each local device.
        """
        if self._devices is None:
            raise RuntimeError(f"{self._module.name} was compiled without devices, to look at; it can't be run")
        skipped = os.environ.get(self.hlo_modules()[0].name + _SKIP_SUFFIX, "")
        compiled = self._without(skipped) if skipped.strip(".") else self._compiled
        given = [list(pieces) for pieces in arguments]
        for device in self._local_devices:
            note_execution(device, self._allocated_bytes())
        results: list[list[Any]] = compiled.execute_sharded_on_local_devices(given)
        return results

    def execute(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs it on one device: a buffer for each argument in, a buffer for each result out."""
        return [pieces[0] for pieces in self.execute_sharded_on_local_devices([[one] for one in arguments])]

    def _without(self, channels: str) -> Any:
        """What runs for all micro-batches but the last: without the all-reduces, and without what combines them."""
        if channels != self._left_out:  # it is the same in each run, so the module is looked through once
            named = {int(channel) for channel in channels.strip(".").split(".")}
            gradients = gradient_channels(self._module)
            if named != set(gradients):
                raise ValueError(
                    f"the channels to leave out are {sorted(named)}, but must be {gradients}, those of the gradients' "
                    "all-reduces; take the names from get_grad_sync_channel_ids"
                )
            local = without_all_reduces(self._given, gradient_channels(self._given))
            self._before_last = self._before_last or self._compile(self._optimize(local))
            self._left_out = channels
        return self._before_last

    def get_compiled_memory_stats(self) -> Any:
        """XLA's account of the memory that a run takes on each device."""
        return self._stats

    def total_allocation_size(self) -> int:
        """The bytes that a run takes on each device: arguments, results that don't take their place, temporaries."""
        stats = self.get_compiled_memory_stats()
        return int(
            stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
            + stats.temp_size_in_bytes
        )

    def _allocated_bytes(self) -> int:
        stats = self._stats
        return int(stats.output_size_in_bytes - stats.alias_size_in_bytes + stats.temp_size_in_bytes)

    def size_of_generated_code_in_bytes(self) -> int:
        """The bytes of machine code."""
        return int(self._compiled.size_of_generated_code_in_bytes())

    def delete(self) -> None:
        """Frees what XLA holds for it; it can't run any more."""
        self._compiled.delete()
        if self._before_last is not None:
            self._before_last.delete()
            self._before_last, self._left_out = None, ""


def _stock_compile(client: xc.Client, module: bytes, options: xc.CompileOptions) -> Any:
    return client.compile(module, options)
