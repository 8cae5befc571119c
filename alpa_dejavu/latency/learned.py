"""Learned latency: models fitted to measured kernels and layers. It needs scikit-learn; the planner's defaults don't.

sheets = data_sheets(figures)
model = KernelModel().fit(Kernels.of(measured, sheets), measured["latency_s"])
DejavuStageOption(latency=LearnedLatency(model, sheets), ...)
"""

from alpa_dejavu.latency._blocks import BlockModel, Blocks, BlockSeconds
from alpa_dejavu.latency._kernel_model import KernelModel, KernelSeconds
from alpa_dejavu.latency._kernels import DataSheet, Kernels
from alpa_dejavu.latency._learned import LearnedLatency
from alpa_dejavu.latency._sheets import data_sheets

__all__ = [
    "BlockModel",
    "BlockSeconds",
    "Blocks",
    "DataSheet",
    "KernelModel",
    "KernelSeconds",
    "Kernels",
    "LearnedLatency",
    "data_sheets",
]
