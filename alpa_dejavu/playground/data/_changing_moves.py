"""Policies of moving samples that change while a run goes: by a schedule, or by evolution."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground._data_move import DataMove, Epoch, Handed
from alpa_dejavu.playground.data._moves import REST, check_share, first, handed, with_digest
from alpa_dejavu.problem import checks

__all__ = ["Evolved", "Scheduled"]

Floats = NDArray[np.float64]
_FLOAT_BYTES = 4
_WIDER = 1.5


@final
@dataclasses.dataclass(frozen=True)
class Scheduled(DataMove):
    """Another policy whose share goes in a line from a first to a last one, which it then keeps.

    Attributes:
        move: the policy, which has a share.
        first, last: the shares.
        epochs: after so many epochs it is the last one.
    """

    move: DataMove
    first: float = 0.2
    last: float = 0.02
    epochs: int = 10

    def __post_init__(self) -> None:
        if "share" not in {field.name for field in dataclasses.fields(self.move)}:  # type: ignore[arg-type]
            raise ValueError(f"scheduled: move is {self.move!r}, but must have a share; choose another policy")
        check_share("scheduled", self.first, "first")
        check_share("scheduled", self.last, "last")
        checks.count("scheduled", "epochs", self.epochs)

    def choose(self, epoch: Epoch) -> Handed:
        """Returns those that the policy chooses at this epoch's share."""
        done = min((epoch.number - 1) / self.epochs, 1.0)
        policy: Any = self.move
        now: DataMove = dataclasses.replace(policy, share=self.first + done * (self.last - self.first))
        return now.choose(epoch)


@final
@dataclasses.dataclass(frozen=True)
class Evolved(DataMove):
    """Samples are drawn by weights of their loss and of their gradients' conflict, and evolution changes the weights.

    A sample's score is the weighted sum of its loss and its conflict with the partner (as in by-conflict), each with
    mean 0 and deviation 1 among the worker's samples, and a random number by Gumbel; the highest scores are handed on.
    So at weights of 0, with which it begins, samples are random.

    The worker with the least number judges: it alone has the held-out samples, whose loss it computes once in a period,
    and sends weights to the others. A (1 + 1) evolution strategy has the parent's weights in one period and a child's
    in the next. A child replaces the parent if the logarithm of the loss falls at least as much in its period as in the
    mean of the parent's periods before and after it; then mutations become 1.5 times as wide, else 1.5^(1/4) times as
    narrow. What it judges by is no longer held out, strictly: it is told by few numbers, but it is.

    Attributes:
        share: how many samples are handed on, of an epoch's on the mean of all workers.
        period: epochs of a period.
        width: the standard deviation of the first mutations.
        dimensions: numbers of four bytes that a partner sends in an epoch.
        rest: epochs for which a sample that came stays before others.

    References:
        Rechenberg, Evolutionsstrategie, Frommann-Holzboog 1973.
        Kern and others, Learning Probability Distributions in Continuous Evolutionary Algorithms, Natural Computing
            3(1), 2004 (widths).
    """

    share: float = 0.1
    period: int = 1
    width: float = 1.0
    dimensions: int = 64
    rest: int = REST

    def __post_init__(self) -> None:
        check_share("evolved", self.share)
        checks.count("evolved", "period", self.period)
        checks.positive("evolved", "width", self.width)
        checks.count("evolved", "dimensions", self.dimensions)
        checks.not_negative("evolved", "rest", self.rest)

    def choose(self, epoch: Epoch) -> Handed:
        """Returns samples by the weights of this period; the judging worker has them evolve."""
        if epoch.worker < min(epoch.others, default=epoch.worker) and (epoch.number - 1) % self.period == 0:
            self._evolve(epoch)
        weights = epoch.memory.get("weights", np.zeros(2))
        scores = weights @ [_standard(epoch.losses()), -_standard(with_digest(epoch, self.dimensions))]
        scores = scores + epoch.generator(1).gumbel(size=len(scores))
        places = first(epoch, -scores, self.share, self.rest)
        return handed(epoch, places, np.repeat(epoch.partners(1), len(places)))

    def _evolve(self, epoch: Epoch) -> None:
        now = float(np.log(max(epoch.held_out_loss(), 1e-30)))
        before: Evolution | None = epoch.memory.get("evolution")
        drawn = epoch.generator(2).standard_normal(2)
        evolution = Evolution(np.zeros(2), self.width, now, np.zeros(2)) if before is None else before.after(now, drawn)
        epoch.memory |= {"evolution": evolution, "weights": evolution.shown}
        for other in epoch.others:
            epoch.tell(other, "weights", evolution.shown, _FLOAT_BYTES * len(evolution.shown))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Evolution:
    """A (1 + 1) evolution strategy on gains that change with time, between two periods.

    Attributes:
        parent: the parent's weights.
        width: the standard deviation of mutations.
        level: the logarithm of the loss when the present period began.
        shown: the weights of the present period.
        child: the child's weights; None: there is none.
        before: how far the level fell in the parent's period before the child's.
        found: how far it fell in the child's period; None: that isn't over.
    """

    parent: Floats
    width: float
    level: float
    shown: Floats
    child: Floats | None = None
    before: float = 0.0
    found: float | None = None

    def after(self, level: float, drawn: Floats) -> Evolution:
        """Returns it for the period after one that ended at a level, given a mutation of unit width."""
        fell = self.level - level
        if self.child is not None and self.found is None:
            return dataclasses.replace(self, level=level, shown=self.parent, found=fell)
        width = self.width
        if self.child is not None and self.found is not None:
            if self.found >= (self.before + fell) / 2:
                return Evolution(self.child, width * _WIDER, level, self.child)
            width /= _WIDER**0.25
        child = self.parent + width * drawn
        return Evolution(self.parent, width, level, child, child, fell)


def _standard(values: Floats) -> Floats:
    """Values with mean 0 and deviation 1, or 0 where all are the same."""
    around = values - values.mean()
    deviation = around.std()
    return around / deviation if deviation > 0 else around
