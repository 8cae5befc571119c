"""Attacks and faults: the gradients, or activations, that wrong replicas send instead of theirs.

In: the gradients of N replicas, [N, ...], and which of them are wrong, [N].
Out: the gradients that are sent.
"""

from __future__ import annotations

from alpa_dejavu.training.robust.attacks._base import (
    Attack,
    BitFlip,
    NotFinite,
    Stale,
    Zero,
    flipped_labels,
    wrong_stage,
)
from alpa_dejavu.training.robust.attacks._hostile import (
    ALittleIsEnough,
    CopiedSignFlip,
    Gaussian,
    InnerProduct,
    Mimic,
    SignFlip,
)

__all__ = [
    "ATTACKS", "Attack", "BitFlip", "Gaussian", "SignFlip", "Stale", "flipped_labels", "wrong_stage",
]  # fmt: skip

ATTACKS: dict[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "copied-sign-flip": CopiedSignFlip,
    "gaussian": Gaussian,
    "inner-product": InnerProduct,
    "a-little-is-enough": ALittleIsEnough,
    "mimic": Mimic,
    "not-finite": NotFinite,
    "bit-flip": BitFlip,
    "stale": Stale,
    "zero": Zero,
}
"""The attacks and faults of gradients by name, frozen dataclasses."""
