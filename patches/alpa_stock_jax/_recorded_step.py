"""A training step as a jaxpr in which `alpa.grad` or `alpa.value_and_grad` is one equation that holds the loss's jaxpr.

So the loss can be read and changed before it is cut into layers and differentiated.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import core
from jax._src import source_info_util
from jax.interpreters import partial_eval
from jax.tree_util import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from alpa_stock_jax._micro_batch_results import LOSS

__all__ = ["RecordedStep", "differentiate", "record", "recording"]

_recording: contextvars.ContextVar[bool] = contextvars.ContextVar("alpa_stock_jax_recording", default=False)

_differentiated_p = core.Primitive("differentiated")
_differentiated_p.multiple_results = True


@_differentiated_p.def_abstract_eval
def _results(
    *operands: Any, jaxpr: core.Jaxpr, leaves: tuple[int, ...], names: tuple[str, ...], with_value: bool
) -> list[Any]:
    gradients = [operands[place] for place in leaves]
    return ([var.aval for var in jaxpr.outvars] if with_value else [var.aval for var in jaxpr.outvars[1:]]) + gradients


@dataclasses.dataclass(frozen=True)
class RecordedStep:
    """The jaxpr of a step and of the loss that it differentiates.

    Attributes:
        closed: the step's.
        position: which of its equations differentiates.
    """

    closed: core.ClosedJaxpr
    position: int

    @property
    def jaxpr(self) -> core.Jaxpr:
        """The step's, without its constants."""
        return self.closed.jaxpr

    @property
    def differentiated(self) -> core.JaxprEqn:
        """The equation that differentiates; its operands are the loss's arguments."""
        return self.jaxpr.eqns[self.position]

    @property
    def loss(self) -> core.Jaxpr:
        """The loss's jaxpr; its results are the loss and what else it returns."""
        loss: core.Jaxpr = self.differentiated.params["jaxpr"]
        return loss

    @property
    def leaves(self) -> tuple[int, ...]:
        """The positions of the loss's arguments by which it is differentiated."""
        leaves: tuple[int, ...] = self.differentiated.params["leaves"]
        return leaves

    @property
    def names(self) -> tuple[str, ...]:
        """What the loss's results are called."""
        names: tuple[str, ...] = self.differentiated.params["names"]
        return names

    @property
    def with_value(self) -> bool:
        """Whether the equation gives the loss, too."""
        return bool(self.differentiated.params["with_value"])


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Has `alpa.grad` and `alpa.value_and_grad` record the loss instead of differentiating it."""
    token = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(token)


def record(closed: core.ClosedJaxpr) -> RecordedStep | None:
    """Finds what a step, traced under `recording`, differentiates; None where it isn't exactly one loss.

    Raises:
        ValueError: a loss is differentiated inside of another operation, where it can't be read.
    """
    for eqn in closed.jaxpr.eqns:
        if any(map(_differentiates, core.jaxprs_in_params(eqn.params))):
            place = "another loss" if eqn.primitive is _differentiated_p else eqn.primitive.name
            raise ValueError(
                f"a loss is differentiated inside of {place} ({source_info_util.summarize(eqn.source_info)}), but must "
                "be by the step itself where there are several micro-batches; call alpa.grad outside, or jax.grad"
            )
    positions = [n for n, eqn in enumerate(closed.jaxpr.eqns) if eqn.primitive is _differentiated_p]
    return RecordedStep(closed, positions[0]) if len(positions) == 1 else None


def _differentiates(jaxpr: core.Jaxpr) -> bool:
    return any(
        eqn.primitive is _differentiated_p or any(map(_differentiates, core.jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def differentiate(stock: Callable[..., Any], with_value: bool) -> Callable[..., Any]:
    """As `alpa.grad` or `alpa.value_and_grad`, which is given; records where that is asked for."""

    def transform(fun: Callable[..., Any], *options: Any, **named: Any) -> Callable[..., Any]:
        differentiated = stock(fun, *options, **named)

        def call(*arguments: Any, **keywords: Any) -> Any:
            if not _recording.get():
                return differentiated(*arguments, **keywords)
            return _recorded(fun, with_value, arguments, keywords, *options, **named)

        return call

    return transform


def _recorded(
    fun: Callable[..., Any], with_value: bool, arguments: Sequence[Any], keywords: dict[str, Any],
    argnums: int | Sequence[int] = 0, has_aux: bool = False, **_: Any,
) -> Any:  # fmt: skip
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    numbers = [number % len(arguments) for number in numbers]
    leaves, tree = tree_flatten([arguments[number] for number in numbers])

    def loss(*leaves: Any) -> Any:
        given = list(arguments)
        for number, argument in zip(numbers, tree_unflatten(tree, leaves), strict=True):
            given[number] = argument
        made = fun(*given, **keywords)
        return made if has_aux else (made, ())

    closed, shape = jax.make_jaxpr(loss, return_shape=True)(*leaves)
    jaxpr = partial_eval.convert_constvars_jaxpr(closed.jaxpr)
    places = tuple(range(len(closed.consts), len(jaxpr.invars)))
    paths, aux_tree = tree_flatten_with_path(shape[1])
    names = (LOSS, *(f"the value{keystr(path)} beside the loss" for path, _ in paths))
    made = _differentiated_p.bind(
        *closed.consts, *leaves, jaxpr=jaxpr, leaves=places, names=names, with_value=with_value
    )
    value, made = (made[:1], made[1:]) if with_value else ([], made)
    aux = tree_unflatten(aux_tree, made[: len(paths)])
    gradients = tree_unflatten(tree, made[len(paths) :])
    gradients = gradients[0] if isinstance(argnums, int) else tuple(gradients)
    if with_value:
        return ((value[0], aux) if has_aux else value[0]), gradients
    return (gradients, aux) if has_aux else gradients
