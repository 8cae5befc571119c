"""The models of communication, which predict the seconds of collectives and sends; each is chosen by name.

In: a collective, numbers of bytes, and the group of devices that it is among, or two hosts.
Out: seconds for each number of bytes.
"""

from __future__ import annotations

from alpa_dejavu._util.by_name import name_of, resolve
from alpa_dejavu.costs.communication._alpha_beta import (
    COLLECTIVES,
    MEASURED,
    RING_PASSES,
    AlphaBeta,
    CommunicationModel,
    Free,
    Group,
    MeasuredAlphaBeta,
    link_bytes,
)
from alpa_dejavu.costs.communication._links import Links
from alpa_dejavu.costs.communication._nccl import Nccl

__all__ = [
    "COLLECTIVES",
    "MEASURED",
    "RING_PASSES",
    "AlphaBeta",
    "CommunicationModel",
    "Free",
    "Group",
    "Links",
    "MeasuredAlphaBeta",
    "Nccl",
    "communication_model",
    "communication_name",
    "communication_names",
    "link_bytes",
]

_KNOWN = {"auto": AlphaBeta, "alpha-beta": AlphaBeta, "free": Free, "links": Links, "nccl": Nccl}


def communication_model(choice: str | CommunicationModel) -> CommunicationModel:
    """Returns the communication model of a name ("alpha-beta", "links", "nccl", "free"; "auto" is alpha-beta), or the
    given one.

    >>> communication_model("free")
    Free()
    """
    return resolve("communication model", choice, _KNOWN, CommunicationModel)  # type: ignore[type-abstract]


def communication_names() -> tuple[str, ...]:
    """Returns the names of the communication models, "auto" first."""
    return tuple(_KNOWN)


def communication_name(model: CommunicationModel) -> str:
    """Returns the name by which `communication_model` finds a model, or the name of its class if there is none.

    >>> communication_name(Links())
    'links'
    """
    return name_of(model, _KNOWN)
