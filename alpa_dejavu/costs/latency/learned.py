"""Learned latency: models fitted to measured kernels and layers. It needs scikit-learn; the planner's defaults don't.

sheets = data_sheets(figures)
model = KernelModel().fit(Kernels.of(measured, sheets), measured["latency_s"])
DejavuStageOption(latency=LearnedLatency(model, sheets), ...)

On a GPU of which a few kernels were measured:

adapted = AdaptedKernels().fit(model, Kernels.of(few, sheets), few["latency_s"])
DejavuStageOption(latency=LearnedLatency(adapted, {name: sheets[name]}), ...)
"""

from alpa_dejavu.costs.latency._adapted import AdaptedKernels
from alpa_dejavu.costs.latency._blocks import BlockModel, Blocks
from alpa_dejavu.costs.latency._deviation import Deviations, measure_next
from alpa_dejavu.costs.latency._kernel_model import KernelModel
from alpa_dejavu.costs.latency._kernels import DataSheet, Kernels
from alpa_dejavu.costs.latency._learned import UNMEASURED_DTYPE, UNMEASURED_KIND, LearnedLatency
from alpa_dejavu.costs.latency._products import ProductCurve
from alpa_dejavu.costs.latency._sheets import data_sheets
from alpa_dejavu.costs.left_out_errors import Seconds

__all__ = [
    "UNMEASURED_DTYPE",
    "UNMEASURED_KIND",
    "AdaptedKernels",
    "BlockModel",
    "Blocks",
    "DataSheet",
    "Deviations",
    "KernelModel",
    "Kernels",
    "LearnedLatency",
    "ProductCurve",
    "Seconds",
    "data_sheets",
    "measure_next",
]
