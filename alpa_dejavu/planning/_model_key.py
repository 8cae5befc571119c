"""A key that tells whether what is kept of a model still holds: the code that makes it, and how jax is set."""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import platform
import sys

from alpa_dejavu._util.versions import installed_version

__all__ = ["code_digest"]

_HERE = pathlib.Path(__file__).parents[1]
_MADE_BY = (
    "_util/collector.py", "_util/compiled.py", "_util/range_sums.py", "layers", "planning/kept",
    "planning/model_source.py", "planning/traced_model.py", "problem", "sharding",
)  # fmt: skip
"""The modules that trace, cut, describe and shard a model, or keep what came of it."""
_PACKAGES = ("jax", "jaxlib", "optax", "numpy", "highspy", "alpa-stock-jax")
_DEFAULTS = {
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_enable_custom_prng": False,
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_softmax_custom_jvp": False,
    "jax_threefry_partitionable": False,
}
"""The settings of jax that a trace hangs on."""


def code_digest() -> str:
    """Returns a digest of the code by which models are traced and sharded, of the versions of the packages that it
    uses, and of jax's settings.

    Cached models are valid under the same digest only. jax isn't imported for the digest: if it wasn't imported yet,
    only the settings in the environment count.
    """
    jax = sys.modules.get("jax")
    values = {} if jax is None else jax.config.values
    changed = [(name, str(values[name])) for name in _DEFAULTS if name in values and values[name] != _DEFAULTS[name]]
    given = sorted((name, value) for name, value in os.environ.items() if name.startswith("JAX_"))
    return hashlib.sha256(repr((_code(), given, changed)).encode()).hexdigest()


@functools.cache
def _code() -> str:
    content = hashlib.sha256(platform.python_version().encode())
    for package in _PACKAGES:
        content.update(f"{package} {installed_version(package)};".encode())
    for name in _MADE_BY:
        path = _HERE / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            content.update(f"{file.relative_to(_HERE)};".encode())
            content.update(file.read_bytes())
    return content.hexdigest()
