"""Gradients of replicas, each on its part of the batch, and one gradient of them by a rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, final

import jax
import jax.numpy as jnp

from alpa_dejavu.problem import checks
from alpa_dejavu.training._scope import groups_of, parts_of
from alpa_dejavu.training.robust._arrays import cleared, finite_rows
from alpa_dejavu.training.robust._buffers import Buffers, loss_at_offsets
from alpa_dejavu.training.robust._suspects import agreement_of, suspicion_of
from alpa_dejavu.training.robust.rules import Aggregated, Evidence, Rule, Zeno, ZenoPlusPlus
from alpa_dejavu.training.robust.rules import rule as chosen_rule

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PyTree

    from alpa_dejavu.training._scope import Loss, StageOf
    from alpa_dejavu.training.robust._arrays import Each, Gradient, Gradients, Rows


class RobustState(NamedTuple):
    """The part of the train state that robust gradients need; a pytree, for checkpoints too: zeros [N, ...] for each
    parameter, by which gradients are taken (None where none are needed), and for each group the rule's state.
    """

    offsets: Gradients | None
    rules: dict[str, PyTree]


class Judged(NamedTuple):
    """The gradient of a step, and what it says of the replicas.

    Attributes:
        suspicion: for each group each replica's distance from the gradient over the median distance.
        agreement: for each group each replica's cosine with the gradient less its own share in it; 0 where it isn't
            finite.
    """

    gradients: Gradient
    suspicion: dict[str, Each]
    agreement: dict[str, Each]
    weights: dict[str, Each]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class RobustValueAndGrad:
    """A function of parameters, a batch and a state, made by `robust_value_and_grad`."""

    loss: Loss
    rule: Rule
    replicas: int
    scope: str
    stage_of: StageOf | None
    value_and_grad: Callable[..., Any]
    joined: bool

    def init(self, params: PyTree, *, offsets: bool = False) -> RobustState:
        """Returns the state of the beginning; raises ValueError where the rule needs more replicas.

        With `offsets` gradients are taken by zero offsets, which pipelines of Alpa need; they take as much memory as
        each device's share of the replicas' parameters.
        """
        buffers = self._buffers(params, offsets)
        shapes = jax.tree.map(
            lambda p: jax.ShapeDtypeStruct((self.replicas, *jnp.shape(p)), jnp.result_type(p)), params
        )

        def zeros() -> Gradients:
            return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def states() -> dict[str, PyTree]:
            evidence = Evidence(jnp.zeros(self.replicas), jax.tree.map(lambda x: x[0], zeros()))
            results = self._aggregated(buffers, zeros(), None, evidence)[1]
            return {group: result.state for group, result in results.items()}

        # A rule's first state is zeros, by the conformance suite.
        rules = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(states))
        return RobustState(zeros() if offsets else None, rules)

    def __call__(
        self, params: PyTree, batch: PyTree, state: RobustState, *, fresh: PyTree = None, descent: Each | None = None,
        tamper: Callable[[Gradients], Gradients] | None = None,
    ) -> tuple[Float[Array, ""], Judged, RobustState]:  # fmt: skip
        """Returns the mean loss of the replicas, the judged gradient, and the next state.

        Args:
            batch: a pytree of arrays with the samples first; replica i has the i-th part of them.
            descent: for Zeno the descents that `score` gave; None: they are computed here, of fresh samples.
            tamper: changes the replicas' gradients [N, ...] before the rule, to try attacks.

        Raises:
            ValueError: the batch doesn't divide by the replicas, or fresh samples are missing.
        """
        losses, gradients = self.of_each(params, batch, state)
        gradients = gradients if tamper is None else tamper(gradients)
        results = self.judge(params, gradients, state, fresh=fresh, descent=descent)
        return losses, *results

    def of_each(self, params: PyTree, batch: PyTree, state: RobustState) -> tuple[Float[Array, ""], Gradients]:
        """Returns the mean loss of the replicas, and the gradient of each, leaves [N, ...]."""
        parts_of(batch, self.replicas)  # what doesn't divide is told before anything is traced

        def total(moved: Gradients) -> Float[Array, ""]:
            parts = parts_of(batch, self.replicas)  # in here, as Alpa takes what is outside for no layer's
            if state.offsets is None:
                return jnp.sum(jax.vmap(self.loss)(moved, parts))
            losses = jax.vmap(lambda offsets, part: loss_at_offsets(self.loss, params, offsets, part))
            return jnp.sum(losses(moved, parts))

        every = state.offsets
        if every is None:
            every = jax.tree.map(lambda p: jnp.broadcast_to(p, (self.replicas, *jnp.shape(p))), params)
        value, gradients = self.value_and_grad(total)(every)
        return value / self.replicas, gradients

    def judge(
        self, params: PyTree, gradients: Gradients, state: RobustState, *, fresh: PyTree = None,
        descent: Each | None = None,
    ) -> tuple[Judged, RobustState]:  # fmt: skip
        """Returns the judged gradient of the replicas' gradients, and the next state."""
        evidence = self._evidence(params, gradients, fresh, descent)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), gradients)
        buffers = self._buffers(shapes, state.offsets is not None)
        filled, results = self._aggregated(buffers, gradients, state.rules, evidence)
        judged = Judged(
            buffers.emptied({group: result.gradient for group, result in results.items()}),
            {group: suspicion_of(filled[group], result) for group, result in results.items()},
            {group: agreement_of(filled[group], result) for group, result in results.items()},
            {group: result.weights for group, result in results.items()},
        )
        offsets = None if state.offsets is None else jax.tree.map(_zeros_beside, gradients)
        return judged, RobustState(offsets, {group: result.state for group, result in results.items()})

    def score(self, params: PyTree, gradients: Gradients, fresh: PyTree) -> Each:
        """Returns for each replica minus the loss on fresh samples after a step along its gradient.

        It is forward passes alone, of the replicas' parameters side by side, so that it can be parallelized by itself.
        """
        if not isinstance(self.rule, Zeno):
            raise ValueError(f"rule is {self.rule}, but must be a Zeno to have scores; choose it, or don't score")
        return -self._losses_after(params, gradients, fresh, self.rule.rate)

    def descents(self, params: PyTree, gradients: Gradients, fresh: PyTree, rate: float) -> Each:
        """Returns for each replica by how much a step along its gradient lowers the loss on fresh samples.

        It is what `Suspects.seen` takes beside a step's signs. Fresh are samples that no replica has computed on.
        """
        return self.loss(params, fresh) - self._losses_after(params, gradients, fresh, rate)

    def _losses_after(self, params: PyTree, gradients: Gradients, fresh: PyTree, rate: float) -> Each:
        return jax.vmap(lambda g: loss_at_offsets(self.loss, params, g, fresh, -rate))(gradients)

    def _evidence(self, params: PyTree, gradients: Gradients, fresh: PyTree, descent: Each | None) -> Evidence | None:
        needs = isinstance(self.rule, (Zeno, ZenoPlusPlus)) and descent is None
        if needs and fresh is None:
            raise ValueError(f"fresh is None, but must be samples to judge by for {self.rule}; give a batch of them")
        if isinstance(self.rule, Zeno):
            if descent is None:
                descent = self.score(params, cleared(gradients, finite_rows(gradients)), fresh)
            return Evidence(descent=descent)
        if isinstance(self.rule, ZenoPlusPlus):
            return Evidence(trusted=jax.grad(self.loss)(params, fresh))
        return None

    def _buffers(self, params: PyTree, staged: bool) -> Buffers:
        return Buffers.of(params, self.replicas, self.scope, self.stage_of, self.joined, staged)

    def _aggregated(
        self, buffers: Buffers, gradients: Gradients, states: dict[str, PyTree] | None, evidence: Evidence | None
    ) -> tuple[dict[str, list[Rows]], dict[str, Aggregated]]:
        """Each group's buffers, and what the rule makes of them."""
        filled, evidences = buffers.filled(gradients), dict.fromkeys(buffers.groups, evidence)
        if evidence is not None and evidence.trusted is not None:
            rows = buffers.filled(jax.tree.map(lambda x: x[None], evidence.trusted))
            evidences = {group: evidence._replace(trusted=[x[0] for x in buffer]) for group, buffer in rows.items()}
        return filled, {group: self.rule.aggregate(buffer, None if states is None else states[group], evidences[group])
                        for group, buffer in filled.items()}  # fmt: skip


def robust_value_and_grad(
    loss: Loss, rule: str | Rule, replicas: int, scope: str = "stage",
    stage_of: StageOf | None = None, value_and_grad: Callable[..., Any] = jax.value_and_grad,
    joined: bool = True,
) -> RobustValueAndGrad:  # fmt: skip
    """Returns a function to be used in place of `jax.value_and_grad(loss)`, or of Alpa's, in a train step.

    Each replica's gradient is a row of a leading axis, which is sharded over the data-parallel devices like the batch.

    Args:
        replicas: into how many parts the batch is cut, N.
        scope: "whole": all parameters of a replica are judged as one; "stage": those of each stage by themselves, for
            which nothing is sent between stages; "leaf": each array.
        joined: whether a group's gradients are put one after the other into one array for the rule, by which it is few
            operators and one exchange. Without it, parameters that are cut over devices themselves stay cut.

    Raises:
        ValueError: there are no such rule or scope, or too few replicas.

    Examples:
        >>> loss = lambda params, batch: jnp.mean((batch["x"] * params["w"] - batch["y"]) ** 2)
        >>> gradient = robust_value_and_grad(loss, "median", replicas=3)
        >>> params = {"w": jnp.array(0.0)}
        >>> batch = {"x": jnp.ones(3), "y": jnp.array([1.0, 1.0, -100.0])}
        >>> value, judged, state = gradient(params, batch, gradient.init(params))
        >>> float(judged.gradients["w"]), judged.suspicion["w"].tolist()
        (-2.0, [0.0, 0.0, inf])
    """
    checks.count("robust value and grad", "replicas", replicas)
    groups_of({}, scope, stage_of)
    return RobustValueAndGrad(loss, chosen_rule(rule), replicas, scope, stage_of, value_and_grad, joined)


def _zeros_beside(gradient: Rows) -> Rows:
    """Zeros that Alpa keeps where the gradient is: of an input that is returned, or a constant, it wouldn't know."""
    return jnp.where(gradient == 0, jnp.zeros_like(gradient), jnp.zeros_like(gradient))
