"""How much planning takes on: what is beyond is refused before any work, as it would take hours, or all memory."""

from __future__ import annotations

MOST_HOSTS = 2048
MOST_DEVICES_PER_HOST = 1024
MOST_LAYERS = 256
MOST_WIDTH = 2**24
MOST_PARAMETERS = 2**50
MOST_STEPS = 10**15
_MOST_DIGITS = 50
MOST_BATCH = 2**24
MOST_MICRO_BATCHES = 2**16


def at_most(parameter: str, value: int, most: int, remedy: str) -> None:
    """Raises ValueError if a parameter's value is above its limit; the message tells the remedy.

    >>> at_most("hosts", 3, 2, "plan for a part of them")
    Traceback (most recent call last):
    ...
    ValueError: hosts is 3, but must be at most 2; plan for a part of them
    """
    if value > most:
        digits = str(value)
        shown = digits if len(digits) <= _MOST_DIGITS else f"{digits[:12]}... ({len(digits)} digits)"
        raise ValueError(f"{parameter} is {shown}, but must be at most {most}; {remedy}")


def check_sizes(batch: int, layers: int | None, micro_batches: int | None, hosts: int = 1) -> None:
    """Raises ValueError if planning is asked for more than the limits; None: a number that is left open."""
    at_most("hosts", hosts, MOST_HOSTS, "plan for a part of the cluster")
    at_most("batch", batch, MOST_BATCH, "give the samples of one training step")
    at_most("layers", layers or 1, MOST_LAYERS, "cut the model into fewer, or leave the number open")
    at_most("micro_batches", micro_batches or 1, MOST_MICRO_BATCHES, "take larger micro-batches")
