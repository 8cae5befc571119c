"""The k parts whose loss harms most and least: by gradient, curvature, greedily or exactly, certified by trying.

In: a model, data and parts. Out: a score for each part, or the chosen parts with what losing them together does.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu._util.near_names import near
from alpa_dejavu.problem import checks
from alpa_dejavu.training.resilience._subject import Subject, accuracy, cross_entropy, found_parts, struck
from alpa_dejavu.training.resilience.faults import UnitFault, fault
from alpa_dejavu.training.resilience.parts import Parts

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PyTree

    from alpa_dejavu.training.resilience._subject import Data, Judge, Model

    Harms: TypeAlias = Float[np.ndarray, " units"]
    Sets: TypeAlias = Bool[np.ndarray, "sets units"]

__all__ = ["SCORES", "WAYS", "ChosenParts", "chosen_parts", "harms", "judged_without"]


def taylor(subject: Subject, parts: Parts, faulty: UnitFault, second: bool) -> Harms:
    """Returns the change gᵀδ + ½ δᵀHδ of the loss for each unit, whose fault changes parameters by δ; or gᵀδ alone."""
    key = jax.random.PRNGKey(0)

    def loss(params: PyTree) -> Float[Array, ""]:
        return subject.judge(subject.apply_fn(params, subject.inputs), subject.targets)

    def change(hit: Bool[Array, " units"]) -> PyTree:
        broken = faulty.faulty(subject.params, parts, hit, key)
        return jax.tree.map(jnp.subtract, broken, subject.params)

    def along(left: PyTree, other: PyTree) -> Float[Array, ""]:
        products = jax.tree.map(lambda a, b: jnp.sum(a * b), left, other)
        return sum(jax.tree.leaves(products))

    @jax.jit
    def scores(units: Int[Array, " units"]) -> Float[Array, " units"]:
        gradient = jax.grad(loss)(subject.params)

        def score(unit: Int[Array, ""]) -> Float[Array, ""]:
            delta = change(jnp.arange(parts.count) == unit)
            first = along(gradient, delta)
            if not second:
                return first
            curved = jax.jvp(jax.grad(loss), (subject.params,), (delta,))[1]
            return first + along(curved, delta) / 2

        return jax.lax.map(score, units)

    return np.asarray(scores(jnp.arange(parts.count)), float)


SCORES = ("gradient", "curvature", "tried")
WAYS = (*SCORES, "greedy", "exact")
MOST_SETS = 50_000


@final
@dataclasses.dataclass(frozen=True)
class ChosenParts:
    """Parts that were chosen, with what the model does without them.

    Attributes:
        loss_before, loss: of the model without a fault, and with it in all of these parts together.
        accuracy_before, accuracy: likewise; on data that aren't classes NaN.
    """

    units: tuple[int, ...]
    names: tuple[str, ...]
    loss_before: float
    loss: float
    accuracy_before: float
    accuracy: float


def harms(
    apply_fn: Model,
    params: PyTree,
    data: Data,
    parts: str | Parts = "neurons",
    *,
    by: str = "tried",
    faulty: str | UnitFault = "removed",
    loss: Judge = cross_entropy,
) -> Harms:
    """Returns for each part by how much its loss alone raises the loss; model and data are as `resilience` takes them.

    By "tried" it is measured; "gradient" and "curvature" are Taylor's sum up to the first and the second term, for what
    the fault changes in parameters. A fault that draws has the random key 0.

    Raises:
        ValueError: there is no such way, the data don't fit, or the parts are of activations, which can only be tried.

    References:
        LeCun, Denker and Solla, Optimal Brain Damage, NIPS 1989. Molchanov et al., Pruning Convolutional Neural
        Networks for Resource Efficient Inference, ICLR 2017.
    """
    if by not in SCORES:
        raise ValueError(f"by is {by!r}, but must be one of {', '.join(SCORES)}{near(by, SCORES)}; name one")
    subject, units, what = _checked(apply_fn, params, data, parts, faulty, loss)
    singles = np.eye(units.count, dtype=bool)
    if by == "tried":
        losses = _losses_without(subject, units, np.vstack([np.zeros((1, units.count), bool), singles]), what)
        return losses[1:] - losses[0]
    if units.kind.startswith("activations"):
        raise ValueError(f"by is {by!r}, but must be 'tried' for {units.kind}; the parameters don't have them")
    return taylor(subject, units, what, second=by == "curvature")


def chosen_parts(
    apply_fn: Model,
    params: PyTree,
    data: Data,
    parts: str | Parts,
    k: int,
    *,
    by: str = "greedy",
    least: bool = False,
    at_once: int = 1,
    faulty: str | UnitFault = "removed",
    loss: Judge = cross_entropy,
    judged: Data | None = None,
) -> ChosenParts:
    """Returns the k parts whose loss together harms most, or least, as far as a way finds them.

    Args:
        by: one of `WAYS`: "greedy" takes the parts that harm most (least) beside those taken already; "exact" tries all
            sets, up to 50,000 of them; others take the highest (lowest) scores.
        at_once: parts that a greedy step takes, by their harm alone beside those taken already.
        judged: inputs and targets by which the choice is certified; None: the same data.

    Raises:
        ValueError: there is no such way, k isn't a number of parts, or there are too many sets to be tried.
    """
    if by not in WAYS:
        raise ValueError(f"by is {by!r}, but must be one of {', '.join(WAYS)}{near(by, WAYS)}; name one")
    subject, units, what = _checked(apply_fn, params, data, parts, faulty, loss)
    checks.count("chosen_parts", "at_once", at_once)
    if not 1 <= k <= units.count:
        raise ValueError(f"k is {k}, but must be of 1 to {units.count}, the number of {units.kind}; give another one")
    certified = Subject.checked(apply_fn, params, judged, loss) if judged is not None else subject
    if by == "exact":
        chosen = _exact(subject, units, what, k, least)
    elif by == "greedy":
        chosen = _greedy(subject, units, what, k, least, at_once)
    else:
        score = harms(apply_fn, params, data, units, by=by, faulty=what, loss=loss)
        chosen = _ordered(score, least)[:k]
    sets = np.zeros((2, units.count), bool)
    sets[1, chosen] = True
    losses = _losses_without(certified, units, sets, what)
    classes = jnp.issubdtype(certified.targets.dtype, jnp.integer)
    right = dataclasses.replace(certified, judge=accuracy) if classes else None
    accuracies = _losses_without(right, units, sets, what) if right is not None else np.full(2, math.nan)
    return ChosenParts(tuple(chosen), tuple(map(units.name, chosen)), *map(float, (*losses, *accuracies)))


def judged_without(
    apply_fn: Model,
    params: PyTree,
    data: Data,
    parts: str | Parts,
    sets: Sets,
    *,
    faulty: str | UnitFault = "removed",
    judge: Judge = accuracy,
) -> Float[np.ndarray, " sets"]:
    """Returns what a judge (as in `resilience`) says of a model with each set of parts faulty together."""
    subject, units, what = _checked(apply_fn, params, data, parts, faulty, judge)
    wanted = np.asarray(sets, bool)
    if wanted.ndim != 2 or wanted.shape[1] != units.count or not len(wanted):
        raise ValueError(f"sets is of shape {wanted.shape}, but must be of one set or more of {units.count} units; "
                         "give a row for each set")  # fmt: skip
    return _losses_without(subject, units, wanted, what)


def _losses_without(subject: Subject, parts: Parts, sets: Sets, faulty: UnitFault) -> Float[np.ndarray, " sets"]:
    key, model = jax.random.PRNGKey(0), struck(subject.apply_fn, faulty, parts)

    @jax.jit
    def losses(some: Bool[Array, "sets units"]) -> Float[Array, " sets"]:
        return jax.lax.map(lambda hit: subject.judged(model(subject.params, subject.inputs, hit, key))[0], some)

    # All calls have as many sets, so that one program does.
    size = min(len(sets), 1024)
    filled = np.concatenate([sets, np.zeros((-len(sets) % size, sets.shape[1]), bool)])
    chosen = [np.asarray(losses(filled[first : first + size]), float) for first in range(0, len(filled), size)]
    return np.concatenate(chosen)[: len(sets)]


def _checked(
    apply_fn: Model, params: PyTree, data: Data, parts: str | Parts, faulty: str | UnitFault, loss: Judge
) -> tuple[Subject, Parts, UnitFault]:
    subject = Subject.checked(apply_fn, params, data, loss)
    return subject, found_parts(subject, parts), fault(faulty)


def _ordered(scores: Harms, least: bool) -> list[int]:
    """Returns units by descending harm, or ascending; of equal ones the first; NaN counts as the most harm."""
    harm = np.nan_to_num(scores, nan=np.inf, posinf=np.inf, neginf=-np.inf)
    return [int(unit) for unit in np.argsort(harm if least else -harm, kind="stable")]


def _greedy(subject: Subject, parts: Parts, faulty: UnitFault, k: int, least: bool, at_once: int) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < k:
        sets = np.zeros((parts.count, parts.count), bool)
        sets[:, chosen] = True
        np.fill_diagonal(sets, True)
        order = _ordered(_losses_without(subject, parts, sets, faulty), least)
        chosen += [unit for unit in order if unit not in chosen][: min(at_once, k - len(chosen))]
    return chosen


def _exact(subject: Subject, parts: Parts, faulty: UnitFault, k: int, least: bool) -> list[int]:
    count = math.comb(parts.count, k)
    if count > MOST_SETS:
        raise ValueError(f"k is {k} of {parts.count} {parts.kind}, but must make at most {MOST_SETS} sets, not "
                         f"{count}, to be tried exactly; take by='greedy'")  # fmt: skip
    every = list(itertools.combinations(range(parts.count), k))
    sets = np.zeros((count, parts.count), bool)
    np.put_along_axis(sets, np.array(every), True, axis=1)
    return list(every[_ordered(_losses_without(subject, parts, sets, faulty), least)[0]])
