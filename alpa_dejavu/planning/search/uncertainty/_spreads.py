"""The classes of work that err together, and how far off they are.

An error is a factor on seconds. Work of one class has one factor in common: all products on the cluster's devices, all
all-reduces inside hosts. What a layer computes has a factor of its own beside, in all stages that contain the layer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.communication import COLLECTIVES, CommunicationModel, Group
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.problem import Device, Operators

_PLACES = ("within hosts", "between hosts")
CLASSES = (
    "products", "other operators", "launches", *(f"{kind} {place}" for place in _PLACES for kind in COLLECTIVES),
    "doublings", "runtime",
)  # fmt: skip
"""The classes of work, each with a factor in common. The first two are computed by layers.

The last two have no seconds of their own: all of a stage takes the factor of the first for each doubling of the stage's
devices, and that of the second, which is what steps of a training framework are off.
"""
COMPUTE = (0, 1)
LAUNCHES = 2
DOUBLINGS, RUNTIME = len(CLASSES) - 2, len(CLASSES) - 1

ROOFLINE = {"products": (0.43, 0.37), "other operators": (0.18, 0.20)}
"""The spread of the roofline: standard deviations of the logarithm of measured over predicted seconds, in common on a
GPU and of a kernel's own. A GPU was left out in turn, and the middle of the others' errors taken off. From NeuSight's
single kernels of over 1 ms on P4, P100, V100, T4 and A100 with their data sheets (other operators: P4, P100, T4). Of
products in half precision on A100, H100, B200 and L40S (`benchmarks/published_training.py`) the common part is 0.41,
nearly all of it since they take longer than a data sheet says."""
ALPHA_BETA = {"within hosts": 0.61, "between hosts": 0.34}
"""The spread of the alpha-beta model on the machine file's links, likewise; a mesh, or a group size, left out in turn.
From Alpa's profile of collectives on p3.16xlarge."""
_DIVIDED_OF_GPU, _DIVIDED_OF_LAYER = 0.080, 0.095
DIVIDED = math.hypot(_DIVIDED_OF_GPU, _DIVIDED_OF_LAYER)
"""The spread of what stages on several devices take besides (thinner products, waiting for each other), for each
doubling of their devices: a GPU's, left out in turn, and a layer's own. From Sailor's profiles of layers on 1 to 8
devices of seven GPUs."""
OWN_IN_PLANS, DIVIDED_ALIKE = 0.5, 0.8
"""The share of a kernel's own spread that layers of plans have, and the share of the variance of that error that a
layer has on every mesh, however it is divided there. Refitted by `benchmarks/confidence.py --refit`: the widest with
which measured plans are right as often as is said, of GPTs, layers of OPT and GPT-Neo on four GPUs, and kernels on
three."""
ON_ANY_GPU = {DOUBLINGS: (_DIVIDED_OF_LAYER / DIVIDED) ** 2, RUNTIME: 0.8}
"""The shares of the variance of errors that a model has in common on unlike GPUs under one training framework. Of what
several devices take it is the layer's own part. Of what frameworks are off it is fitted to 36 pairs of published steps,
of one model by one framework on unlike GPUs: were errors independent, they would differ by 1.6 times as much."""
UNMEASURED = math.log(2) / REACH_90
"""The spread of what nobody measured (launches, sends): within a factor of two with 90 %."""
_COMMON_SHARE = 0.5
"""The share of the variance that is common to a class, where a model says nothing but a spread."""


@runtime_checkable
class SharesErrors(Protocol):
    """A latency model that knows the share of its errors' variance that a class has in common, shape (operators,)."""

    def common_share(self, operators: Operators, device: Device) -> FloatArray: ...


@runtime_checkable
class KnowsInterval(Protocol):
    """A communication model that tells 90 % intervals of a collective's seconds: lower ends, upper ends, and whether
    they rest on measurements, each in the shape of `num_bytes`.
    """

    def interval(
        self, collective: str, num_bytes: ArrayLike, group: Group
    ) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]: ...


@runtime_checkable
class KnowsFigures(Protocol):
    """A latency model that tells how uncertain a measured figure is: the standard deviation of its logarithm."""

    def figure_spread(self, device: Device, figure: str) -> float: ...


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Spreads:
    """The spreads of prediction errors, for N classes of work (matrix products, all-reduces within hosts, ...).

    An error is a factor from predicted to actual seconds; its spread is the standard deviation of its logarithm.
    """

    common: FloatArray  # the spread of the factor that all work of a class has in common, shape (N,)
    own: FloatArray  # the spread of a layer's own further factor, shape (N,); 0 for collectives, sends and launches
    stated: NDArray[np.bool_]  # whether the cost models themselves told the spread, shape (N,); else it is assumed
    alike: float = DIVIDED_ALIKE  # the share of a layer's own variance that it has on any mesh; the rest is of one

    @classmethod
    def of(cls, sigma: FloatArray, shares: FloatArray, alone: FloatArray, runtime: float = 0.0) -> Spreads:
        """Returns the spreads by class, each of shape (N,), assumed where models tell none (`sigma` is 0).

        All work of a class has `shares` of the variance in common. By the factor `alone`, up to 1, the rest is smaller
        in a layer of several operators, whose errors partly cancel. `runtime` is what steps of the framework are off.
        """
        own = np.zeros(len(CLASSES))
        common = sigma * np.sqrt(shares)
        own[list(COMPUTE)] = (sigma * np.sqrt(1 - shares))[list(COMPUTE)]
        for n, name in enumerate(CLASSES):
            if sigma[n] == 0:
                common[n], own[n] = _assumed(name)
        common[RUNTIME] = runtime
        return cls(common, own * alone, sigma > 0)

    def source(self, seconds: FloatArray, said_by: Sequence[str] = ("the models",)) -> str:
        """Returns in words which models the spreads of prediction errors are from, classes weighted by their predicted
        seconds, shape (N,); `said_by` names the models whose spreads aren't assumed.

        >>> Spreads.of(*np.zeros((3, len(CLASSES)))).source(np.ones(len(CLASSES)))
        'assumed errors of the roofline and of the alpha-beta model'
        """
        computing, sending = np.array([n in COMPUTE for n in range(len(CLASSES))]), np.arange(len(CLASSES)) > LAUNCHES
        names = {"the roofline": computing, "the alpha-beta model": sending}
        assumed = [name for name, part in names.items() if seconds[part & ~self.stated].sum() > seconds[part].sum() / 2]
        whose = ("assumed errors of", assumed) if assumed else ("the errors of", said_by)
        return f"{whose[0]} {' and of '.join(whose[1])}"


def link_class(collective: str, hosts: tuple[int, ...]) -> int:
    """Returns the number of the class of work whose prediction error a collective or send has in common with others: by
    its kind, and whether the hosts of its devices are one or several.

    >>> CLASSES[link_class("send", (0, 1))]
    'send between hosts'
    """
    place = len(set(hosts)) > 1
    return LAUNCHES + 1 + place * len(COLLECTIVES) + COLLECTIVES.index(collective)


def said_by(model: LatencyModel | CommunicationModel) -> str:
    return str(getattr(model, "spread_from", "the models"))


def common_share(model: LatencyModel, operators: Operators, device: Device) -> FloatArray:
    """Returns the `SharesErrors.common_share` of operators as a latency model tells it, or a half if it doesn't."""
    if isinstance(model, SharesErrors):
        return model.common_share(operators, device)
    return np.full(len(operators), _COMMON_SHARE)


def assumed_spread(name: str) -> float:
    """Returns the standard deviation of a logarithm that is assumed for a class of work where models say none."""
    return math.hypot(*_assumed(name))


def _assumed(name: str) -> tuple[float, float]:
    if name in ROOFLINE:
        common, own = ROOFLINE[name]
        return common, OWN_IN_PLANS * own
    if name == CLASSES[DOUBLINGS]:
        return DIVIDED, 0.0
    for place, sigma in ALPHA_BETA.items():
        if name.endswith(place) and not name.startswith("send"):
            return sigma, 0.0
    return UNMEASURED, 0.0
