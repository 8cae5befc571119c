"""A train step cut into layers by the rule of Alpa's `AutoLayerOption`, without Alpa.

`trace` turns a model function into jaxprs, `cut_into_layers` gives each layer its forward, backward and update jaxpr,
and `model_of_step` describes them as the `Model` that is planned for.
"""

from alpa_dejavu.layers._concrete import concrete
from alpa_dejavu.layers._cut import LayeredStep, cut_into_layers, most_layers
from alpa_dejavu.layers._digest import step_digest
from alpa_dejavu.layers._resolve import resolve
from alpa_dejavu.layers._step import model_of_step, solver_of_step
from alpa_dejavu.layers._trace import TracedStep, trace

__all__ = [
    "LayeredStep",
    "TracedStep",
    "concrete",
    "cut_into_layers",
    "model_of_step",
    "most_layers",
    "resolve",
    "solver_of_step",
    "step_digest",
    "trace",
]
