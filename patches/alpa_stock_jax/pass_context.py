"""The options that Alpa hands to its passes around a call: kept here for the passes that are written in Python."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch

__all__ = ["option"]

_options: dict[str, Any] = {}


def option(name: str, default: Any = None) -> Any:
    """The value that Alpa set for an option of its passes, or the default outside a context that sets it."""
    return _options.get(name, default)


def set_pass_context(options: Mapping[str, Any]) -> None:
    """Sets all options; those set before are gone."""
    _options.clear()
    _options.update(options)


def clear_pass_context() -> None:
    """Forgets all options."""
    _options.clear()


def _nothing(*args: Any) -> None:
    """Alpa orders transfers and computations by events of its fork; stock XLA orders them by their buffers."""


def _install(module: ModuleType) -> None:
    module.set_pass_context = set_pass_context  # type: ignore[attr-defined]
    module.clear_pass_context = clear_pass_context  # type: ignore[attr-defined]
    for name in ("reset_event_context", "computation_wait_events", "set_idx_to_uuid", "set_num_device_on_host"):
        setattr(module, name, _nothing)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="jaxlib.xla_extension",
        reason="options of passes are kept in Python; events that the fork orders by are not needed",
        apply=_install,
        before=True,
    ),
)
