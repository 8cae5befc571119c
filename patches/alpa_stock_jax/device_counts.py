"""How many devices there are "on gpu", and their client: Alpa's name for its devices, whatever they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch


def _counting(original: Callable[..., int]) -> Callable[..., int]:
    """The count, of the devices that are there where "gpu" is asked for and jax has no such backend."""

    @functools.wraps(original)
    def count(backend: Any = None) -> int:
        return original(None if backend == "gpu" and not _has_gpu() else backend)

    return count


def _has_gpu() -> bool:
    from jax._src import xla_bridge

    return any(name in ("gpu", "cuda", "rocm") for name in xla_bridge.backends())


def _serving(original: Callable[..., Any]) -> Callable[..., Any]:
    """The default client, where "gpu" is asked for and jax has no such backend."""

    @functools.wraps(original)
    def get_backend(platform: Any = None) -> Any:
        return original(None if platform == "gpu" and not _has_gpu() else platform)

    return get_backend


def _replace(module: ModuleType) -> None:
    for name in ("device_count", "local_device_count"):
        setattr(module, name, _counting(getattr(module, name)))


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="jax",
        reason='Alpa asks for the number of devices on "gpu", which stock jax refuses where there are only CPU devices',
        apply=_replace,
        expects={"device_count": ("backend",), "local_device_count": ("backend",)},
        uses=("jax._src.xla_bridge.backends",),
        before=True,
    ),
    Patch(
        module="jax.lib.xla_bridge",
        reason='the client of "gpu" is the one that is there where jax has only CPU devices',
        apply=lambda module: setattr(module, "get_backend", _serving(module.get_backend)),
        expects={"get_backend": ("platform",)},
        before=True,
    ),
)
