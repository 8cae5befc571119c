"""Real data that packages ship, cut into training and test in the same way each time."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sysconfig
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SOURCES = ("argparse.py", "ast.py", "difflib.py", "doctest.py", "inspect.py", "pydoc.py", "tarfile.py", "typing.py")
"""Of Python's standard library."""
TEST_PART = 0.2
CHARACTERS = 97
"""Printable ASCII, the end of a line, and all others as one."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Rows to learn from and rows to be tested on: inputs, shape (N, ...), and what is to be told of them.

    Attributes:
        inputs, labels: to learn from.
        test_inputs, test_labels: others.
        mark: a hash of all.
    """

    inputs: NDArray[Any]
    labels: NDArray[Any]
    test_inputs: NDArray[Any]
    test_labels: NDArray[Any]

    @functools.cached_property
    def mark(self) -> str:
        parts = self.inputs, self.labels, self.test_inputs, self.test_labels
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:12]


@functools.cache
def digits() -> Data:
    """scikit-learn's handwritten digits, shape (N, 8, 8, 1), from 0 to 1, and which they are."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    train, test, train_labels, test_labels = train_test_split(
        images, labels.astype(np.int32), test_size=TEST_PART, random_state=0, stratify=labels
    )
    return Data(train, train_labels, test, test_labels)


@functools.cache
def source_text(length: int) -> Data:
    """Runs of characters of Python's own sources, shape (N, length), and the character after each of them.

    The last fifth of each file is for the test.
    """
    parts: tuple[list[NDArray[Any]], list[NDArray[Any]]] = ([], [])
    for name in SOURCES:
        codes = _codes((Path(sysconfig.get_paths()["stdlib"]) / name).read_bytes())
        cut = int(len(codes) * (1 - TEST_PART))
        for part, piece in zip(parts, (codes[:cut], codes[cut:]), strict=True):
            count = (len(piece) - 1) // length
            part.append(np.stack([piece[: count * length], piece[1 : count * length + 1]]).reshape(2, count, length))
    train, test = (np.concatenate(part, axis=1) for part in parts)
    return Data(train[0], train[1], test[0], test[1])


def _codes(text: bytes) -> NDArray[np.int32]:
    read = np.frombuffer(text, np.uint8).astype(np.int32)
    printable = (read >= 32) & (read < 127)
    return np.where(printable, read - 30, np.where(read == ord("\n"), 1, 0)).astype(np.int32)


def batch(data: Data, rows: int, seed: int, step: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """So many rows at random: the first ones of a larger batch of the same seed and step are those of a smaller one."""
    chosen = np.random.default_rng([seed, step]).integers(len(data.inputs), size=rows)
    return data.inputs[chosen], data.labels[chosen]
