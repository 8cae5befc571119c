"""The costs of stages: seconds of computing and sending, and bytes of memory. Each price is implemented once.

In: the layers of a model, a cluster, and the models that predict latency and communication (`CostModels`).
Out: a `CostTable`, which has the seconds and bytes of every range of layers on every submesh with every config.
`latency/` predicts operators, `communication/` collectives, and a `RuntimeProfile` says what a training framework adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.costs.communication import CommunicationModel, communication_model
    from alpa_dejavu.costs.interstage import InterstageTransfer
    from alpa_dejavu.costs.latency import LatencyModel, latency_model
    from alpa_dejavu.costs.memory_margin import MemoryMargin
    from alpa_dejavu.costs.overlap import Overlap
    from alpa_dejavu.costs.runtime import CostModels, RuntimeProfile
    from alpa_dejavu.costs.stage_costs import StageCostModel
    from alpa_dejavu.costs.table import CostTable, cost_table

__all__ = [
    "CommunicationModel",
    "CostModels",
    "CostTable",
    "InterstageTransfer",
    "LatencyModel",
    "MemoryMargin",
    "Overlap",
    "RuntimeProfile",
    "StageCostModel",
    "communication_model",
    "cost_table",
    "latency_model",
]

_HOME = {
    "CommunicationModel": "communication",
    "communication_model": "communication",
    "CostModels": "runtime",
    "InterstageTransfer": "interstage",
    "LatencyModel": "latency",
    "latency_model": "latency",
    "MemoryMargin": "memory_margin",
    "Overlap": "overlap",
    "RuntimeProfile": "runtime",
    "StageCostModel": "stage_costs",
    "CostTable": "table",
    "cost_table": "table",
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
