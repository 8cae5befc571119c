"""How many candidates a device has memory for."""

from __future__ import annotations

from alpa_dejavu._util import units
from alpa_dejavu.training.initialization._trainer import Trainer


class DoesNotFitError(ValueError):
    """An error that says that a device's memory is too small to train even one candidate."""


def fitting_lanes(trainer: Trainer, lanes: int, memory_bytes: float | None) -> tuple[int, str]:
    """Returns how many candidates can be trained side by side in a device's memory, `lanes` at most, and a note if it
    is fewer.

    Args:
        trainer: the trainer of the model.
        lanes: how many candidates side by side are asked for.
        memory_bytes: the device's memory; None: what jax says of this process's first device; if it says nothing, all
            candidates are taken to fit.

    Raises:
        DoesNotFitError: not even one fits.
    """
    limit = memory_bytes if memory_bytes is not None else _memory_of_device()
    if limit is None:
        return lanes, ""
    fitting = lanes
    while (needed := trainer.memory_bytes(fitting)) > limit:
        if fitting == 1:
            raise DoesNotFitError(
                f"one candidate takes {units.size(needed)}, but the device has {units.size(limit)}; make the model or "
                "the batches smaller, or give the right memory_bytes"
            )
        fitting //= 2
    if fitting == lanes:
        return lanes, ""
    return fitting, f"{lanes} candidates side by side don't fit in {units.size(limit)} of memory, {fitting} do"


def _memory_of_device() -> float | None:
    import jax

    said = jax.devices()[0].memory_stats()
    return None if said is None or "bytes_limit" not in said else float(said["bytes_limit"])
