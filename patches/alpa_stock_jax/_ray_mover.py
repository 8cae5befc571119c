"""Moves a checkpoint from a local cache to where it belongs, in the background of a worker."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

__all__ = ["Mover"]


class Mover:
    """One thread that moves folders in the order in which they come."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-mover")
        self._moves: list[Future[None]] = []

    def move(self, source: str, target: str) -> None:
        """Starts to move all files of a folder into another."""
        self._moves.append(self._thread.submit(_move, Path(source), Path(target)))

    def wait(self) -> None:
        """Waits for all moves; raises what the first failed one raised."""
        moves, self._moves = self._moves, []
        for move in moves:
            move.result()


def _move(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        shutil.move(file, target / file.name)
