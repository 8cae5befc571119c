"""Keeps what planning has learned of models from one process to the next, in a folder of the user's.

An entry is compressed JSON in a file of its own, found by a digest of its key, which it holds too. What can't be read
is as if it weren't there, and what can't be written is left: planning goes on without. The least recently used entries
go first where the folder gets too large.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import pathlib
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar, final

from alpa_dejavu._util.cache_folder import DEFAULT_MIB, cache_folder, most_mib
from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.extras import installed_version
from alpa_dejavu._util.json_file import write_whole_bytes
from alpa_dejavu.planning.search.models.packed import packed_json, read_packed

__all__ = ["ModelCache", "chosen_cache", "code_digest", "default_cache"]

_VERSION = 1
_ENDING = ".json.gz"
_LOGGER = logging.getLogger(__name__)

Key = Mapping[str, Any]
T = TypeVar("T")


@final
class ModelCache:
    """A cache of traced models on disk: a folder with one file per entry, limited in bytes.

    Args:
        folder: the folder of the entries; it is made when the first one is written.
        most_bytes: the most that all entries together may take.
    """

    def __init__(self, folder: str | os.PathLike[str], most_bytes: float = DEFAULT_MIB * 2**20) -> None:
        self.folder = pathlib.Path(folder).absolute()
        self.most_bytes = most_bytes
        self._writable = True

    def read(self, key: Key, make: Callable[[Any], T]) -> T | None:
        """Returns what `make` makes of a key's cached data; None where the cache has none, or they are broken."""
        path = self._path(key)
        try:
            if not path.is_file():
                return None
            with collector_paused():
                entry = read_packed(path)
                if not isinstance(entry, dict) or entry.get("version") != _VERSION or entry.get("key") != dict(key):
                    raise ValueError("it is of another version or key")
                made = make(entry["data"])
        except OSError as error:
            _LOGGER.warning("the cache's entry %s can't be read (%s): planning goes on without", path, error.strerror)
            return None
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            _LOGGER.warning("the cache's entry %s is broken (%s): it will be replaced", path, error)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return made

    def write(self, key: Key, data: Any) -> None:
        """Writes a key's data to the cache; after a first failure, which is reported, nothing more is written."""
        if not self._writable:
            return
        try:
            with collector_paused():
                content = packed_json({"version": _VERSION, "key": dict(key), "data": data})
            if len(content) > self.most_bytes:
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole_bytes(self._path(key), content)
            self._leave_out(self._path(key))
        except (OSError, ValueError) as error:
            self._writable = False
            _LOGGER.warning("the cache %s can't be written (%s): planning goes on without", self.folder, error)

    def size(self) -> tuple[int, float]:
        """Returns how many entries the cache has, and how many bytes they take together."""
        sizes = [found.st_size for _, found in self._files()]
        return len(sizes), float(sum(sizes))

    def why_not_written(self) -> str | None:
        """Returns why the cache can't write to its folder; None where it can, or could make the folder."""
        there = next(folder for folder in (self.folder, *self.folder.parents) if folder.exists())
        if not there.is_dir():
            return f"{there} is no folder"
        return None if os.access(there, os.W_OK | os.X_OK) else f"{there} can't be written"

    def _path(self, key: Key) -> pathlib.Path:
        text = json.dumps(dict(key), sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{_ENDING}"

    def _files(self) -> Iterator[tuple[pathlib.Path, os.stat_result]]:
        """Yields the cache's files with their status, and those that a process that was ended has left half-written."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as listed:
            for one in listed:
                with contextlib.suppress(OSError):
                    if _ENDING in one.name and one.is_file(follow_symlinks=False):
                        yield pathlib.Path(one.path), one.stat(follow_symlinks=False)

    def _leave_out(self, newest: pathlib.Path) -> None:
        """Removes the least recently used files until the others are small enough; never the newest."""
        files = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
        total = sum(found.st_size for _, found in files)
        for path, found in files:
            if total <= self.most_bytes:
                break
            if path != newest:
                path.unlink(missing_ok=True)
                total -= found.st_size


def default_cache() -> ModelCache | None:
    """Returns the user's model cache; None where the environment says that it may hold nothing, or there is no home.

    Its folder is the environment variable ALPA_DEJAVU_CACHE, else `alpa-dejavu/models` in the user's cache directory;
    ALPA_DEJAVU_CACHE_MIB is the most that it may hold, 512 MiB by default.

    Raises:
        ValueError: ALPA_DEJAVU_CACHE_MIB is no number from 0.

    References:
        XDG Base Directory Specification, version 0.8.
    """
    folder = cache_folder("models")
    return None if folder is None else ModelCache(folder, most_mib() * 2**20)


def chosen_cache(given: str | os.PathLike[str] | Literal[False] | None) -> ModelCache | None:
    """Returns the model cache in a given folder; for None the user's default cache, for False None (no cache).

    Raises:
        ValueError: the default cache's size in the environment, ALPA_DEJAVU_CACHE_MIB, is no number from 0.
    """
    if given is False:
        return None
    return default_cache() if given is None else ModelCache(given)


_HERE = pathlib.Path(__file__).parents[3]
_MADE_BY = (
    "_util/collector.py", "_util/compiled.py", "_util/range_sums.py", "layers", "planning/search/models", "problem",
    "sharding",
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
