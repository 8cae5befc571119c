"""Public names of jax 0.3.22 that programs for Alpa import from jax, maybe before Alpa: found when asked for."""

from __future__ import annotations

from types import ModuleType

# module -> name -> what it stands for
_OLD_NAMES = {
    "jax": {"xla": "jax.interpreters.xla"},
    "jax.experimental.pjit": {"PartitionSpec": "jax.sharding.PartitionSpec"},
}


def offer(module: ModuleType) -> None:
    """Lets a module of jax answer to its old names; every other name is looked for as before."""
    names = _OLD_NAMES[module.__name__]
    stock = getattr(module, "__getattr__", None)

    def __getattr__(name: str) -> object:
        if name in names:
            import pkgutil

            return pkgutil.resolve_name(names[name])
        if stock is not None:
            return stock(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    module.__getattr__ = __getattr__  # type: ignore[method-assign]
