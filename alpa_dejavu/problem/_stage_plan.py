"""A stage of a finished plan, and the stages that are run instead once a host is lost, with what moves for them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, final

from alpa_dejavu._util import units
from alpa_dejavu._util.dataclass_format import Key, Needed, Rare, Stored
from alpa_dejavu._util.format_fields import MOST, Bytes, Index, Seconds, Share, Size, Text, listed, stated, whole
from alpa_dejavu.problem import checks
from alpa_dejavu.problem._confidence import DrawnSeconds
from alpa_dejavu.problem._mesh import REMAT, ZERO, Remat, Submesh, Zero, is_plain
from alpa_dejavu.problem._offload import NO_OFFLOAD, Offload, StageOffload

_Number: TypeAlias = Annotated[int, whole("a whole number of at least 0", 0, MOST)]
_SIZES = Stored(tuple[Size, Size], dataclasses.astuple, lambda sizes: Submesh(*sizes))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePlan:
    """A stage of a plan: its layers, its devices, and what it is predicted to cost.

    Attributes:
        submesh, logical_mesh: shapes of its devices, as Alpa's ManualStageOption takes them.
        compute_s, collective_s, boundary_s: predicted seconds of one micro-batch, forward and backward: computing,
            collectives among its devices, and transfers from its neighbours; together they are `cost_s`.
        per_step_s: its predicted seconds once a step (gradient synchronisation, optimizer).
        memory_bytes: the predicted peak of each device's memory, with as many micro-batches in flight as the stage's
            position in the pipeline asks for, and with what other stages on its submesh keep.
        remat: "none", or "layer" if each layer's forward pass is computed again in its backward pass.
        own_remat: whether the model itself asks for some of that, as by `jax.checkpoint`.
        forward_s, backward_s: seconds of one micro-batch's pass, collectives included, transfers left out; together
            they are `compute_s` plus `collective_s`.
        forward_collective_s, forward_boundary_s: the forward part of `collective_s` and `boundary_s`.
        synchronisation_s: the part of `per_step_s` that synchronises gradients.
        backward_weight_s: the part of `backward_s` that computes the gradients of weights, where the plan's schedule
            splits it off; else 0.
        activation_bytes, resident_bytes, temporary_bytes: bytes on each device: for each micro-batch in flight, all the
            time (parameters, optimizer's state, ...), and while a layer is computed.
        hidden_s, hidden_per_step_s: seconds of its collectives that hide behind computing, of one micro-batch and of a
            step; they aren't part of the seconds above.
        drawn: the mean and the deviation of `forward_s` plus `backward_s` over joint random draws of costs, with those
            of each layer; None: they aren't known.
        memory_parts: what `memory_bytes` are made of, with all stages on its submesh, in bytes by name; empty where
            only the kinds above are known.
    """

    layers: Annotated[tuple[_Number, _Number], stated("[first layer, last layer], inclusive, from 0")] = (
        dataclasses.field(kw_only=False)
    )
    submesh: Annotated[Submesh, _SIZES, stated("[hosts, devices per host]")] = dataclasses.field(kw_only=False)
    logical_mesh: Annotated[
        tuple[Size, ...], listed("a list of sizes, such as [data parallel, tensor parallel]", min_length=1)
    ] = dataclasses.field(kw_only=False)
    hosts: Annotated[tuple[Text, ...], listed("a list of host names", min_length=1)] = dataclasses.field(kw_only=False)
    remat: Needed[Remat] = "none"
    zero: Needed[Zero] = 0
    options: Annotated[
        Mapping[str, Any], Key("auto_sharding"), stated("an object of options of Alpa's AutoShardingOption")
    ] = dataclasses.field(default_factory=dict, hash=False)
    forward_s: Needed[Seconds] = 0.0
    backward_s: Needed[Seconds] = 0.0
    per_step_s: Needed[Seconds] = 0.0
    memory_bytes: Needed[Bytes] = 0.0
    memory_limit_bytes: Needed[Bytes] = 0.0
    compute_s: Seconds = 0.0
    collective_s: Seconds = 0.0
    boundary_s: Seconds = 0.0
    forward_collective_s: Seconds = 0.0
    forward_boundary_s: Seconds = 0.0
    synchronisation_s: Seconds = 0.0
    activation_bytes: Bytes = 0.0
    resident_bytes: Bytes = 0.0
    temporary_bytes: Bytes = 0.0
    backward_weight_s: Rare[Seconds] = 0.0
    hidden_s: Rare[Seconds] = 0.0
    hidden_per_step_s: Rare[Seconds] = 0.0
    offload: Rare[Annotated[StageOffload | None, stated("an object: the shares that its hosts keep")]] = None
    drawn: Rare[Annotated[DrawnSeconds | None, stated("an object: mean and deviation of its seconds")]] = None
    context_parallel: Rare[Size] = 1
    expert_parallel: Rare[Size] = 1
    sharded: Rare[Size] = 0
    expert_tensor: Rare[Size] = 0
    remat_share: Rare[Share] = 1.0
    own_remat: Rare[Annotated[bool, stated("true where the model itself computes activations again, or false")]] = False
    memory_parts: Rare[Annotated[Mapping[str, Bytes], stated("an object: bytes by what they are of")]] = (
        dataclasses.field(default_factory=dict, hash=False)
    )

    def __post_init__(self) -> None:
        checks.one_of("stage plan", "remat", self.remat, REMAT)
        if self.zero not in ZERO:
            raise ValueError(f"stage plan: zero is {self.zero!r}; choose one of {', '.join(map(str, ZERO))}")

    @property
    def offloaded(self) -> Offload:
        """Returns the shares of what the stage keeps that are offloaded."""
        return NO_OFFLOAD if self.offload is None else self.offload.shares

    @property
    def plain(self) -> bool:
        """Returns whether devices divide the batch and the operators alone, as every training framework can."""
        return is_plain(self)

    @property
    def data_parallel(self) -> int:
        """Returns among how many devices samples and their tokens are divided."""
        return self.logical_mesh[0]

    @property
    def tensor_parallel(self) -> int:
        """Returns among how many devices operators are divided."""
        return math.prod(self.logical_mesh[1:])

    @property
    def remat_text(self) -> str:
        """Returns what is computed again for backward passes: the remat, and its share of blocks if it isn't all; or
        "own" where the model asks for it.
        """
        if self.remat == "none" and self.own_remat:
            return "own"
        return self.remat if self.remat_share == 1 else f"{self.remat} {self.remat_share:.0%}"

    @property
    def num_layers(self) -> int:
        """Returns the number of layers of the stage."""
        return self.layers[1] - self.layers[0] + 1

    @property
    def cost_s(self) -> float:
        """Returns the predicted seconds of the stage for one micro-batch, forward and backward, with communication."""
        return self.compute_s + self.collective_s + self.boundary_s


@final
@dataclasses.dataclass(frozen=True)
class Moves:
    """The parameters and optimizer states that hosts must receive when one plan replaces another.

    Attributes:
        layers: the numbers of the layers of which a host receives parameters or the optimizer's state, since it hasn't
            got them.
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
    """The fallback of a plan for the loss of one host: the stages to run without it, on the hosts that are left, with
    the plan's layers and schedule, but perhaps another number of micro-batches; what hosts must receive for it; and the
    names of those that are left but have no stage.
    """

    stages: tuple[StagePlan, ...]
    step_s: float
    num_micro_batches: int
    moves: Moves
    unused: tuple[str, ...] = ()
