"""The import hook: applies the patches when, and only when, somebody imports `alpa`.

Installed by a `.pth` file at interpreter start, in the driver and in every Ray worker alike. Until `alpa` is imported it is
one object in `sys.meta_path`; nothing else is loaded. When the first module of Alpa is looked for, the patches that
Alpa needs before it runs are applied; each later module of Alpa is changed right after it ran, before whoever imports
it sees its names, so `from alpa.util import f` gets the patched `f` too.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class _PatchingLoader(importlib.abc.Loader):
    """Runs a module by its own loader, then applies the patches for it."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        from alpa_stock_jax._registry import apply_after

        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        apply_after(module)


class AlpaFinder(importlib.abc.MetaPathFinder):
    """Finds modules of Alpa where they are, and lets the patches have a say."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "alpa" and not fullname.startswith("alpa."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        from alpa_stock_jax._registry import apply_before, is_needed

        if is_needed():
            if fullname == "alpa":
                apply_before()
            spec.loader = _PatchingLoader(spec.loader)
        return spec


def install() -> None:
    """Puts the hook first in `sys.meta_path`, once."""
    if not any(type(finder).__name__ == AlpaFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, AlpaFinder())
