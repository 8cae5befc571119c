"""The result that planning hands over to whoever prints, draws or runs it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

from alpa_dejavu.planning.search.price import PricedPlan, price_per_step
from alpa_dejavu.problem import Cluster, Confidence, Model, Plan, Run, SearchSpace, StageChoice

if TYPE_CHECKING:
    from alpa_dejavu.costs.table import CostTable
    from alpa_dejavu.planning.rivals import StrategyPlan
    from alpa_dejavu.simulation.step import Timeline

__all__ = ["OURS", "STRATEGIES", "PlanningResult", "RunnerUp", "UnlikePipelinesError"]

OURS = "dejavu"
STRATEGIES = ("alpa", "amp", OURS, "hetpipe", "megatron", "pipelines")
"""By whose search a plan may be made: see `alpa_dejavu.planning.rivals`."""


@final
@dataclasses.dataclass(frozen=True)
class RunnerUp:
    """A plan that was nearly chosen, and the reason why it wasn't.

    Attributes:
        plan: the plan that wasn't chosen.
        why: a few words that say why it loses against the chosen one.
    """

    plan: Plan
    why: str


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PlanningResult:
    """The result of planning: the best plan, with the problem, costs and timeline that it was made from.

    Attributes:
        plan: the best plan.
        model: the layers, of one of the plan's micro-batches.
        cluster: the cluster that was planned for.
        space: the submeshes and configs that stages could have.
        run: the plan's number of micro-batches, and its schedule.
        table: what every range of layers costs on every submesh.
        timeline: the plan's step, simulated.
        choices: the plan's stages as indices into `table`: first and last layer, submesh, config.
        runners_up: the next best plans, best first.
        front: for the objective "pareto", the plans of which no other is both as fast and as cheap, the fastest first;
            else empty.
        contenders: where a task asks for them, other plans that may be the fastest on real devices, as far as the
            errors of predictions tell, the one that is most worth trying first; else empty.
    """

    plan: Plan
    model: Model
    cluster: Cluster
    space: SearchSpace
    run: Run
    table: CostTable
    timeline: Timeline
    choices: tuple[StageChoice, ...] = ()
    runners_up: tuple[RunnerUp, ...] = ()
    front: tuple[PricedPlan, ...] = ()
    contenders: tuple[Plan, ...] = ()

    @property
    def confidence(self) -> Confidence | None:
        """Returns how probable it is that the plan is nearly the best of those compared; None if none were compared."""
        return self.plan.confidence

    @property
    def samples_per_s(self) -> float | None:
        """Returns the plan's training throughput in samples per second; None where its batch isn't known."""
        return None if self.plan.batch is None else self.plan.batch / self.plan.step_s

    @property
    def price_per_step(self) -> float | None:
        """Returns the price of a step on the hosts that the plan uses; None where a host's price isn't known."""
        return price_per_step(self.plan, self.cluster)

    @property
    def model_flop(self) -> float:
        """Returns the FLOP of a step's matrix products and convolutions, not counting what remat computes again."""
        return sum(self.model.product_flop.values()) * self.run.num_micro_batches

    @property
    def flop_utilisation(self) -> float:
        """Returns the model FLOP utilisation: a step's model FLOP over what the plan's devices could do meanwhile.

        Each operator counts at its own dtype's rate; hosts that the plan leaves unused don't count.

        References:
            Chowdhery et al., PaLM: Scaling Language Modeling with Pathways, 2022, appendix B.
        """
        used = {name for stage in self.plan.stages for name in stage.hosts}
        hosts = [host for host in self.cluster.hosts if host.name in used] or self.cluster.hosts
        ideal_s = sum(
            flop / sum(host.num_devices * host.device.rate(dtype) for host in hosts)
            for dtype, flop in self.model.product_flop.items()
        )
        return ideal_s * self.run.num_micro_batches / self.plan.step_s


@final
class UnlikePipelinesError(ValueError):
    """An error that says that a strategy's plan has several pipelines that aren't alike, and so isn't one row of stages
    as other plans are.

    Attributes:
        made: the plan, with its pipelines.
        cluster: the cluster that it is for.
    """

    def __init__(self, made: StrategyPlan, cluster: Cluster) -> None:
        super().__init__(
            f"strategy is {made.strategy!r}, whose {len(made.pipelines)} pipelines are unlike here, but must be one "
            "whose plan is a row of stages, for Alpa to run it and for files to hold it; take 'dejavu', the best "
            "single pipeline"
        )
        self.made, self.cluster = made, cluster
