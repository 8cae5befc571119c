"""How long prompts and outputs are: two numbers, or a distribution from a file."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import final

from alpa_dejavu._util.json_file import csv_lines

_HIGH = 0.95
"""The share of requests for which there has to be memory, and whose time to the first token is told."""
_MOST_TOKENS = 1_000_000
_COLUMNS = ("prompt", "output", "weight")
_REMEDY = "a file of lengths is CSV with the columns prompt, output and, if they differ, weight"


@final
@dataclasses.dataclass(frozen=True)
class Lengths:
    """The lengths of requests, in tokens, with the weight of each.

    Raises ValueError for no request, a length that isn't a whole number of at least 1, or a weight that isn't above 0.
    """

    requests: tuple[tuple[int, int, float], ...]  # of each kind: tokens of prompt and output, and its weight

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError(f"requests is empty, but must have at least one; {_REMEDY}")
        for prompt, output, weight in self.requests:
            for name, value in (("prompt", prompt), ("output", output)):
                if not 1 <= value <= _MOST_TOKENS:
                    raise ValueError(
                        f"{name} is {value} tokens, but must be from 1 to {_MOST_TOKENS}; give the length of a request"
                    )
            if not (math.isfinite(weight) and weight > 0):
                raise ValueError(f"weight is {weight!r}, but must be a finite number above 0; leave rare requests out")

    @classmethod
    def fixed(cls, prompt: int, output: int) -> Lengths:
        """Returns the lengths of requests that are all alike."""
        return cls(((prompt, output, 1.0),))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Lengths:
        """Returns the lengths in a CSV file with the columns prompt, output and optionally weight (1 where there is
        none), a kind of requests a line. Raises ValueError if it can't be read, or a line is wrong; says which.
        """
        path = pathlib.Path(path)
        lines = csv_lines(path, _REMEDY)
        line, columns = next(lines, (1, []))
        if not set(_COLUMNS[:2]) <= set(columns) <= set(_COLUMNS) or len(set(columns)) < len(columns):
            raise ValueError(f"{path}: the columns are {', '.join(columns) or 'none'}; {_REMEDY}")
        requests = []
        for line, cells in lines:
            try:
                requests += [_request(columns, cells)] if cells else []
            except ValueError as error:
                raise ValueError(f"{path}, line {line}: {error}") from None
        if not requests:
            raise ValueError(f"{path}, line {line}: requests is empty, but must have at least one; {_REMEDY}")
        return cls(tuple(requests))

    @property
    def prompt(self) -> int:
        """Returns the mean tokens of a prompt, rounded."""
        return round(self._mean(lambda prompt, output: prompt))

    @property
    def output(self) -> int:
        """Returns the mean tokens of an output, rounded."""
        return round(self._mean(lambda prompt, output: output))

    @property
    def context(self) -> float:
        """Returns the mean tokens before an output token: n + m/2 for a request of n tokens and m of output."""
        mean_output = self._mean(lambda prompt, output: output)
        return self._mean(lambda prompt, output: output * (prompt + output / 2)) / mean_output

    @property
    def high_prompt(self) -> int:
        """Returns the tokens that 95 % of the prompts don't exceed."""
        return self._high(lambda prompt, output: prompt)

    @property
    def high_total(self) -> int:
        """Returns the tokens that the prompts and outputs of 95 % of the requests don't exceed together."""
        return self._high(lambda prompt, output: prompt + output)

    def _mean(self, value: Callable[[int, int], float]) -> float:
        total = math.fsum(weight for *_, weight in self.requests)
        return math.fsum(weight * value(prompt, output) for prompt, output, weight in self.requests) / total

    def _high(self, value: Callable[[int, int], int]) -> int:
        """Returns the least value that so many of the requests don't exceed."""
        counted = sorted((value(prompt, output), weight) for prompt, output, weight in self.requests)
        most, below = _HIGH * math.fsum(weight for _, weight in counted) * (1 - 1e-12), 0.0
        for tokens, weight in counted:
            below += weight
            if below >= most:
                return tokens
        return counted[-1][0]


def _request(columns: Sequence[str], cells: Sequence[str]) -> tuple[int, int, float]:
    """Returns a request of a line's cells; a line may have too few, or some without a column."""
    if len(cells) != len(columns):
        raise ValueError(f"a line has too few or too many cells; {_REMEDY}")
    texts = {name: text.strip() for name, text in zip(columns, cells, strict=True)}
    for name in _COLUMNS[:2]:
        text = texts[name]
        if not (text.isascii() and text.isdigit()) or len(text) > len(str(_MOST_TOKENS)):
            raise ValueError(f"{name} is {text!r}, but must be a whole number from 1 to {_MOST_TOKENS}; {_REMEDY}")
    try:
        weight = float(texts.get("weight", "1"))
    except ValueError:
        raise ValueError(f"weight is {texts['weight']!r}, but must be a number above 0; {_REMEDY}") from None
    return Lengths(((int(texts["prompt"]), int(texts["output"]), weight),)).requests[0]
