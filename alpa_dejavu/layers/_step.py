"""From a traced step to the model that is planned for."""

from __future__ import annotations

from alpa_dejavu.features import describe
from alpa_dejavu.layers._cut import cut_into_layers
from alpa_dejavu.layers._trace import TracedStep
from alpa_dejavu.problem import Model


def model_of_step(traced: TracedStep, num_layers: int | str, *, remat: str = "none") -> Model:
    """The layers of a traced step, described; see `cut_into_layers`.

    Raises:
        ValueError: the loss has too few equations for so many layers, or an option isn't known.
    """
    layered = cut_into_layers(traced, num_layers, remat=remat)
    return describe(
        layered.forward, layered.backward, layered.updates, layered.accumulators, traced.micro_batch, layered.data
    )
