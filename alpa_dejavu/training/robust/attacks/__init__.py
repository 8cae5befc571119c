"""Attacks and faults: the gradients, or activations, that wrong replicas send instead of theirs.

In: the gradients of N replicas, [N, ...], and which of them are wrong, [N].
Out: the gradients that are sent.
"""

from __future__ import annotations

from alpa_dejavu.training.robust.attacks._base import Attack
from alpa_dejavu.training.robust.attacks._broken import BitFlip, NotFinite, Stale, Zero
from alpa_dejavu.training.robust.attacks._hostile import (
    ALittleIsEnough,
    CopiedSignFlip,
    Gaussian,
    InnerProduct,
    Mimic,
    SignFlip,
)
from alpa_dejavu.training.robust.attacks._stage import flipped_labels, wrong_stage
from alpa_dejavu.training.robust.attacks._tuned import Tuned, wrong_replicas

__all__ = [
    "ATTACKS",
    "Attack",
    "BitFlip",
    "Gaussian",
    "SignFlip",
    "Stale",
    "Tuned",
    "flipped_labels",
    "wrong_replicas",
    "wrong_stage",
]

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
