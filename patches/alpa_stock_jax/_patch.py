"""What a patch is: a change to one module, made right after that module ran, and only where it fits.

A patch names the module that it changes, says in one line what and why, and guards itself by what it replaces:
the attribute must be there and, where a signature is given, have exactly those parameter names. Nothing is decided
by a version number alone; versions only appear in the error of a guard that failed.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any


class PatchError(ImportError):
    """A patch doesn't fit what is installed; says which patch, what it expected and both versions."""


@dataclasses.dataclass(frozen=True)
class Patch:
    """One change to one module.

    Attributes:
        module: the full name of the module that is changed, right after it has run.
        reason: what the patch does and why, in one line.
        apply: takes the module and changes it.
        expects: attribute path in the module -> the parameter names that it must have (None: it must only exist).
        uses: full names of what the patch needs elsewhere (`package.module.attribute`).
        before: applied before the first module of Alpa runs (for names that Alpa imports), instead of after `module`.
        room: the module of this package that it is from; the registry fills it in.
    """

    module: str
    reason: str
    apply: Callable[[ModuleType], None]
    expects: dict[str, tuple[str, ...] | None] = dataclasses.field(default_factory=dict)
    uses: tuple[str, ...] = ()
    before: bool = False
    room: str = ""

    def check(self, module: ModuleType) -> None:
        """Raises PatchError if what the patch replaces or uses isn't there, or has another signature."""
        for name in self.uses:
            try:
                pkgutil.resolve_name(name)
            except (AttributeError, ImportError):
                raise PatchError(self._misfit(f"{name} doesn't exist")) from None
        for path, parameters in self.expects.items():
            try:
                found = _lookup(module, path)
            except AttributeError:
                raise PatchError(self._misfit(f"{self.module}.{path} doesn't exist")) from None
            if parameters is not None:
                names = tuple(inspect.signature(found).parameters)
                if names != parameters:
                    raise PatchError(self._misfit(f"{self.module}.{path} takes {names}, expected {parameters}"))

    def _misfit(self, what: str) -> str:
        return (
            f"the patch '{self.reason}' of {self.room or 'alpa_stock_jax'} doesn't fit: {what} "
            f"(alpa {_version('alpa')}, jax {_version('jax')}, jaxlib {_version('jaxlib')}); "
            "install the versions that README.md names, or report it"
        )


def _lookup(module: ModuleType, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
