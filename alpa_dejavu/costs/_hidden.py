"""The seconds of collectives that hide behind computing, where a device communicates on a second stream."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray, stage_sum
from alpa_dejavu.costs._streams import behind_layers_s
from alpa_dejavu.costs.overlap import Overlap

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    OfStages: TypeAlias = Int[NDArray[np.intp], "L L L"]
    """Which variant each layer has in each stage of layers i..j, as divisions have it."""

FETCHED = ("all_gather",)
"""Collectives of a pass that bring a layer's parameters (ZeRO-3): they run behind the layer that comes before it."""
SENT = SUMMED = ("all_reduce", "reduce_scatter")
"""Collectives of a backward pass that add up a layer's gradients (ZeRO-3), which run behind the layers before it; and
those of a step."""
_SAME = 1e-12
_MANY = 32
"""Among more layers stages of alike ones are looked at once."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
    """The seconds of K collectives that stages of layers i..j of L do for all their layers together, in a bucket for
    each layer, which takes as long as what its layer sends would take alone, or longer where the whole takes longer
    than its parts.

    Attributes:
        total_s: the seconds of all of them.
        alone_s: those of each of V layer variants alone.
        longer: how many times as long a bucket takes in a stage.
    """

    total_s: Float[FloatArray, "L L"]
    alone_s: Float[FloatArray, "K V"]
    longer: Float[FloatArray, "K L L"]

    @classmethod
    def of(
        cls, sent: Sequence[tuple[Float[FloatArray, "L L"], Float[FloatArray, " V"]]], shape: tuple[int, int],
        of_stages: OfStages | None,
    ) -> Buckets:  # fmt: skip
        """Returns the buckets of collectives, given for each the seconds of all layers of a stage together, and of each
        of V layer variants alone; `shape` is (L, V).
        """
        num_layers, num_variants = shape
        whole = np.array([seconds for seconds, _ in sent]).reshape(-1, num_layers, num_layers)
        alone = np.array([seconds for _, seconds in sent]).reshape(-1, num_variants)
        parts = stage_sum(alone, of_stages)
        longer = np.divide(whole, parts, out=np.ones_like(whole), where=parts > 0)
        return cls(whole.sum(axis=0), alone, np.maximum(longer, 1.0))

    def __add__(self, other: Buckets) -> Buckets:
        """Returns the buckets of both."""
        joined = (np.concatenate(pair) for pair in ((self.alone_s, other.alone_s), (self.longer, other.longer)))
        return Buckets(self.total_s + other.total_s, *joined)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StagePass:
    """A pass of one micro-batch over the layers of stages.

    Attributes:
        hidden_s: the seconds that hide of each of V layer variants' own collectives.
        free_s: the seconds that each of D kinds of devices computes without anything beside it.
        fetched, sent: the collectives of all layers together.
    """

    hidden_s: Float[FloatArray, " V"]
    free_s: Float[FloatArray, "D V"]
    fetched: Buckets
    sent: Buckets


def hidden_seconds(
    forward: StagePass,
    backward: StagePass | None,
    summed: Buckets,
    updated: Buckets | None,
    of_stages: OfStages | None,
    overlap: Overlap,
) -> Float[FloatArray, "3 L L"]:
    """Returns the hidden seconds of stages of layers i..j: of a micro-batch's forward and backward pass, and of a
    step's synchronisation.

    What a stage sends for all its layers hides behind other layers, in buckets of a layer each. Optimizer updates hide
    nothing.

    Args:
        forward: the forward pass.
        backward: the backward pass; None: the model isn't trained.
        summed: the gradients' sums, which are sent once a step, beside the last micro-batch's backward pass.
        updated: the updated parameters, which are gathered beside the first micro-batch's forward pass; None: they
            aren't.
        of_stages: which variant a layer has in a stage.
        overlap: what a device does at the same time.
    """

    def behind(computed: StagePass, fetched: Buckets, sent: Buckets) -> Float[FloatArray, "L L"]:
        """The seconds by which a pass takes longer than its computing, on the device on which that is most."""
        rows = (_behind(row, fetched, sent, of_stages, overlap, computed is backward) for row in computed.free_s)
        return functools.reduce(np.maximum, rows)

    def hidden(total_s: Float[FloatArray, "L L"], exposed_s: Float[FloatArray, "L L"]) -> Float[FloatArray, "L L"]:
        return np.clip(total_s - exposed_s, 0.0, total_s)

    hidden_s = np.zeros((3, *forward.fetched.total_s.shape))
    nothing = Buckets.of([], (len(hidden_s[0]), len(forward.hidden_s)), of_stages)
    hidden_s[0] = stage_sum(forward.hidden_s, of_stages)
    hidden_s[0] += hidden(forward.fetched.total_s, behind(forward, forward.fetched, nothing))
    if backward is None:
        return hidden_s
    exposed_s = behind(backward, backward.fetched, backward.sent)
    hidden_s[1] = stage_sum(backward.hidden_s, of_stages)
    hidden_s[1] += hidden(backward.fetched.total_s + backward.sent.total_s, exposed_s)
    # In the last micro-batch gradients are sent as well, on the same stream.
    hidden_s[2] = hidden(summed.total_s, behind(backward, backward.fetched, backward.sent + summed) - exposed_s)
    if updated is not None:
        hidden_s[2] += hidden(updated.total_s, behind(forward, updated, nothing))
    return hidden_s


def _behind(
    computed_s: Float[FloatArray, " V"],
    fetched: Buckets,
    sent: Buckets,
    of_stages: OfStages | None,
    overlap: Overlap,
    backward: bool,
) -> Float[FloatArray, "L L"]:
    """Returns the seconds by which a pass over layers takes longer than its computing."""
    size, inside = len(fetched.total_s), np.zeros_like(fetched.total_s)
    if not len(fetched.alone_s) and not len(sent.alone_s):
        return inside
    firsts, lasts = _ranges(size)
    longer = np.concatenate([fetched.longer, sent.longer])[:, firsts, lasts]
    chosen, alike = np.arange(len(firsts)), np.arange(len(firsts))
    if of_stages is None and size > _MANY:
        rows = np.concatenate([computed_s[None], fetched.alone_s, sent.alone_s])
        kinds = np.unique(rows, axis=1, return_inverse=True)[1]
        some, of_ranges = _alike_ranges(tuple(kinds.ravel().tolist()))
        if np.allclose(longer, longer[:, some[of_ranges]], rtol=_SAME, atol=0.0):
            chosen, alike = some, of_ranges
    variants = np.arange(size)[None] if of_stages is None else of_stages[firsts[chosen], lasts[chosen]]
    seconds = behind_layers_s(
        np.stack([firsts[chosen], lasts[chosen]], axis=1),
        np.broadcast_to(variants, (len(chosen), size)),
        computed_s,
        (fetched.alone_s, longer[: len(fetched.alone_s), chosen]),
        (sent.alone_s, longer[len(fetched.alone_s) :, chosen]),
        overlap,
        backward,
    )
    inside[firsts, lasts] = seconds[alike]
    return inside


@functools.cache
def _ranges(size: int) -> tuple[Int[NDArray[np.intp], " ranges"], Int[NDArray[np.intp], " ranges"]]:
    return np.triu_indices(size)


@functools.lru_cache(maxsize=256)
def _alike_ranges(kinds: tuple[int, ...]) -> tuple[Int[NDArray[np.intp], " ranges"], Int[NDArray[np.intp], " ranges"]]:
    """Returns which of the ranges of layers, in the order of `np.triu_indices`, are the first with layers of these
    kinds, one after the other; and for each range its place among those.
    """
    numbers: dict[tuple[int, int], int] = {}
    some: list[int] = []
    of_ranges: list[int] = []
    for first in range(len(kinds)):
        number = -1
        for kind in kinds[first:]:
            key = number, kind
            number = numbers.setdefault(key, len(some))
            if number == len(some):
                some.append(len(of_ranges))
            of_ranges.append(number)
    return np.array(some), np.array(of_ranges)
