"""Whole iterations: operators and collectives composed into stages, stages into a step, and their peak of memory.

Each framework is a `Physics`: a formula with few parameters that mean something. `fit` finds them, with the
deviations of single programs, from measured iterations; the result predicts with a spread that grows where nothing
was measured.
"""

from alpa_dejavu.iteration._bandwidth import BandwidthFit
from alpa_dejavu.iteration._deepspeed import DeepSpeedIteration
from alpa_dejavu.iteration._deepspeed_columns import HostKind, PipelinePlan, ProfiledModel, deepspeed_columns
from alpa_dejavu.iteration._fit import fit
from alpa_dejavu.iteration._fitted import Fitted
from alpa_dejavu.iteration._hierarchical import Deviation, Parameter, Physics
from alpa_dejavu.iteration._layer_profile import LayerProfile
from alpa_dejavu.iteration._links import RingAllReduce
from alpa_dejavu.iteration._megatron import Machine, MegatronIteration
from alpa_dejavu.iteration._pipeline_run import PeakMemory, PipelineRun

__all__ = [
    "BandwidthFit",
    "DeepSpeedIteration",
    "Deviation",
    "Fitted",
    "HostKind",
    "LayerProfile",
    "Machine",
    "MegatronIteration",
    "Parameter",
    "Physics",
    "PeakMemory",
    "PipelinePlan",
    "PipelineRun",
    "ProfiledModel",
    "RingAllReduce",
    "deepspeed_columns",
    "fit",
]
