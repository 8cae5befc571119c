"""The parts of a device that cluster files and calibrations declare alike."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.format_fields import GivenNotNegative, GivenPositive, said


class SmallProductsData(TypedDict):
    """An entry of a file that says how fast a device computes small matrix products, as `SmallProducts` has it."""

    below_flop: GivenPositive
    share: GivenPositive
    library_s: NotRequired[GivenNotNegative]


class StridedData(TypedDict):
    """An entry of a file that says how fast a device reads memory against its elements' order, as `StridedReads` has
    it.
    """

    bytes_per_s: GivenPositive
    cached_bytes_per_s: GivenPositive
    cached_bytes: GivenPositive
    near_bytes_per_s: NotRequired[GivenPositive]


SmallProducts: TypeAlias = Annotated[SmallProductsData, said("an object with below_flop and share")]
Strided: TypeAlias = Annotated[StridedData, said("an object with bytes_per_s, cached_bytes_per_s and cached_bytes")]
