"""The dataclasses of a planning problem and of its answer: frozen, and checked where they are made.

Everything is in SI units: seconds, bytes, bytes per second, floating-point operations (`_s`, `_bytes`, `_bytes_per_s`,
`_flop`). Layers are numbered from 0; a plan's layer ranges are inclusive at both ends.
"""

from alpa_dejavu.problem._cluster import Cluster, Host
from alpa_dejavu.problem._confidence import Confidence, DrawnSeconds, PricedBy
from alpa_dejavu.problem._device import Device, HostMemory, HostShare, Nvme, SmallProducts, StridedReads
from alpa_dejavu.problem._division import (
    PHASES,
    AxisCollectives,
    Division,
    Layer,
    MemoryPart,
    MemoryShares,
    NoShardingError,
    PassFlow,
    Sharding,
    recomputed_layers,
)
from alpa_dejavu.problem._hardware import ClusterSummary, HostSummary, counted_name, host_kinds
from alpa_dejavu.problem._link import Link, ReductionServer
from alpa_dejavu.problem._mesh import (
    CONTEXT,
    DATA,
    EXPERT,
    EXPERT_COPIES,
    EXPERT_REPLICATED,
    EXPERT_SHARDED,
    EXPERT_TENSOR,
    REMAT,
    REPLICATED,
    SHARDED,
    TENSOR,
    ZERO_NAMES,
    MeshConfig,
    SearchSpace,
    Submesh,
    blocks_again,
)
from alpa_dejavu.problem._model import Model, Tensor
from alpa_dejavu.problem._offload import NO_OFFLOAD, OFFLOAD_PLACES, OFFLOADED, Offload, StageOffload
from alpa_dejavu.problem._operators import ATTENTION, ATTENTION_LIBRARIES, FusedAttention, Operator, Operators
from alpa_dejavu.problem._plan import MicroBatches, NoPlanError, Plan, Stages, StepCorrection
from alpa_dejavu.problem._sites import ANY_CUTS, Cuts, Sites
from alpa_dejavu.problem._stage_plan import Contingency, Moves, StagePlan
from alpa_dejavu.problem.run import Run
from alpa_dejavu.problem.slicing_problem import Objective, Slicing, SlicingProblem, StageChoice

__all__ = [
    "ANY_CUTS",
    "ATTENTION",
    "ATTENTION_LIBRARIES",
    "CONTEXT",
    "DATA",
    "EXPERT",
    "EXPERT_COPIES",
    "EXPERT_REPLICATED",
    "EXPERT_SHARDED",
    "EXPERT_TENSOR",
    "NO_OFFLOAD",
    "OFFLOADED",
    "OFFLOAD_PLACES",
    "PHASES",
    "REMAT",
    "REPLICATED",
    "SHARDED",
    "TENSOR",
    "ZERO_NAMES",
    "AxisCollectives",
    "Cluster",
    "ClusterSummary",
    "Confidence",
    "Contingency",
    "Cuts",
    "Device",
    "Division",
    "DrawnSeconds",
    "FusedAttention",
    "Host",
    "HostMemory",
    "HostShare",
    "HostSummary",
    "Layer",
    "Link",
    "MemoryPart",
    "MemoryShares",
    "MeshConfig",
    "MicroBatches",
    "Model",
    "Moves",
    "NoPlanError",
    "NoShardingError",
    "Nvme",
    "Objective",
    "Offload",
    "Operator",
    "Operators",
    "PassFlow",
    "Plan",
    "PricedBy",
    "ReductionServer",
    "Run",
    "SearchSpace",
    "Sharding",
    "Sites",
    "Slicing",
    "SlicingProblem",
    "SmallProducts",
    "StageChoice",
    "StageOffload",
    "StagePlan",
    "Stages",
    "StepCorrection",
    "StridedReads",
    "Submesh",
    "Tensor",
    "blocks_again",
    "counted_name",
    "host_kinds",
    "recomputed_layers",
]
