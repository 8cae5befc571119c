"""How sure a plan is: joint draws of cost tables, how probable it is that a plan is the best, what to measure next.

Errors are factors that all work of one class has in common, and factors of a layer's own; so entries of a cost table
that share operators, layers or links err together.
"""

from alpa_dejavu.planning.search.uncertainty._confidence import (
    confidence,
    confidence_and_expected,
    confidence_of_draws,
    drawn_steps,
    expected_steps,
    most_useful,
    numbered_errors,
    spread_shares,
)
from alpa_dejavu.planning.search.uncertainty._errors import Errors, Factors, entry_seconds
from alpa_dejavu.planning.search.uncertainty._resolved import Resolver
from alpa_dejavu.planning.search.uncertainty._spreads import CLASSES, ON_ANY_GPU, KnowsInterval, assumed_spread
from alpa_dejavu.planning.search.uncertainty._steps import (
    StageDraws,
    closed_form,
    drawn_stages,
    interval,
    layer_draws,
    resolved_stage,
    step_draws,
)
from alpa_dejavu.planning.search.uncertainty._table_draws import errors_after, errors_of, meet, redrawn, with_past_runs

__all__ = [
    "CLASSES", "ON_ANY_GPU", "Errors", "Factors", "KnowsInterval", "Resolver", "StageDraws", "assumed_spread",
    "closed_form", "confidence", "confidence_and_expected", "confidence_of_draws", "drawn_stages", "drawn_steps",
    "entry_seconds", "errors_after", "errors_of", "expected_steps", "interval", "layer_draws", "meet", "most_useful",
    "numbered_errors", "redrawn", "resolved_stage", "spread_shares", "step_draws", "with_past_runs",
]  # fmt: skip
