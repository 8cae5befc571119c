"""Seconds that collectives and sends take: models of one method, chosen by name."""

from __future__ import annotations

from alpa_dejavu._named import resolve
from alpa_dejavu.communication._alpha_beta import AlphaBeta
from alpa_dejavu.communication._base import COLLECTIVES, CommunicationModel, Group
from alpa_dejavu.communication._free import Free
from alpa_dejavu.communication._links import Links
from alpa_dejavu.communication._measured_links import MeasuredAlphaBeta

__all__ = [
    "COLLECTIVES",
    "AlphaBeta",
    "CommunicationModel",
    "Free",
    "Group",
    "Links",
    "MeasuredAlphaBeta",
    "communication_model",
]


def communication_model(choice: str | CommunicationModel) -> CommunicationModel:
    """The model of a name ("alpha-beta", "links", "free"; "auto" is the default, alpha-beta), or the given one.

    >>> communication_model("free")
    Free()
    """
    known = {"auto": AlphaBeta, "alpha-beta": AlphaBeta, "free": Free, "links": Links}
    return resolve("communication model", choice, known, CommunicationModel)  # type: ignore[type-abstract]
