"""A host without accelerators."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.problem import checks


@final
@dataclasses.dataclass(frozen=True)
class ReductionServer:
    """A host without accelerators that adds up gradients for the hosts that have some.

    Attributes:
        name: for people, and in plans' notes.
        bytes_per_s: the rate at which it receives, and at the same time sends, to all hosts together.
    """

    name: str
    bytes_per_s: float

    def __post_init__(self) -> None:
        checks.positive(f"reduction server {self.name}", "bytes_per_s", self.bytes_per_s)
