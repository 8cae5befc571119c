"""Overlap: what a device communicates on a second stream while it computes, and how much both then slow down."""

from __future__ import annotations

import dataclasses
import re
from typing import Final, final

from alpa_dejavu.problem import checks

__all__ = ["NO_OVERLAP", "OVERLAPS", "OVERLAP_TEXT", "PUBLISHED", "SLOWDOWNS", "Overlap", "named_overlap"]

OVERLAPS: Final = ("none", "gradients", "tensor", "streams")
"""The names of what may overlap, the default first."""
SLOWDOWNS: Final = (1.0, 4.0)
"""The least and the greatest factor by which a stream may be slower while the other one is busy."""
_PUBLISHED, _IN_PIECES = 1.3, 0.65
"""The slowdown of both streams: nobody measured it on the devices at hand, and this is the larger of the factors from
1.1 to 1.3 that Galvatron reports. The share of a tensor-parallel collective that hides where products are cut in pieces
is an estimate: with four pieces all but the first or last may, at the slowdown."""
OVERLAP_TEXT: Final = re.compile(rf"({'|'.join(OVERLAPS)})(?::([0-9.]+):([0-9.]+))?")


@final
@dataclasses.dataclass(frozen=True)
class Overlap:
    """A choice of what a device does at once: one thing, or computing on one stream and communicating on another.

    Attributes:
        kind: "none": a device computes or communicates; "gradients": it sums gradients and gathers parameters while it
            computes, and waits for collectives of activations; "tensor": of those of tensor parallelism a share hides,
            too, since products are cut in pieces; "streams": it does both wherever neither waits for the other.
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
        checks.one_of("overlap", "kind", self.kind, OVERLAPS)
        least, most = SLOWDOWNS
        for name in ("compute_slowdown", "transfer_slowdown"):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(
                    f"{name} is {value!r}, but must be from {least:g} to {most:g}; give the seconds of a stream beside "
                    "a busy one over its seconds alone"
                )

    @property
    def hides(self) -> bool:
        """Returns whether a device communicates anything while it computes."""
        return self.kind != "none"

    @property
    def streams(self) -> bool:
        """Returns whether a device communicates while it computes wherever neither waits for the other."""
        return self.kind == "streams"

    @property
    def hidden_tensor_share(self) -> float:
        """Returns the share of tensor-parallel collectives that hides behind the products beside them."""
        return _IN_PIECES if self.kind == "tensor" else 0.0

    @property
    def text(self) -> str:
        """Returns the overlap as the text that `named_overlap` takes."""
        usual = named_overlap(self.kind)
        return self.kind if self == usual else f"{self.kind}:{self.compute_slowdown!r}:{self.transfer_slowdown!r}"


NO_OVERLAP: Final = Overlap()
"""The default: Alpa runs on stock XLA, where a device either computes or communicates."""
PUBLISHED: Final = Overlap("streams", _PUBLISHED, _PUBLISHED)
"""The streams that a name stands for."""


def named_overlap(choice: str | Overlap) -> Overlap:
    """Returns the overlap of a name, such as "streams", with the published slowdown, or of a text that has other ones;
    or the given one.

    Raises:
        ValueError: there is no overlap of that name.

    >>> named_overlap("streams").compute_slowdown, named_overlap("gradients:1.1:1.25").transfer_slowdown
    (1.3, 1.25)
    """
    if isinstance(choice, Overlap):
        return choice
    parts = OVERLAP_TEXT.fullmatch(choice)
    if parts is None:
        names = ", ".join(map(repr, OVERLAPS))
        raise ValueError(f"overlap is {choice!r}, but must be one of {names}; or give an Overlap of your own")
    kind, *slower = parts.groups()
    if kind == NO_OVERLAP.kind:
        return NO_OVERLAP
    return Overlap(kind, *(_PUBLISHED if factor is None else float(factor) for factor in slower))
