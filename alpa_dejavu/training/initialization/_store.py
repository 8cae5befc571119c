"""The candidates' states where they are not being trained: in memory, or as checkpoints in a folder."""

from __future__ import annotations

import io
import lzma
import pathlib
import zipfile
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu._util.json_file import write_whole_bytes
from alpa_dejavu.training.initialization._layout import StateLayout

if TYPE_CHECKING:
    from jaxtyping import Shaped

    from alpa_dejavu.training.initialization._layout import Leaves

_BROKEN = (OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""The errors that reading a broken file raises: RuntimeError where it is encrypted."""


def write_leaves(path: pathlib.Path, leaves: Leaves) -> None:
    """Writes the arrays of a training state to an NPZ file atomically; raises ValueError if it can't be written."""
    content = io.BytesIO()
    np.savez(content, **{f"leaf_{n}": _plain(leaf) for n, leaf in enumerate(leaves)})
    write_whole_bytes(path, content.getvalue())


def read_leaves(path: pathlib.Path, layout: StateLayout) -> Leaves:
    """Reads the arrays of a training state from an NPZ file; one is unpacked only after its header is seen to fit the
    layout. Raises ValueError where the file isn't there, or holds no state of that layout.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no regular file")
        with zipfile.ZipFile(path) as file:
            different = _difference(file, layout)
            leaves = []
            for name in () if different else _names(layout):
                with file.open(name) as content:
                    leaves.append(np.lib.format.read_array(content, allow_pickle=False))
    except _BROKEN as error:
        raise ValueError(f"{path} can't be read as a state: {error}; give the NPZ file that was written beside the "
                         "result") from None  # fmt: skip
    if different:
        raise ValueError(f"{path} holds {different}; give the model that the file was written for")
    return tuple(
        leaf if leaf.dtype == tensor.dtype else leaf.view(tensor.dtype)
        for leaf, tensor in zip(leaves, layout.leaves, strict=True)
    )


def _names(layout: StateLayout) -> list[str]:
    return [f"leaf_{n}.npy" for n in range(len(layout.leaves))]


def _difference(file: zipfile.ZipFile, layout: StateLayout) -> str | None:
    """Returns in what a file's arrays, by their names and headers, aren't the layout's; None if in nothing."""
    names, stored_names = _names(layout), file.namelist()
    if sorted(stored_names) != sorted(names):
        return f"{len(stored_names)} arrays, but the state has {len(names)}"
    for name, tensor in zip(names, layout.leaves, strict=True):
        with file.open(name) as content:
            version = np.lib.format.read_magic(content)
            if version != (1, 0):
                # Others, which numpy writes for other arrays than these, allow headers of gigabytes.
                raise ValueError(f"{name} is in version {version} of numpy's format, but must be in (1, 0)")
            shape, _, dtype = np.lib.format.read_array_header_1_0(content)
        plain = _plain(np.empty(0, tensor.dtype)).dtype
        if shape != tensor.shape or dtype != plain:
            return f"{dtype}{list(shape)} for {tensor.name}, which is {tensor.dtype}{list(tensor.shape)}"
    return None


def _plain(leaf: Shaped[np.ndarray, " ..."]) -> Shaped[np.ndarray, " ..."]:
    """Returns an array; numbers that numpy hasn't, as bfloat16, by their bits, since a file of numpy forgets them."""
    leaf = np.asarray(leaf)
    return leaf.view(f"u{leaf.dtype.itemsize}") if leaf.dtype.kind == "V" else leaf


@final
class StateStore:
    """A store of the last training state of each candidate: in memory or, if a folder is given, in an NPZ file each."""

    def __init__(self, layout: StateLayout, folder: pathlib.Path | None) -> None:
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"checkpoints can't be kept in {folder}: {error.strerror}; give a folder") from None
        self._layout, self._folder = layout, folder
        self._kept: dict[int, Leaves | None] = {}

    def put(self, number: int, leaves: Leaves) -> None:
        """Stores a candidate's training state in place of its last one."""
        if self._folder is None:
            self._kept[number] = leaves
        else:
            write_leaves(self._path(self._folder, number), leaves)
            self._kept[number] = None

    def get(self, number: int) -> Leaves:
        """Returns the arrays of a candidate's last training state."""
        kept = self._kept[number]
        if kept is not None:
            return kept
        assert self._folder is not None, "only a folder's states aren't in memory"
        return read_leaves(self._path(self._folder, number), self._layout)

    def side_by_side(self, numbers: Sequence[int]) -> Leaves:
        """Returns the training states of N candidates stacked: each array of shape (N, ...)."""
        return tuple(np.stack(leaf) for leaf in zip(*(self.get(number) for number in numbers), strict=True))

    def drop(self, number: int) -> None:
        """Removes a candidate's training state from the store."""
        if number in self._kept:
            del self._kept[number]
            if self._folder is not None:
                self._path(self._folder, number).unlink(missing_ok=True)

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    @staticmethod
    def _path(folder: pathlib.Path, number: int) -> pathlib.Path:
        return folder / f"candidate_{number:05d}.npz"
