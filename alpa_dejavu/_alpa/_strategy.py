"""The plan of another strategy than this package's search, for the step that Alpa compiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alpa_dejavu._alpa._given_plan import checked
from alpa_dejavu.calibration import Prices
from alpa_dejavu.memory_margin import MemoryMargin, with_memory_note
from alpa_dejavu.option import DejavuStageOption
from alpa_dejavu.problem import Model, Plan
from alpa_dejavu.strategies import AlpaDefault, strategy
from alpa_dejavu.strategies._asked import Asked


def by_strategy(option: DejavuStageOption, model: Model, priced: Prices, given: Mapping[str, Any]) -> Plan:
    """What the option's strategy chooses, once it is seen to fit the step and the cluster.

    Args:
        option: whose strategy plans.
        model: Alpa's layers.
        priced: the cluster and the models that price it.
        given: the arguments of Alpa's stage construction.

    Raises:
        ValueError: another schedule than 1F1B, or a model, cluster or batch that the strategy can't handle.
        NoPlanError: it has no plan.
    """
    schedule, micro_batch, count = given["pipeline_schedule"], given["batch_size"], given["num_micro_batches"]
    # Which layers are computed again is the layer option's to say.
    chosen = AlpaDefault(("none",), (0,)) if option.strategy == "alpa" else strategy(option.strategy)
    if schedule != "1f1b":
        raise ValueError(
            f"pipeline_schedule is {schedule!r}, but {chosen.name} plans for '1f1b'; give that, or strategy='dejavu'"
        )
    asked = Asked(chosen, micro_batch * count, count, priced.models)
    made = asked.with_contingencies(asked.with_confidence(asked.planned(model, micro_batch, priced.cluster)))
    margin = MemoryMargin(option.risk, priced.residuals(option.memory))
    return checked(with_memory_note(made.plan, margin), given, option.cluster)
