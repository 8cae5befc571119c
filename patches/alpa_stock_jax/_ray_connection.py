"""Destructors do nothing once their connection to Ray has ended.

Ray has freed everything then, and a call would start it anew.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import ray

__all__ = ["session", "unless_over"]


def session() -> tuple[str, str]:
    """Returns what tells this connection to Ray from every other."""
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()


def unless_over(method: Any, of: Callable[[Any], Any] = lambda owner: owner) -> Any:
    """The method, which does nothing once the interpreter ends or its connection to Ray has ended, whether or not there
    is a new one.

    Args:
        method: frees something that workers of Ray hold.
        of: gives what has the connection as `session`, where the owner itself hasn't; without any it's the present one.
    """
    is_finalizing, is_initialized = sys.is_finalizing, ray.is_initialized

    @functools.wraps(method)
    def freeing(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_finalizing() and is_initialized() and getattr(of(self), "session", None) in (None, session()):
            method(self, *args, **kwargs)

    return freeing
