"""Models by name: those of Alpa's OSDI 2022 evaluation, Kraken beside it, and the decoders that people train today.

Each is a function that takes a batch size and returns a train step, or a step without gradients.

References:
    Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning, OSDI 2022,
    section 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used
from alpa_dejavu.layers.models._size_text import TextSizes
from alpa_dejavu.layers.models._sizes import Kraken
from alpa_dejavu.layers.models._suites import (
    forward_function,
    is_marked,
    is_served,
    known_models,
    known_name,
    model_function,
    model_size,
    model_title,
    num_parameters,
    tokens_of_sample,
    transformer_size,
)
from alpa_dejavu.layers.models._training_choices import OPTIMIZERS
from alpa_dejavu.layers.models._transformer_size import Transformer

if TYPE_CHECKING:
    from alpa_dejavu.layers.models._kraken import KrakenModule

__all__ = [
    "OPTIMIZERS",
    "Kraken",
    "KrakenModule",
    "TextSizes",
    "Transformer",
    "forward_function",
    "is_marked",
    "is_served",
    "known_models",
    "known_name",
    "model_function",
    "model_size",
    "model_title",
    "num_parameters",
    "tokens_of_sample",
    "transformer_size",
]

__getattr__, __dir__ = loaded_when_used(__name__, {"KrakenModule": "_kraken"})
