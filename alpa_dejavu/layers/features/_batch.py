"""Which values come from parameters alone, or turn into their gradients: data parallelism doesn't divide them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from alpa_dejavu.layers.features.flatten import Step, Value
from alpa_dejavu.layers.features.operator_kinds import ALIASES

_LOOPS = ("elementwise", "layout")


def made_from(steps: Sequence[Step], kinds: Sequence[str], sources: Iterable[Value]) -> set[Value]:
    """The sources, and all that element-wise loops make of them and of constants alone."""
    found = set(sources)
    for step, kind in zip(steps, kinds, strict=True):
        inputs = [value for value in step.inputs if not value.constant]
        if step.primitive in ALIASES:
            found.update(b for a, b in zip(step.inputs, step.outputs, strict=False) if a in found)
        elif inputs and kind in _LOOPS and all(value in found for value in inputs):
            found.update(step.outputs)
    return found


def made_into(steps: Sequence[Step], kinds: Sequence[str], results: Iterable[Value]) -> set[Value]:
    """The results, and all that element-wise loops make them from: what is added to a gradient is one too."""
    found = set(results)
    for step, kind in zip(reversed(steps), reversed(kinds), strict=True):
        if step.primitive in ALIASES:
            found.update(a for a, b in zip(step.inputs, step.outputs, strict=False) if b in found and not a.constant)
        elif kind in _LOOPS and any(value in found for value in step.outputs):
            found.update(value for value in step.inputs if not value.constant)
    return found
