"""The import hook: applies the patches when, and only when, somebody imports `alpa`.

Installed by a `.pth` file at interpreter start, in the driver and in every Ray worker alike. Until `alpa` is imported
it is one object in `sys.meta_path`; nothing else is loaded (finder and loader have the methods that the import system
calls, rather than the base classes of `importlib.abc`, which alone costs tens of milliseconds). When the first module
of Alpa is run, the patches that Alpa needs before are applied; each later module of Alpa is changed right after it
ran, before whoever imports it sees its names, so `from alpa.util import f` gets the patched `f` too.

Programs written for Alpa may ask jax for a public name of jax 0.3.22 before they import Alpa; two modules of jax
answer then, and only then (`_old_names.py`).
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _PatchingLoader:
    """Runs a module by its own loader, then applies the patches for it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        from alpa_stock_jax._registry import apply_after, apply_before, is_needed

        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        if not is_needed():
            self._loader.exec_module(module)
            return
        apply_before()
        self._loader.exec_module(module)
        apply_after(module)

    def __getattr__(self, name: str) -> object:
        # Whoever asks a spec for its source, its resources or whether it is a package gets the module's own loader.
        return getattr(self._loader, name)


class _OldNamesLoader(_PatchingLoader):
    """Runs a module of jax, then lets it find the public names that it has lost."""

    def exec_module(self, module: ModuleType) -> None:
        from alpa_stock_jax._old_names import offer

        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        offer(module)


class AlpaFinder:
    """Finds modules of Alpa where they are, and lets the patches have a say."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "alpa" or fullname.startswith("alpa."):
            patching = _PatchingLoader
        elif fullname in ("jax", "jax.experimental.pjit"):
            patching = _OldNamesLoader
        else:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = patching(spec.loader)  # type: ignore[assignment]
                return spec
        return None


def install() -> None:
    """Puts the hook first in `sys.meta_path`, once."""
    if not any(type(finder).__name__ == AlpaFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, AlpaFinder())
