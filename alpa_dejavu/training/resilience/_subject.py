"""A model, its data and its judge, checked before anything runs; and the model with a fault in some of its parts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu._util.near_names import near
from alpa_dejavu.training.resilience.activations import ProductSite, activation_parts, with_strikes, without
from alpa_dejavu.training.resilience.faults import Removed, UnitFault
from alpa_dejavu.training.resilience.find import KINDS, find_parts
from alpa_dejavu.training.resilience.parts import Parts

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

    from alpa_dejavu.training.resilience.activations import Model

    Judge: TypeAlias = Callable[[Array, Array], Float[Array, ""]]
    """Takes a model's outputs and the targets."""
    StruckModel: TypeAlias = Callable[[PyTree, PyTree, Bool[Array, " units"], PRNGKeyArray], Array]
    Data: TypeAlias = tuple[PyTree, PyTree]
    """Inputs and targets, arrays whose first dimension is that of the samples."""

_ACTIVATIONS = {"activations": "features", "values": "values"}


def accuracy(outputs: Float[Array, "... classes"], targets: Int[Array, " ..."]) -> Float[Array, ""]:
    """Returns the share of targets that the largest of the outputs names; an output that isn't finite names none."""
    finite = jnp.isfinite(outputs).all(axis=-1)
    return jnp.mean((jnp.argmax(outputs, axis=-1) == targets) & finite)


def cross_entropy(outputs: Float[Array, "... classes"], targets: Int[Array, " ..."]) -> Float[Array, ""]:
    """Returns the mean cross-entropy of outputs as logits of targets; infinity where an output isn't finite."""
    logs = jax.nn.log_softmax(outputs)
    loss = -jnp.mean(jnp.take_along_axis(logs, targets[..., None], axis=-1))
    return jnp.where(jnp.isnan(loss), jnp.inf, loss)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model with data that it is judged by: inputs and targets, whose first dimension is that of the samples."""

    apply_fn: Model
    params: PyTree
    inputs: PyTree[Float[Array, "samples ..."]]
    targets: PyTree[Float[Array, "samples ..."]]
    judge: Judge = accuracy

    @classmethod
    def checked(cls, apply_fn: Model, params: PyTree, data: Data, judge: Judge = accuracy) -> Subject:
        """Returns a subject whose model takes its data, by shapes alone; raises ValueError where it doesn't."""
        if not (isinstance(data, Sequence) and len(data) == 2):
            raise ValueError(f"data is {type(data).__name__}, but must be (inputs, targets); give both")
        inputs, targets = (jax.tree.map(jnp.asarray, part) for part in data)
        counts = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves((inputs, targets))}
        if len(counts) != 1 or 0 in counts:
            raise ValueError(f"data is of {sorted(counts)} samples, but must be of as many inputs as targets, and of "
                             "one at least; give each sample its target")  # fmt: skip
        params = jax.tree.map(jnp.asarray, params)
        subject = cls(apply_fn, params, inputs, targets, judge)
        try:
            outputs = jax.eval_shape(apply_fn, params, inputs)
            judged = jax.eval_shape(judge, outputs, targets)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
            message = str(error).partition("\n")[0]
            raise ValueError(f"data is of shapes {_shapes(inputs)} and {_shapes(targets)}, but must fit apply_fn and "
                             f"its judge: {message}; give data that the model takes") from error  # fmt: skip
        if judged.shape != () or (judge in (accuracy, cross_entropy) and outputs.shape[:-1] != targets.shape):
            raise ValueError(f"targets is of shape {targets.shape}, but must be {outputs.shape[:-1]}, that of outputs "
                             "without their classes; give targets that fit, or another judge")  # fmt: skip
        return subject

    def judged(self, outputs: Float[Array, "samples ..."]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns what the judge says of outputs, and the share of samples with an output that isn't finite."""
        rows = outputs.reshape(len(outputs), -1)
        return self.judge(outputs, self.targets), jnp.mean(~jnp.isfinite(rows).all(axis=1))


def struck(apply_fn: Model, fault: UnitFault, parts: Parts) -> StruckModel:
    """Returns a model that takes parameters, inputs, which units are hit, and a key; the fault is in its weights, or in
    its activations if the parts are of these; units of weights that are removed put out zero.
    """
    if not parts.kind.startswith("activations"):
        # Units of groups without a product, such as tables, are removed by their weights alone.
        is_removed = isinstance(fault, Removed)
        return lambda params, inputs, hit, key: (without(apply_fn, parts, hit) if is_removed else apply_fn)(
            fault.faulty(params, parts, hit, key), inputs
        )

    def run(params: PyTree, inputs: PyTree, hit: Bool[Array, " units"], key: PRNGKeyArray) -> Array:
        def strike(number: int, site: ProductSite, values: Array) -> Array:
            return fault.faulty((values,), parts.alone(number), hit, jax.random.fold_in(key, number))[0]

        return with_strikes(apply_fn, strike)(params, inputs)

    return run


def found_parts(subject: Subject, wanted: str | Parts) -> Parts:
    """Returns the parts that a kind stands for, "activations" and "values" among them, or the wanted ones themselves;
    raises ValueError where the model has none of that kind, or others.
    """
    if isinstance(wanted, str) and wanted in _ACTIVATIONS:
        return activation_parts(subject.apply_fn, subject.params, subject.inputs, _ACTIVATIONS[wanted])
    if isinstance(wanted, str):
        kinds = (*KINDS, *_ACTIVATIONS)
        if wanted not in kinds:
            raise ValueError(
                f"parts is {wanted!r}, but must be one of {', '.join(kinds)}{near(wanted, kinds)}; name one"
            )
        return find_parts(subject.params, wanted)
    shapes = tuple(tuple(leaf.shape) for leaf in jax.tree.leaves(subject.params))
    if not wanted.kind.startswith("activations") and wanted.shapes != shapes:
        raise ValueError(f"parts is of arrays {wanted.shapes}, but must be of the model's, {shapes}; find them in "
                         "these parameters")  # fmt: skip
    if not wanted.count:
        raise ValueError("parts is empty, but must have a unit; name parts that the model has")
    return wanted


def checked_shares(shares: Sequence[float]) -> tuple[float, ...]:
    """Returns shares in ascending order, each once; raises ValueError for none, or one outside of 0 to 1."""
    for share in shares:
        if not (math.isfinite(share) and 0 <= share <= 1):
            raise ValueError(f"shares has {share}, but must be of 0 to 1; 0.1 is 10 %")
    if not len(shares):
        raise ValueError("shares is empty, but must have one at least; give shares such as (0.05, 0.1, 0.2)")
    return tuple(sorted({float(share) for share in shares}))


def _shapes(tree: PyTree) -> str:
    return ", ".join(str(tuple(np.shape(leaf))) for leaf in jax.tree.leaves(tree))
