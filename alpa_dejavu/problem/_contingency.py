"""The plan that is run instead once a host is lost, and what moves for it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, final

from alpa_dejavu._util import units
from alpa_dejavu._util.dataclass_format import Key, Rare, Stored
from alpa_dejavu._util.format_fields import Bytes, Index, Seconds, listed, stated
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from alpa_dejavu.problem._stage_plan import StagePlan


@final
@dataclasses.dataclass(frozen=True)
class Moves:
    """The parameters and optimizer states that hosts must receive when one plan replaces another.

    Attributes:
        layers: the numbers of the layers of which a host receives parameters or the optimizer's state, since it hasn't
            got them.
        num_bytes: the bytes that hosts receive over links, on all hosts together.
        seconds: how long that takes over the cluster's links, all hosts at a time.
        checkpoint_bytes: the further bytes that only lost hosts had, and that hosts read from a checkpoint.
        checkpoint_s: how long reading them takes; None: the checkpoint's rate isn't known.
    """

    layers: Annotated[tuple[Index, ...], Key("moved_layers"), listed("a list of layers")]
    num_bytes: Annotated[Bytes, Key("moved_bytes")]
    seconds: Annotated[Seconds, Key("moved_s")]
    checkpoint_bytes: Rare[Bytes] = 0.0
    checkpoint_s: Rare[Annotated[float | None, Stored(Seconds | None), stated("seconds of at least 0, or null")]] = None

    def __post_init__(self) -> None:
        checks.fields("moves", self, from_zero="num_bytes seconds checkpoint_bytes checkpoint_s")

    def read_at(self, bytes_per_s: float | None) -> Moves:
        """Returns the same moves with the time that reading the checkpoint takes at a rate; None: at the known one."""
        if bytes_per_s is None:
            return self
        checks.positive("moves", "checkpoint_bytes_per_s", bytes_per_s)
        return dataclasses.replace(self, checkpoint_s=self.checkpoint_bytes / bytes_per_s)

    @property
    def text(self) -> str:
        """Returns in words what moves, and how long it takes.

        >>> Moves((0,), 2.0**31, 4.0).text
        '2.00 GiB over links in 4 s'
        >>> Moves((0,), 2.0**31, 4.0, 2.0**30, 3.0).text
        '2.00 GiB over links in 4 s, and 1.00 GiB from a checkpoint in 3 s'
        >>> Moves((0,), 2.0**31, 4.0, 2.0**30).text
        '2.00 GiB over links in 4 s, and 1.00 GiB from a checkpoint, whose rate is unknown (--checkpoint-rate)'
        """
        links = f"{units.size(self.num_bytes)} over links in {units.seconds(self.seconds)}"
        if not self.checkpoint_bytes:
            return links
        took = ", whose rate is unknown (--checkpoint-rate)"
        if self.checkpoint_s is not None:
            took = f" in {units.seconds(self.checkpoint_s)}"
        return f"{links}, and {units.size(self.checkpoint_bytes)} from a checkpoint{took}"


@final
@dataclasses.dataclass(frozen=True)
class Contingency:
    """The fallback of a plan for the loss of one host: the stages to run without it, with the plan's layers and
    schedule.

    Attributes:
        stages: in the order of the layers, on the hosts that are left.
        step_s: predicted seconds of a training step.
        num_micro_batches: how many micro-batches its step has, which may be another number than the plan's.
        moves: what the hosts must receive to change from the plan to these stages.
        unused: the names of the hosts that are left but have no stage.
    """

    stages: tuple[StagePlan, ...]
    step_s: float
    num_micro_batches: int
    moves: Moves
    unused: tuple[str, ...] = ()
