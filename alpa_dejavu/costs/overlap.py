"""Overlap: whether a device communicates on a second stream while it computes, and how much both then slow down."""

from __future__ import annotations

import dataclasses
from typing import Final, final

__all__ = ["NO_OVERLAP", "OVERLAPS", "PUBLISHED", "SLOWDOWNS", "Overlap", "named_overlap"]

OVERLAPS: Final = ("none", "streams")
"""The names of what may overlap, the default first."""
SLOWDOWNS: Final = (1.0, 4.0)
"""The least and the greatest factor by which a stream may be slower while the other one is busy."""


@final
@dataclasses.dataclass(frozen=True)
class Overlap:
    """A choice of what a device does at once: one thing, or computing on one stream and communicating on another.

    Attributes:
        kind: "none": a device computes or communicates; "streams": it does both wherever neither waits for the other.
        compute_slowdown: factor by which computing takes longer while the device communicates.
        transfer_slowdown: factor by which communicating takes longer while the device computes.

    Raises ValueError for an unknown kind, or a factor outside of `SLOWDOWNS`.

    References:
        Miao et al., Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism, PVLDB
        16(3), 2022: there, too, both streams are slower while they overlap.
    """

    kind: str = "none"
    compute_slowdown: float = 1.0
    transfer_slowdown: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in OVERLAPS:
            known = " or ".join(map(repr, OVERLAPS))
            raise ValueError(f"overlap is {self.kind!r}, but must be {known}; or give an Overlap of your own")
        least, most = SLOWDOWNS
        for name in ("compute_slowdown", "transfer_slowdown"):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(
                    f"{name} is {value!r}, but must be from {least:g} to {most:g}; give the seconds of a stream beside "
                    "a busy one over its seconds alone"
                )

    @property
    def streams(self) -> bool:
        """Returns whether a device communicates while it computes."""
        return self.kind == "streams"


NO_OVERLAP: Final = Overlap()
"""The default: Alpa runs on stock XLA, where a device either computes or communicates."""


PUBLISHED: Final = Overlap("streams", 1.3, 1.3)
"""The streams that a name stands for: nobody measured how much they slow each other down on the devices at hand, and
1.3 is the larger of the factors from 1.1 to 1.3 that Galvatron reports."""


def named_overlap(choice: str | Overlap) -> Overlap:
    """Returns the overlap of a name, "none" or "streams" with the published slowdown; or the given one.

    Raises:
        ValueError: there is no overlap of that name.

    >>> named_overlap("streams").compute_slowdown
    1.3
    """
    if isinstance(choice, Overlap):
        return choice
    return PUBLISHED if choice == PUBLISHED.kind else Overlap(choice)
