"""The candidates' states where they are not being trained: in memory, or as checkpoints in a folder."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu.training.initialization._layout import Layout, Leaves
from alpa_dejavu.training.initialization._npz import read_leaves, write_leaves


@final
class Store:
    """A store of the last training state of each candidate: in memory or, if a folder is given, in an NPZ file each."""

    def __init__(self, layout: Layout, folder: pathlib.Path | None) -> None:
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
