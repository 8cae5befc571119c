"""A plan as the lines of Python that run it with Alpa."""

from __future__ import annotations

import pprint
from typing import Any

from alpa_dejavu.problem import Plan, StagePlan

__all__ = ["alpa_code", "alpa_options", "remat_layers"]


def alpa_code(plan: Plan) -> str:
    """Python that makes `method`, a `PipeshardParallel` that runs exactly this plan.

    Raises:
        ValueError: it is a plan that Alpa can't run.
    """
    if not plan.runs_on_alpa:
        raise ValueError(
            f"the plan of {plan.strategy} is estimated only, and Alpa can't run it: there is no Python of it to write; "
            "leave that out, or plan by another strategy"
        )
    layer_option = _layer_option(plan)
    ours = "import alpa_dejavu\n" if "alpa_dejavu" in layer_option else ""
    rows = [
        ("forward_stage_layer_ids", plan.layer_ids),
        ("submesh_physical_shapes", [(s.submesh.num_hosts, s.submesh.devices_per_host) for s in plan.stages]),
        ("submesh_logical_shapes", [stage.logical_mesh for stage in plan.stages]),
        ("submesh_autosharding_option_dicts", [alpa_options(stage) for stage in plan.stages]),
    ]
    stage_option = "".join(f"        {name}={_literal(value, len(name) + 9)},\n" for name, value in rows)
    batch = "" if plan.batch is None else f", batch {plan.batch}"
    title = f"{plan.model or 'A model'} on {plan.cluster}{batch}: predicted {plan.step_s:.4g} s per step."
    return (
        f'"""{_escaped(title)}"""\n\n'
        f"import alpa\n{ours}\n"
        'alpa.init("ray")\n\n'
        "method = alpa.PipeshardParallel(\n"
        f"    num_micro_batches={plan.num_micro_batches},\n"
        f"    pipeline_schedule={plan.schedule!r},\n"
        f"    layer_option={layer_option},\n"
        "    stage_option=alpa.ManualStageOption(\n"
        f"{stage_option}"
        "    ),\n"
        ")\n"
        "# step = alpa.parallelize(train_step, method=method)\n"
    )


def alpa_options(stage: StagePlan) -> dict[str, Any]:
    """The options of Alpa's auto-sharding pass for a stage; they say its ZeRO level, whatever Alpa's default is."""
    return {
        **stage.options,
        "prefer_reduce_scatter": stage.zero == 2,
        "force_zero_stage_3": stage.zero == 3,
    }


def remat_layers(plan: Plan) -> list[int]:
    """The layers of the stages with remat."""
    stages = zip(plan.stages, plan.layer_ids, strict=True)
    return [layer for stage, layers in stages if stage.remat == "layer" for layer in layers]


def _layer_option(plan: Plan) -> str:
    """Alpa's own option where it does, else ours: Alpa's has remat in all layers or in none."""
    remat = remat_layers(plan)
    number = plan.num_layers if plan.layer_option == "auto" else None
    if remat and len(remat) < plan.num_layers:
        return f"alpa_dejavu.DejavuLayerOption(layer_num={number}, remat_layers={_literal(remat, 8)})"
    if number is None:
        return f"alpa.ManualLayerOption(remat_layer={bool(remat)})"
    mode = "coarse_grained_remat" if remat else "none"
    return f"alpa.AutoLayerOption(layer_num={number}, remat_mode={mode!r})"


def _literal(value: Any, indent: int) -> str:
    """A list whose elements are all alike is written as one of them, times their number."""
    times = ""
    if len(value) > 1 and all(element == value[0] for element in value):
        value, times = value[:1], f" * {len(value)}"
    lines = pprint.pformat(value, width=110 - indent, compact=True, sort_dicts=False).splitlines()
    return ("\n" + " " * indent).join(lines) + times


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii").replace('"', "'")
