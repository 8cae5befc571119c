"""Real text that every machine has: the source files of the running Python's standard library, as bytes."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

__all__ = ["batches", "standard_library", "unigram_entropy"]

VOCABULARY = 256


def standard_library() -> np.ndarray:
    """The modules at the top of the standard library, one after the other; shape (bytes,), uint8."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), dtype=np.uint8)


def unigram_entropy(text: np.ndarray) -> float:
    """The entropy of single bytes in nats: the loss of the best model that looks at no context.

    Examples:
        >>> round(unigram_entropy(np.frombuffer(b"abab", dtype=np.uint8)), 6)
        0.693147
    """
    counts = np.bincount(text, minlength=VOCABULARY)
    shares = counts[counts > 0] / text.size
    return float(-(shares * np.log(shares)).sum())


def batches(text: np.ndarray, batch_size: int, length: int, seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Random pieces of the text for ever: `inputs` and, one byte on, `targets`, each int32 (batch_size, length)."""
    chance = np.random.default_rng(seed)
    while True:
        starts = chance.integers(0, text.size - length, size=batch_size)
        pieces = text[starts[:, None] + np.arange(length + 1)].astype(np.int32)
        yield {"inputs": pieces[:, :-1], "targets": pieces[:, 1:]}
