"""Faults of training data: samples removed, doubled or mislabelled, and how accurate a model is after training.

In: training data, a function that trains on some, and data to judge by. Out: accuracies against the share of samples.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.problem import checks
from alpa_dejavu.training.resilience._measure import Point, Resilience
from alpa_dejavu.training.resilience._subject import Subject, accuracy, checked_shares

if TYPE_CHECKING:
    from jaxtyping import Array, PRNGKeyArray, PyTree, Shaped

    from alpa_dejavu.training.resilience._subject import Data, Judge, Model

    Samples: TypeAlias = Shaped[Array, "samples ..."]

__all__ = ["DATA_FAULTS", "DataFault", "Doubled", "Mislabelled", "RemovedSamples", "data_resilience"]


class DataFault(abc.ABC):
    """An interface of faults that training data may have."""

    @abc.abstractmethod
    def faulty(self, inputs: Samples, targets: Samples, count: int, key: PRNGKeyArray) -> tuple[Samples, Samples]:
        """Returns inputs and targets with so many faulty samples, all sets of them as likely.

        It is a pure function of JAX but for the count, on which shapes depend.
        """


@final
@dataclasses.dataclass(frozen=True)
class RemovedSamples(DataFault):
    """Samples that aren't there."""

    def faulty(self, inputs: Samples, targets: Samples, count: int, key: PRNGKeyArray) -> tuple[Samples, Samples]:
        left = jnp.sort(jax.random.permutation(key, len(targets))[count:])
        return inputs[left], targets[left]


@final
@dataclasses.dataclass(frozen=True)
class Doubled(DataFault):
    """Samples that are there twice, the second time at the end."""

    def faulty(self, inputs: Samples, targets: Samples, count: int, key: PRNGKeyArray) -> tuple[Samples, Samples]:
        again = jax.random.permutation(key, len(targets))[:count]
        return jnp.concatenate([inputs, inputs[again]]), jnp.concatenate([targets, targets[again]])


@final
@dataclasses.dataclass(frozen=True)
class Mislabelled(DataFault):
    """Samples whose target is another one of so many classes, 0..classes - 1, each as likely."""

    classes: int = 10

    def faulty(self, inputs: Samples, targets: Samples, count: int, key: PRNGKeyArray) -> tuple[Samples, Samples]:
        of_samples, of_classes = jax.random.split(key)
        hit = jax.random.permutation(of_samples, len(targets)) < count
        step = jax.random.randint(of_classes, targets.shape, 1, self.classes)
        hit = hit.reshape(-1, *[1] * (targets.ndim - 1))
        return inputs, jnp.where(hit, (targets + step) % self.classes, targets)


DATA_FAULTS: dict[str, type[DataFault]] = {"removed": RemovedSamples, "doubled": Doubled, "mislabelled": Mislabelled}
"""For each name the fault of training data, a frozen dataclass."""


def data_resilience(
    apply_fn: Model,
    train_fn: Callable[[PyTree, PyTree, PRNGKeyArray], PyTree],
    data: Data,
    held_out: Data,
    faults: Sequence[str | DataFault] = tuple(DATA_FAULTS),
    *,
    shares: Sequence[float] = (0.1, 0.3, 0.5),
    masks: int = 5,
    judge: Judge = accuracy,
    side_by_side: bool = True,
    seed: int = 0,
) -> Resilience:
    """Returns how accurate a model is that was trained with a share of faulty samples, for each fault and share.

    Args:
        train_fn: takes inputs, targets and a random key, and returns trained parameters. It must be a pure function of
            JAX where trainings run side by side. Trainings of the same number get the same key, whatever the fault.
        shares: of the samples, from 0 to 1; where samples are removed, below 1.
        judge: what is measured; the share of targets that the largest output names.
        side_by_side: whether the trainings of a share run side by side by `vmap`; if not, `train_fn` may do anything.

    Returns:
        Points whose judgements are those of the trainings; `base` is the mean of trainings on the data as they are.

    Raises:
        ValueError: a share isn't one, or data don't fit; before anything is trained.
    """
    checks.count("data_resilience", "masks", masks)
    ascending = checked_shares(shares)
    every = [resolve("data fault", choice, DATA_FAULTS, DataFault) for choice in faults]  # type: ignore[type-abstract]
    inputs, targets = map(jnp.asarray, data)
    if not 0 < len(inputs) == len(targets):
        raise ValueError(f"data is {len(inputs)} inputs and {len(targets)} targets, but must be as many of both; give "
                         "each sample its target")  # fmt: skip
    if ascending[-1] == 1 and any(isinstance(data_fault, RemovedSamples) for data_fault in every):
        raise ValueError("shares has 1.0, but must be below 1 where samples are removed; leave some to train on")
    shape = jax.eval_shape(train_fn, inputs, targets, jax.random.PRNGKey(0)) if side_by_side else None
    if shape is not None:
        abstract = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shape)
        Subject.checked(apply_fn, abstract, held_out, judge)
    keys = jax.random.split(jax.random.PRNGKey(seed), masks)

    def trained(data_fault: DataFault, count: int) -> PyTree:
        def once(key: PRNGKeyArray) -> PyTree:
            of_data, of_training = jax.random.split(key)
            params = train_fn(*data_fault.faulty(inputs, targets, count, of_data), of_training)
            subject = Subject(apply_fn, params, jnp.asarray(held_out[0]), jnp.asarray(held_out[1]), judge)
            return subject.judged(apply_fn(params, subject.inputs))

        if side_by_side:
            return jax.jit(jax.vmap(once))(keys)
        judgements = [once(key) for key in keys]
        return [judged for judged, _ in judgements], [not_finite for _, not_finite in judgements]

    points = []
    for data_fault in every:
        name = next((name for name, kind in DATA_FAULTS.items() if type(data_fault) is kind), str(data_fault))
        for share in ascending:
            count = math.floor(share * len(targets) + 0.5)
            judged, not_finite = (np.asarray(figures, float) for figures in trained(data_fault, count))
            points.append(Point(name, "", share, count, judged, not_finite))
    base = float(np.mean(np.asarray(trained(RemovedSamples(), 0)[0], float)))
    return Resilience("samples", (), len(targets), base, tuple(points))
