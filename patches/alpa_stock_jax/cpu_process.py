"""The variables that a process with CPU devices must start with."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["cpu_environment"]

_DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"
_KEPT_BYTES = str(1 << 32)
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": _KEPT_BYTES, "MALLOC_TRIM_THRESHOLD_": _KEPT_BYTES}
"""Memory that is free stays with the process, as it does on an accelerator. By default glibc gives it back to the
system and takes it again page by page: in pipelines of small models that was up to a third of a step."""


def cpu_environment(num_devices: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a process with so many CPU devices, by those of the process that starts it.

    Its flags of XLA and, where it has any, its settings of glibc's allocator stay as they are.
    """
    flags = [
        flag
        for flag in environment.get("XLA_FLAGS", "").split()
        if not flag.startswith((_DEVICE_COUNT_FLAG, "--xla_gpu_"))
    ]
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join([*flags, f"{_DEVICE_COUNT_FLAG}={num_devices}"]),
        **{name: environment.get(name, value) for name, value in _ALLOCATOR.items()},
    }
