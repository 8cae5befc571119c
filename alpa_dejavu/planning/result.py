"""The result that planning hands over to whoever prints, draws or runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, final

from alpa_dejavu._util.ties import TOLERANCE, ordered
from alpa_dejavu.clusters.space import PLAIN_CHOICES, DivisionChoices
from alpa_dejavu.layers.models import transformer_size
from alpa_dejavu.problem import Cluster, Confidence, Model, Plan, Run, SearchSpace, StageChoice
from alpa_dejavu.simulation.breakdown import AS_FAST, why_slower

if TYPE_CHECKING:
    from alpa_dejavu.costs.table import CostTable
    from alpa_dejavu.simulation.step import Timeline

OURS = "dejavu"
STRATEGIES = ("alpa", "amp", OURS, "hetpipe", "megatron", "pipelines")
"""By whose search a plan may be made: see `alpa_dejavu.planning.rivals`."""


@final
@dataclasses.dataclass(frozen=True)
class RunnerUp:
    """A plan that was nearly chosen, and in a few words why it loses against the chosen one."""

    plan: Plan
    why: str


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PlanningResult:
    """The result of planning: the best plan, with the problem, costs and timeline that it was made from."""

    plan: Plan
    model: Model  # the layers, of one of the plan's micro-batches
    cluster: Cluster
    space: SearchSpace  # the submeshes and configs that stages could have
    run: Run  # the plan's number of micro-batches, and its schedule
    table: CostTable  # what every range of layers costs on every submesh
    simulated: Callable[[], Timeline]  # simulates the plan's step
    choices: tuple[StageChoice, ...] = ()  # the plan's stages as indices into `table`: layers, submesh, config
    runners_up: tuple[RunnerUp, ...] = ()
    front: tuple[PricedPlan, ...] = ()  # for "pareto", the plans of which no other is as fast and as cheap, by time
    contenders: tuple[Plan, ...] = ()  # where asked for, others that may be the fastest on devices, the likeliest first
    # The same layers as they were made for micro-batches of other samples, by these, which planning again needs.
    models: Mapping[int, Model] = dataclasses.field(default_factory=dict)
    divisions: DivisionChoices = PLAIN_CHOICES  # how the stages' devices could divide the model beside its batch

    @cached_property
    def timeline(self) -> Timeline:
        """Returns the plan's step, simulated when this is first read: of many micro-batches it takes a while."""
        return self.simulated()

    @property
    def confidence(self) -> Confidence | None:
        """Returns how probable it is that the plan is nearly the best of those compared, if any were."""
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
        """Returns the model FLOP of a step: of a transformer that is trained those of `Transformer.flop_per_token`, of
        other models those of their traced products and convolutions. What remat computes again doesn't count.
        """
        size = transformer_size(self.plan.model)
        if size is None or self.plan.batch is None or not self.flop_by_rule:
            return sum(self.model.product_flop.values()) * self.run.num_micro_batches
        return size.flop_per_token * size.sequence * self.plan.batch

    @property
    def flop_by_rule(self) -> bool:
        """Returns whether the model FLOP are those of a transformer's rule, not those of what was traced."""
        return self.model.training and self.plan.batch is not None and transformer_size(self.plan.model) is not None

    @property
    def flop_per_s(self) -> float:
        """Returns the model FLOP a second, of all devices together."""
        return self.model_flop / self.plan.step_s

    @property
    def product_dtype(self) -> str:
        """Returns the dtype of most FLOP of the model's products."""
        flop = self.model.product_flop
        return max(flop, key=flop.__getitem__, default="float32")

    @property
    def device_flop_per_s(self) -> float:
        """Returns what a device that the plan uses can do in that dtype by its data sheet, on the mean of them."""
        hosts = {host.name: host.device for host in self.cluster.hosts}
        used = {name: count for name, count in self.plan.devices_of_hosts.items() if name in hosts}
        used = used or {host.name: host.num_devices for host in self.cluster.hosts}
        rates = sum(count * hosts[name].rate(self.product_dtype) for name, count in used.items())
        return rates / sum(used.values())

    @property
    def flop_utilisation(self) -> float:
        """Returns the model FLOP utilisation (MFU): a step's model FLOP over what the used devices could do meanwhile.

        References:
            Chowdhery et al., PaLM: Scaling Language Modeling with Pathways, 2022, appendix B.
        """
        return self.flop_per_s / self.plan.num_devices / self.device_flop_per_s


@final
@dataclasses.dataclass(frozen=True)
class PricedPlan:
    """A plan, with the price of its expected step, in US dollars as the hosts' hourly prices."""

    plan: Plan
    price: float

    @property
    def hosts(self) -> tuple[str, ...]:
        """Returns the names of the hosts that the plan uses."""
        return tuple(dict.fromkeys(name for stage in self.plan.stages for name in stage.hosts))


def check_prices(cluster: Cluster) -> None:
    """Raises ValueError where the hourly price of a host of a cluster isn't known."""
    unknown = [host.name for host in cluster.hosts if host.price_per_hour is None]
    if unknown:
        raise ValueError(
            f"cluster {cluster.name} has no price_per_hour for {', '.join(unknown)}; add it to their file, or plan "
            "for the objective 'time'"
        )


def price_per_step(plan: Plan, cluster: Cluster) -> float | None:
    """Returns the price of a plan's expected step, paying for each host it uses as a whole; None if one isn't known."""
    prices = {host.name: host.price_per_hour for host in cluster.hosts}
    hourly = [prices.get(name) for name in {name for stage in plan.stages for name in stage.hosts}]
    prices_per_hour = [price for price in hourly if price is not None]
    return plan.expected_s * sum(prices_per_hour) / 3600 if len(prices_per_hour) == len(hourly) else None


def front(plans: Sequence[Plan], cluster: Cluster) -> tuple[PricedPlan, ...]:
    """Returns the Pareto front of plans by step time and price per step, the fastest plan first."""
    priced = [PricedPlan(plan, price) for plan in plans if (price := price_per_step(plan, cluster)) is not None]
    cheaper_and_slower: list[PricedPlan] = []
    by_price = ordered(priced, key=lambda plan: plan.price)
    for candidate in ordered(by_price, key=lambda plan: plan.plan.step_s):
        if not cheaper_and_slower or candidate.price < cheaper_and_slower[-1].price * (1 - TOLERANCE):
            cheaper_and_slower.append(candidate)
    return tuple(cheaper_and_slower)


def why_not(plan: Plan, best: Plan, cluster: Cluster, objective: str) -> str:
    """Returns in a few words why a plan loses: how much dearer it is for the objective "price", or what is longer."""
    prices = price_per_step(plan, cluster), price_per_step(best, cluster)
    if objective != "price" or not prices[0] or not prices[1]:
        sooner = plan.step_s / best.step_s - 1
        faster = f"{-100 * sooner:.1f} % faster, but its expected step is longer"
        return why_slower(plan, best) if sooner > -AS_FAST else faster
    more, longer = prices[0] / prices[1] - 1, plan.step_s / best.step_s - 1
    return f"{100 * more:.1f} % dearer, and a step takes {abs(100 * longer):.1f} % {'less' if longer < 0 else 'longer'}"
