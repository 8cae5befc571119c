"""The physics of each framework, and the columns that they are fitted on."""

from alpa_dejavu.costs.iteration._alpa_stage import AlpaStage, AlpaStagePeak
from alpa_dejavu.costs.iteration._bandwidth import BandwidthFit
from alpa_dejavu.costs.iteration._deepspeed import DeepSpeedIteration
from alpa_dejavu.costs.iteration._deepspeed_columns import HostKind, PipelinePlan, ProfiledModel, deepspeed_columns
from alpa_dejavu.costs.iteration._layer_profile import LayerProfile
from alpa_dejavu.costs.iteration._links import RingAllReduce
from alpa_dejavu.costs.iteration._megatron import Machine, MegatronIteration
from alpa_dejavu.costs.iteration._pipeline_run import PeakMemory, PipelineRun

__all__ = [
    "AlpaStage",
    "AlpaStagePeak",
    "BandwidthFit",
    "DeepSpeedIteration",
    "HostKind",
    "LayerProfile",
    "Machine",
    "MegatronIteration",
    "PeakMemory",
    "PipelinePlan",
    "PipelineRun",
    "ProfiledModel",
    "RingAllReduce",
    "deepspeed_columns",
]
