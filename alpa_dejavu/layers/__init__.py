"""A train step cut into layers by the rule of Alpa's `AutoLayerOption`, without Alpa.

`trace` turns a model function into jaxprs, and `cut_into_layers` gives each layer its forward, backward and update
jaxpr.
"""

from alpa_dejavu.layers._concrete import concrete
from alpa_dejavu.layers._cut import LayeredStep, cut_into_layers, most_layers
from alpa_dejavu.layers._digest import step_digest
from alpa_dejavu.layers._resolve import resolve
from alpa_dejavu.layers._trace import TracedStep, trace

__all__ = [
    "LayeredStep",
    "TracedStep",
    "concrete",
    "cut_into_layers",
    "most_layers",
    "resolve",
    "step_digest",
    "trace",
]
