"""A layer's jaxpr turned into operator records, and all layers of a step into a `Model`.

Nothing is compiled or run: shapes say it all.
"""

from alpa_dejavu.layers.features._layer import LayerFeatures, layer_features
from alpa_dejavu.layers.features._model import describe

__all__ = ["LayerFeatures", "describe", "layer_features"]
