"""The figures of a planned step that are read first, its seconds, tokens, utilisation and price, and how its model is
trained.

In: a planning result, or a plan. Out: texts with their names, which the command line and reports show.
"""

from __future__ import annotations

from alpa_dejavu._util import units
from alpa_dejavu.layers.models import tokens_of_sample, transformer_size
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.problem import Plan
from alpa_dejavu.sharding.transformers import training_text

__all__ = ["figures", "training_facts"]


def figures(planned: PlanningResult) -> list[tuple[str, str]]:
    """Returns a plan's step, its rates, its utilisation, and its price where hosts have one, each with its name."""
    plan, rates = planned.plan, list[str]()
    length, devices = tokens_of_sample(plan.model), plan.num_devices
    if planned.samples_per_s is not None and length is not None:
        tokens_per_s = length * planned.samples_per_s
        rates = [units.token_rate(tokens_per_s), f"{units.token_rate(tokens_per_s / devices)} a device"]
    elif planned.samples_per_s is not None:
        rates = [units.sample_rate(planned.samples_per_s)]
    rate = units.flop_rate(planned.model_flop / plan.step_s / devices)
    facts = [
        ("iteration time", ", ".join([units.seconds(plan.step_s), *rates])),
        ("model FLOP utilisation", f"{100 * planned.flop_utilisation:.1f} % ({rate} a device)"),
    ]
    if (price := planned.price_per_step) is not None:
        facts.append(("price of a step", units.price(price)))
        if plan.batch is not None and length is not None:
            facts.append(("price of 10^9 tokens", units.price(price / plan.batch / length * 1e9)))
    return facts


def training_facts(plan: Plan) -> list[tuple[str, str]]:
    """Returns how a plan's transformer is trained, with its name, where that isn't the usual way."""
    size = transformer_size(plan.model)
    text = "" if size is None else training_text(size)
    return [("trained", text)] if text else []
