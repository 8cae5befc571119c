"""The page of a plan for inference: both phases, and what devices keep."""

from __future__ import annotations

from alpa_dejavu._util import units
from alpa_dejavu.planning.inference import Phase, ServingPlan
from alpa_dejavu.planning.inference.serving_plan import phase_rows, plan_facts
from alpa_dejavu.report._page import template

_PARTS = (
    ("computing", "forward"), ("cache", "backward"), ("collectives", "collectives"), ("transfers", "transfer"),
    ("waiting", "update"),
)  # fmt: skip
"""The parts of a phase, each with the class of its colour in the page's style."""


def serving_report(plan: ServingPlan) -> str:
    """Returns an HTML page about a plan for inference, which opens without network or scripts; names are escaped."""
    heads, *rows = phase_rows(plan)
    phases = ("first token", plan.first_token), ("each next token", plan.next_token)
    return template("serving.html.j2").render(
        title=f"Inference of {plan.model} on {plan.cluster}",
        facts=plan_facts(plan),
        table={"heads": heads, "rows": rows},
        legend=_PARTS,
        bars=[(name, units.seconds(phase.seconds), _shares(phase)) for name, phase in phases],
    )


def _shares(phase: Phase) -> list[tuple[str, str, float]]:
    """Returns the name with its seconds, the colour and the percentage of each part of a phase that takes any time."""
    seconds = [getattr(phase, f"{name}_s") for name, _ in _PARTS]
    return [
        (f"{name}: {units.seconds(part)}", color, 100 * part / phase.seconds)
        for (name, color), part in zip(_PARTS, seconds, strict=True)
        if part > 0
    ]
