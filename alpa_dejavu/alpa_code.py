"""A plan as the lines of Python that run it with Alpa."""

from __future__ import annotations

import pprint
from typing import Any

from alpa_dejavu.problem import Plan, StagePlan

__all__ = ["alpa_code", "alpa_options", "plan_remat"]


def alpa_code(plan: Plan) -> str:
    """Python that makes `method`, a `PipeshardParallel` that runs exactly this plan.

    Raises:
        ValueError: some stages have remat and others don't, which Alpa can't run.
    """
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
        "import alpa\n\n"
        'alpa.init("ray")\n\n'
        "method = alpa.PipeshardParallel(\n"
        f"    num_micro_batches={plan.num_micro_batches},\n"
        f"    pipeline_schedule={plan.schedule!r},\n"
        f"    layer_option={_layer_option(plan)},\n"
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


def plan_remat(plan: Plan) -> bool:
    """Whether the layers are to be rematerialised.

    Raises:
        ValueError: in some stages only. Alpa has one layer option for all.
    """
    chosen = [stage.remat == "layer" for stage in plan.stages]
    if any(chosen) and not all(chosen):
        where = [n for n, remat in enumerate(chosen) if remat]
        raise ValueError(
            f"the plan has remat in stages {where} of {len(chosen)}, but Alpa's layer option has it for all layers or "
            "for none; plan again with remat in all stages or none"
        )
    return all(chosen)


def _layer_option(plan: Plan) -> str:
    remat = plan_remat(plan)
    if plan.layer_option == "manual":
        return f"alpa.ManualLayerOption(remat_layer={remat})"
    mode = "coarse_grained_remat" if remat else "none"
    return f"alpa.AutoLayerOption(layer_num={plan.num_layers}, remat_mode={mode!r})"


def _literal(value: Any, indent: int) -> str:
    lines = pprint.pformat(value, width=110 - indent, compact=True, sort_dicts=False).splitlines()
    return ("\n" + " " * indent).join(lines)


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii").replace('"', "'")
