"""The submeshes of a cluster that a stage may run on, and logical views of them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.dataclass_format import chosen
from alpa_dejavu._util.format_fields import WHOLE, stated
from alpa_dejavu.problem import checks
from alpa_dejavu.problem._offload import NO_OFFLOAD, Offload
from alpa_dejavu.problem._sites import ANY_CUTS, Cuts
from alpa_dejavu.problem.slicing_problem import StageChoice

if TYPE_CHECKING:
    from alpa_dejavu.problem._stage_plan import StagePlan

FloatArray = NDArray[np.float64]
REMAT = ("none", "selective", "layer")
(
    DATA, TENSOR, CONTEXT, EXPERT, SHARDED, REPLICATED, EXPERT_REPLICATED, EXPERT_TENSOR, EXPERT_SHARDED, EXPERT_COPIES
) = range(10)  # fmt: skip
"""The ways in which the devices of a stage form groups. The first two are the axes of the logical mesh: data-parallel
devices, and tensor-parallel ones. Parts of the data-parallel ones are those that share a sample's tokens; those that
share what ZeRO shares, and those that have the same share. Experts divide all devices anew: those that share the
experts; those that have the same experts; those that share one expert's products; and of those that have the same
experts, those that share what ZeRO shares of them, and those that have the same share."""
ZERO = (0, 2, 3)
Remat: TypeAlias = Annotated[str, chosen(REMAT), stated('"none", "selective" or "layer"')]
ZERO_NAMES = {0: "0", 2: "1", 3: "3"}
"""The usual names of ZeRO levels: at level 2 devices share the optimizer's state, and each has whole gradients."""
Zero: TypeAlias = Annotated[int, chosen(ZERO), stated("0, 2 or 3"), WHOLE]


@final
@dataclasses.dataclass(frozen=True)
class Submesh:
    """A submesh of a cluster: some hosts, and equally many devices of each."""

    num_hosts: int
    devices_per_host: int

    def __post_init__(self) -> None:
        checks.fields("submesh", self, "num_hosts devices_per_host")

    @property
    def num_devices(self) -> int:
        """Returns the number of devices of the submesh, on all its hosts together."""
        return self.num_hosts * self.devices_per_host


def is_plain(config: MeshConfig | StagePlan) -> bool:
    """Returns whether only batch and operators are divided, and all layers computed again or none."""
    degrees = config.context_parallel, config.expert_parallel, config.expert_tensor, config.sharded, config.remat_share
    return degrees == (1, 1, 0, 0, 1) and config.remat != "selective"


def blocks_again(share: float, blocks: FloatArray | int) -> FloatArray:
    """Returns how many of a stage's blocks a share of them is, rounded up; for arrays of numbers, too.

    >>> [int(blocks_again(*pair)) for pair in ((0.5, 8), (0.3, 8), (3 / 7, 7))]
    [4, 3, 3]
    """
    return np.ceil(np.round(share * np.asarray(blocks), 6))


@final
@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """A logical view of a submesh: (data-parallel, tensor-parallel) sizes, and Alpa's auto-sharding options for it.

    Attributes:
        shape: the lengths of the logical mesh's axes; their product is the number of the submesh's devices.
        data_parallel, tensor_parallel: how many ways the batch is cut, and how many ways the operators.
        options: handed to Alpa's auto-sharding pass as they are.
        remat: "none"; "layer": a layer keeps only its inputs for its backward pass, and computes the rest again; or
            "selective": it computes again what the training framework finds cheap, which only transformers by their
            sizes have.
        zero: what data-parallel devices share among them instead of keeping it each: 0 nothing, 2 the optimizer's state
            and step, 3 the parameters and gradients too.
        context_parallel: into how many parts the tokens of a sample are cut; these devices are among the data-parallel
            ones, next to each other.
        expert_parallel: among how many devices experts are divided, instead of each having all.
        sharded: among how many data-parallel devices ZeRO shares what it shares; the groups are replicas of each other.
            0: among all.
        expert_tensor: how many devices share the products of one expert; 0: as many as share other products. With
            fewer, experts are divided among tensor-parallel devices, too, as by Megatron's expert-tensor-parallel-size.
        remat_share: of which share of a stage's blocks `remat` is, rounded up to whole blocks, where it is "layer";
            the others keep all.

    References:
        Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020.
        Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016 (remat).
    """

    shape: tuple[int, ...]
    data_parallel: int
    tensor_parallel: int
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    remat: str = "none"
    zero: int = 0
    offload: Offload = NO_OFFLOAD
    context_parallel: int = 1
    expert_parallel: int = 1
    sharded: int = 0
    expert_tensor: int = 0
    remat_share: float = 1.0

    def __post_init__(self) -> None:
        checks.one_of("mesh config", "remat", self.remat, REMAT)
        if not 0 < self.remat_share <= 1 or (self.remat_share < 1 and self.remat != "layer"):
            raise ValueError(
                f"mesh config: remat_share is {self.remat_share!r}, but must be above 0 and at most 1, and 1 where "
                f"remat is {self.remat!r}; give the share of blocks that are computed again with remat 'layer'"
            )
        if self.expert_tensor == self.tensor_parallel:
            object.__setattr__(self, "expert_tensor", 0)
        if self.expert_tensor:
            self._check_experts(self.expert_tensor)
        for field in ("context_parallel", "sharded", *(() if self.expert_tensor else ("expert_parallel",))):
            if self.data_parallel % (getattr(self, field) or 1):
                raise ValueError(
                    f"mesh config: {field} is {getattr(self, field)}, but must divide the {self.data_parallel} "
                    "data-parallel devices; choose another number"
                )
        if self.zero not in ZERO:
            raise ValueError(f"mesh config: zero is {self.zero!r}; choose one of {', '.join(map(str, ZERO))}")
        if self.data_parallel * self.tensor_parallel != math.prod(self.shape):
            raise ValueError(
                f"mesh config: {self.data_parallel} data-parallel times {self.tensor_parallel} tensor-parallel devices "
                f"aren't the {math.prod(self.shape)} of the logical shape {self.shape}"
            )

    def _check_experts(self, expert_tensor: int) -> None:
        if self.tensor_parallel % expert_tensor and expert_tensor % self.tensor_parallel:
            raise ValueError(
                f"mesh config: expert_tensor is {expert_tensor}, but must divide the {self.tensor_parallel} "
                "tensor-parallel devices, or be a multiple of them; choose another number"
            )
        if math.prod(self.shape) % (self.expert_parallel * expert_tensor):
            raise ValueError(
                f"mesh config: expert_parallel is {self.expert_parallel} and expert_tensor {expert_tensor}, but their "
                f"product must divide the {math.prod(self.shape)} devices; choose other numbers"
            )

    @property
    def division_key(self) -> tuple[int, int, int, bool, int, int, int, int]:
        """Returns the part of a config that tells apart how a model is divided: all but its remat and its offload."""
        own = self.data_parallel, self.tensor_parallel, self.zero, self.batch_forced
        return *own, self.context_parallel, self.expert_parallel, self.sharded, self.expert_tensor

    @property
    def remat_ends(self) -> tuple[MeshConfig, MeshConfig]:
        """Returns the configs by which none of a stage's blocks are computed again, and all of them."""
        whole = dataclasses.replace(self, remat_share=1.0)
        return dataclasses.replace(whole, remat="none"), whole

    @property
    def replicas(self) -> int:
        """Returns how many samples are computed at once: data-parallel devices over those that share tokens."""
        return self.data_parallel // self.context_parallel

    @property
    def plain(self) -> bool:
        """Returns whether devices divide the batch and the operators alone, as every training framework can."""
        return is_plain(self)

    def check_plain(self) -> None:
        """Raises ValueError unless devices divide the batch and the operators alone."""
        if not self.plain:
            raise ValueError(
                f"context_parallel is {self.context_parallel}, expert_parallel {self.expert_parallel}, expert_tensor "
                f"{self.expert_tensor}, sharded {self.sharded} and remat {self.remat!r} of {self.remat_share:.0%}, but "
                "a traced model can only have 1, 1, 0, 0 and 'none' or 'layer' of 100%; give the sizes of a "
                "transformer and a runtime, such as megatron or torchtitan"
            )

    def ways(self, axis: int) -> int:
        """Returns how many devices are in each group of an axis, which is one of `DATA`, `TENSOR` and so on.

        >>> config = MeshConfig((8, 2), 8, 2, context_parallel=2, sharded=4)
        >>> [config.ways(axis) for axis in (DATA, TENSOR, CONTEXT, SHARDED, REPLICATED)]
        [8, 2, 2, 4, 2]
        """
        return self._strides[axis][0]

    @functools.cached_property
    def _strides(self) -> dict[int, tuple[int, int]]:
        """The devices in each group of an axis, and how far apart in the mesh they are."""
        data, tensor, sharded = self.data_parallel, self.tensor_parallel, self.sharded or self.data_parallel
        expert, same = self.expert_parallel, self.expert_tensor or tensor
        alike = data * tensor // (expert * same)
        share = math.gcd(alike, max(sharded * tensor // (expert * same), 1))
        return {
            DATA: (data, tensor), TENSOR: (tensor, 1), CONTEXT: (self.context_parallel, tensor),
            SHARDED: (sharded, tensor), REPLICATED: (data // sharded, tensor * sharded),
            EXPERT_TENSOR: (same, 1), EXPERT: (expert, same), EXPERT_REPLICATED: (alike, expert * same),
            EXPERT_SHARDED: (share, expert * same), EXPERT_COPIES: (alike // share, expert * same * share),
        }  # fmt: skip

    def groups(self, axis: int) -> list[tuple[int, ...]]:
        """Returns the groups of an axis, each as the indices of its devices; tensor-parallel devices are next to each
        other.

        >>> MeshConfig((4, 2), 4, 2, sharded=2).groups(REPLICATED)
        [(0, 4), (1, 5), (2, 6), (3, 7)]
        >>> MeshConfig((4, 2), 4, 2, expert_parallel=4, expert_tensor=1).groups(EXPERT)
        [(0, 1, 2, 3), (4, 5, 6, 7)]
        """
        return [tuple(group) for group in self.group_members(axis).tolist()]

    def group_members(self, axis: int) -> NDArray[np.intp]:
        """Returns the groups of an axis as `groups` has them, in an array of shape (groups, devices of each)."""
        ways, apart = self._strides[axis]
        devices = np.arange(math.prod(self.shape))
        return devices.reshape(-1, ways, apart).swapaxes(1, 2).reshape(-1, ways)

    @property
    def batch_forced(self) -> bool:
        """Returns whether the batch must be cut along the mesh's first axis; else Alpa's pass is free to choose."""
        return self.options.get("force_batch_dim_to_mesh_dim", -1) not in (None, -1)


@final
@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """The S submeshes that a stage may take, with up to C mesh configs for each: S rows of C, None where there is none.

    `allowed_imbalance` is Alpa's `stage_imbalance_tolerance`: a stage's share of the floating-point operations and its
    share of the devices may differ by a factor of 1 + `allowed_imbalance` at most; infinity allows everything.

    Where hosts are unlike, `hosts` has for each submesh the hosts that it takes, by their indices in the cluster, as
    examples of their kinds (`host_kinds`); None: hosts are alike, and a submesh may be anywhere.

    Where stages must be alike in something, `families` has sets of entries (submesh, config) by their indices, and all
    stages of a plan have entries of one family; empty: any stages may go together. `cuts` says where layers may be cut.
    """

    submeshes: tuple[Submesh, ...]
    configs: tuple[tuple[MeshConfig | None, ...], ...]
    allowed_imbalance: float = math.inf
    hosts: tuple[tuple[int, ...], ...] | None = None
    families: tuple[frozenset[tuple[int, int]], ...] = ()
    cuts: Cuts = ANY_CUTS

    def __post_init__(self) -> None:
        if not self.submeshes:
            raise ValueError("search space: there is no submesh to choose from; widen submesh_physical_shape_space")
        if len(self.configs) != len(self.submeshes) or len({len(row) for row in self.configs}) != 1:
            raise ValueError(
                f"search space: configs has rows of {[len(row) for row in self.configs]}, "
                f"but must have {len(self.submeshes)} rows of the same length"
            )
        if self.hosts is not None:
            counts = [len(hosts) for hosts in self.hosts]
            if counts != [submesh.num_hosts for submesh in self.submeshes]:
                shapes = [(submesh.num_hosts, submesh.devices_per_host) for submesh in self.submeshes]
                raise ValueError(f"search space: hosts names {counts} hosts for the submeshes {shapes}")
        if not self.allowed_imbalance >= 0:
            raise ValueError(f"search space: allowed_imbalance is {self.allowed_imbalance}, but must be at least 0")

    def config(self, stage: StageChoice) -> MeshConfig:
        """Returns the mesh config that a chosen stage has."""
        config = self.configs[stage.submesh][stage.config]
        assert config is not None, "a slicer chose an entry that the search space doesn't offer"
        return config

    def part(self, submeshes: Sequence[int]) -> SearchSpace:
        """Returns the search space of some of the submeshes, which are given by their indices, with their configs."""
        places = {s: n for n, s in enumerate(submeshes)}
        return dataclasses.replace(
            self,
            submeshes=tuple(self.submeshes[s] for s in submeshes),
            configs=tuple(self.configs[s] for s in submeshes),
            hosts=self.hosts and tuple(self.hosts[s] for s in submeshes),
            families=tuple(frozenset((places[s], c) for s, c in family if s in places) for family in self.families),
        )

    def filtered(self, keep: Callable[[MeshConfig], bool]) -> SearchSpace:
        """Returns the search space in which configs for which `keep` is false are None in their places."""
        kept = [[config if config is not None and keep(config) else None for config in row] for row in self.configs]
        left = [frozenset((s, c) for s, c in family if kept[s][c] is not None) for family in self.families]
        return dataclasses.replace(self, configs=tuple(map(tuple, kept)), families=tuple(filter(None, left)))

    def compacted(self) -> SearchSpace:
        """Returns the search space with each submesh's configs next to each other, and no more None than are needed."""
        places = [[c for c, config in enumerate(row) if config is not None] for row in self.configs]
        width = max(1, *map(len, places))
        rows = [[row[c] for c in own] for row, own in zip(self.configs, places, strict=True)]
        numbers = {(s, c): n for s, own in enumerate(places) for n, c in enumerate(own)}
        return dataclasses.replace(
            self,
            configs=tuple((*row, *[None] * (width - len(row))) for row in rows),
            families=tuple(frozenset((s, numbers[s, c]) for s, c in family) for family in self.families),
        )
