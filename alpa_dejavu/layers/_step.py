"""From a traced step to the model that is planned for."""

from __future__ import annotations

from alpa_dejavu.layers._trace import TracedStep
from alpa_dejavu.problem import Model


def model_of_step(traced: TracedStep, num_layers: int | str, *, remat: str = "none") -> Model:
    """The layers of a traced step, described."""
    raise NotImplementedError("alpa_dejavu.layers.model_of_step is on its way")
