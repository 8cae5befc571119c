"""Keeps what planning has learned of models from one process to the next, in a folder of the user's.

An entry is compressed JSON in a file of its own, found by a digest of its key, which it holds too. What can't be read
is as if it weren't there, and what can't be written is left: planning goes on without. The least recently used entries
go first where the folder gets too large.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import json
import logging
import math
import os
import pathlib
import platform
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar, final

from alpa_dejavu._util import units
from alpa_dejavu._util.cache_folder import DEFAULT_MIB, cache_folder, most_mib
from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.extras import installed_version
from alpa_dejavu._util.file_size import VARIABLE, most_bytes
from alpa_dejavu._util.json_file import write_whole_bytes

__all__ = [
    "ModelCache", "chosen_cache", "code_digest", "default_cache", "packed_json", "read_packed", "unpacked_json",
]  # fmt: skip

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
                content = make(entry["data"])
        except OSError as error:
            _LOGGER.warning("the cache's entry %s can't be read (%s): planning goes on without", path, error.strerror)
            return None
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            _LOGGER.warning("the cache's entry %s is broken (%s): it will be replaced", path, error)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return content

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
        sizes = [status.st_size for _, status in self._files()]
        return len(sizes), float(sum(sizes))

    def why_not_written(self) -> str | None:
        """Returns why the cache can't write to its folder; None where it can, or could make the folder."""
        nearest = next(folder for folder in (self.folder, *self.folder.parents) if folder.exists())
        if not nearest.is_dir():
            return f"{nearest} is no folder"
        return None if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} can't be written"

    def _path(self, key: Key) -> pathlib.Path:
        text = json.dumps(dict(key), sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{_ENDING}"

    def _files(self) -> Iterator[tuple[pathlib.Path, os.stat_result]]:
        """Yields the cache's files with their status, and those that a process that was ended has left half-written."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as listed:
            for entry in listed:
                with contextlib.suppress(OSError):
                    if _ENDING in entry.name and entry.is_file(follow_symlinks=False):
                        yield pathlib.Path(entry.path), entry.stat(follow_symlinks=False)

    def _leave_out(self, newest: pathlib.Path) -> None:
        """Removes the least recently used files until the others are small enough; never the newest."""
        files = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
        total = sum(status.st_size for _, status in files)
        for path, status in files:
            if total <= self.most_bytes:
                break
            if path != newest:
                path.unlink(missing_ok=True)
                total -= status.st_size


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


def chosen_cache(folder: str | os.PathLike[str] | Literal[False] | None) -> ModelCache | None:
    """Returns the model cache in a given folder; for None the user's `default_cache`, for False None (no cache)."""
    if folder is False:
        return None
    return default_cache() if folder is None else ModelCache(folder)


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
    "jax_threefry_partitionable": not (installed_version("jax") or "").startswith("0.4."),
}
"""The settings of jax that a trace hangs on, with their defaults."""


def code_digest(*further: str) -> str:
    """Returns a digest of the code by which models are traced and sharded, and that in `further` folders of the
    package, with its bundled figures; of the versions of the packages that it uses; and of jax's settings, if jax
    wasn't imported yet, of those in the environment only.

    Cached models are valid under the same digest only.
    """
    jax = sys.modules.get("jax")
    values = {} if jax is None else jax.config.values
    changed = [(name, str(values[name])) for name in _DEFAULTS if name in values and values[name] != _DEFAULTS[name]]
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith("JAX_"))
    return hashlib.sha256(repr((_code(further), variables, changed)).encode()).hexdigest()


@functools.cache
def _code(further: tuple[str, ...]) -> str:
    versions = [platform.python_version(), *(f"{package} {installed_version(package)}" for package in _PACKAGES)]
    content = repr((versions, [_files_digest(name) for name in (*_MADE_BY, *further)]))
    return hashlib.sha256(content.encode()).hexdigest()


@functools.cache
def _files_digest(name: str) -> str:
    """Returns a digest of a file of the package, or of the code and the figures in one of its folders."""
    content, path = hashlib.sha256(), _HERE / name
    files = [path] if path.is_file() else [pathlib.Path(at, file) for at, _, names in os.walk(path) for file in names]
    for file in sorted(file for file in files if file.suffix in (".py", ".json")):
        content.update(f"{file.relative_to(_HERE)};".encode())
        content.update(file.read_bytes())
    return content.hexdigest()


_GZIP = zlib.MAX_WBITS | 16
_ROOM = 16
"""The memory of JSON's objects as a multiple of their text, about; it is more where there is little in each."""


def packed_json(data: Any) -> bytes:
    """Returns data as gzipped JSON bytes, always the same; raises ValueError for more than `unpacked_json` unpacks."""
    text, most = json.dumps(data, separators=(",", ":")).encode(), _most_text()
    if len(text) > most:
        took, limit = units.traffic(len(text)), units.traffic(most)
        raise ValueError(f"the data take {took} of JSON, but must take at most {limit}; {_remedy(len(text))}")
    return gzip.compress(text, compresslevel=1, mtime=0)


def unpacked_json(content: bytes) -> Any:
    """Returns the data of gzipped JSON bytes.

    Raises:
        ValueError: they aren't gzipped JSON, end too early, or unpack to more than the environment variable
            ALPA_DEJAVU_FILE_MIB allows.
    """
    unpacking, most = zlib.decompressobj(_GZIP), _most_text()
    try:
        text = unpacking.decompress(content, most + 1)
    except zlib.error as error:
        raise ValueError(f"this isn't gzip's format: {error}") from None
    if len(text) > most:
        raise ValueError(f"it unpacks to more than {units.traffic(most)} of JSON; {_remedy(2 * most)}")
    if not unpacking.eof:
        raise ValueError("it ends too early")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists in lists without an end") from None


def read_packed(path: pathlib.Path) -> Any:
    """Reads the data of a gzipped JSON file; one that is too large, or is no regular file, is refused unread.

    Raises:
        OSError: the file can't be read.
        ValueError: it is no regular file, is too large, or isn't gzipped JSON.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    size, most = path.stat().st_size, _most_text()
    if size > most:
        has, limit = units.traffic(size), units.traffic(most)
        raise ValueError(f"it has {has}, but must have at most {limit}; {_remedy(2 * size)}")
    return unpacked_json(path.read_bytes())


def _most_text() -> int:
    return int(most_bytes() / _ROOM)


def _remedy(text_bytes: int) -> str:
    mebibytes = math.ceil(text_bytes * _ROOM / 2**20)
    return f"if that is meant, set {VARIABLE} to {mebibytes} (MiB in memory)"
