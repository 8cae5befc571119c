"""What Alpa assumes of the machine: its default backend, its XLA flags and its version check."""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType

from alpa_stock_jax._patch import Patch

_FLAGS_OF_THE_FORK = ("--xla_gpu_enable_async_all_reduce=false", "--xla_gpu_force_compilation_parallelism=8")


def _drop_flags_of_the_fork(module: ModuleType) -> None:
    kept = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag not in _FLAGS_OF_THE_FORK]
    if kept:
        os.environ["XLA_FLAGS"] = " ".join(kept)
    else:
        os.environ.pop("XLA_FLAGS", None)


def _can_use_gpu(has_driver: bool) -> bool:
    platforms = os.environ.get("JAX_PLATFORMS", "")
    wanted = not platforms or any(name in platforms.split(",") for name in ("cuda", "gpu"))
    plugins = ("jax_cuda12_plugin", "jax_plugins.xla_cuda12")
    return has_driver and wanted and any(_is_installed(name) for name in plugins)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _use_the_backend_that_is_there(module: ModuleType) -> None:
    config = module.global_config
    if not _can_use_gpu(config.has_cuda):
        config.backend = "cpu"
        config.has_cuda = False
    # Ray counts the devices of a mesh as GPUs on a CPU cluster too: `ray.init(num_gpus=...)` says how many there are.
    module.GlobalConfig.ray_accelerator_name = property(lambda config: "GPU")


def _accept_stock_jaxlib(module: ModuleType) -> None:
    def check_alpa_jaxlib_version() -> None:
        """Stock jaxlib has no version of Alpa's; each patch has checked what it needs."""

    module.check_alpa_jaxlib_version = check_alpa_jaxlib_version  # type: ignore[attr-defined]


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.global_env",
        reason="stock jaxlib aborts the process on XLA flags that it doesn't know",
        apply=_drop_flags_of_the_fork,
    ),
    Patch(
        module="alpa.global_env",
        reason="the default backend is the CPU where no GPU can be used",
        apply=_use_the_backend_that_is_there,
        expects={
            "global_config.backend": None,
            "global_config.has_cuda": None,
            "GlobalConfig.ray_accelerator_name": None,
        },
    ),
    Patch(
        module="alpa.version",
        reason="Alpa refuses every jaxlib but its own",
        apply=_accept_stock_jaxlib,
        expects={"check_alpa_jaxlib_version": ()},
    ),
)
