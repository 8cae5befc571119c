"""How much longer kernels take in a training step than alone, where they are measured."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import final

from alpa_dejavu._util.json_text import strict_json

__all__ = ["IN_STEPS_FILE", "InSteps", "in_steps"]

IN_STEPS_FILE = Path(__file__).with_name("in_steps.json")
"""The figures, which are fitted to published training steps."""


@final
@dataclasses.dataclass(frozen=True)
class InSteps:
    """Factors on the seconds of kernels in a training step.

    Attributes:
        products: that on products and attention, beside the power limit, which the models of kernels have: caches are
            busy with other tensors, and clocks vary.
        attention_backward: the further one on backward passes of attention, of which forward passes alone were
            measured.
    """

    products: float = 1.0
    attention_backward: float = 1.0

    def factor(self, attention_backward: bool) -> float:
        """Returns the factor on the seconds of products or attention."""
        return self.products * (self.attention_backward if attention_backward else 1.0)


@functools.cache
def in_steps() -> InSteps:
    """Returns the package's fitted factors."""
    figures = strict_json(IN_STEPS_FILE.read_text(encoding="utf-8"))["figures"]
    return InSteps(**figures)
