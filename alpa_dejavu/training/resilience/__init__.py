"""Resilience of networks: which parts of a trained model may fail without harm, and training by which more of them may.

    model and data ─▶ parts ─▶ faults over many masks ─▶ curves; which k harm most and least, certified by trying

`resilience` measures any flax or plain JAX model. `find_parts` has what may fail, `faults` how, `activations` what
products put out; `data_faults` strikes training data instead, `critical` finds the parts that matter, `hardening`
trains for it, `outages` loses a pipeline's stage, a replica or an expert while training, and `spares` tells which stage
is worth one.

References:
    Torres-Huitzil and Girau, Fault and Error Tolerance in Neural Networks: A Review, IEEE Access 2017.
"""

from __future__ import annotations

from alpa_dejavu.training.resilience._measure import Point, Resilience, resilience
from alpa_dejavu.training.resilience._subject import accuracy, cross_entropy
from alpa_dejavu.training.resilience.faults import UnitFault, kept_as
from alpa_dejavu.training.resilience.find import find_parts, parts_of_axes
from alpa_dejavu.training.resilience.parts import Axis, Parts

__all__ = [
    "Axis", "Parts", "Point", "Resilience", "UnitFault", "accuracy", "cross_entropy", "find_parts", "kept_as",
    "parts_of_axes", "resilience",
]  # fmt: skip
