"""A step is cut into layers and optimizer anew, whatever reads what: see `_layers.py`.

Alpa moves single equations and completes markers by rules that hold for chains of layers that all have a gradient.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from types import ModuleType
from typing import Any

from alpa_dejavu.layers import EquationClusters
from alpa_stock_jax._layers import sorted_step
from alpa_stock_jax._patch import Patch

# For each argument of the step that is being compiled, whether it is cut into micro-batches.
_is_batch: contextvars.ContextVar[tuple[bool, ...]] = contextvars.ContextVar("is_batch", default=())


def _tell_batch(module: ModuleType) -> None:
    stock = module.split_and_process_layers

    @functools.wraps(stock)
    def split_and_process_layers(closed_jaxpr: Any, full_batch_closed_jaxpr: Any, *args: Any) -> Any:
        """As Alpa's; the arguments that have another shape in the whole batch are cut into micro-batches."""
        parts = closed_jaxpr.in_avals
        wholes = parts if full_batch_closed_jaxpr is None else full_batch_closed_jaxpr.in_avals
        token = _is_batch.set(tuple(part.shape != whole.shape for part, whole in zip(parts, wholes, strict=True)))
        try:
            return stock(closed_jaxpr, full_batch_closed_jaxpr, *args)
        finally:
            _is_batch.reset(token)

    module.split_and_process_layers = split_and_process_layers  # type: ignore[attr-defined]


def _sort_step(module: ModuleType) -> None:
    def split_compute_grad_and_apply_grad(
        closed_jaxpr: Any, gensym_fn: Any, num_microbatch: int, inference_mode: bool
    ) -> Any:
        """The step, its layers, its optimizer, and the marker between them."""
        batch = {var for var, is_batch in zip(closed_jaxpr.jaxpr.invars, _is_batch.get(), strict=False) if is_batch}
        step = sorted_step(closed_jaxpr, gensym_fn, not inference_mode, batch)
        handed_over = list(step.layers.jaxpr.outvars)
        if not step.is_split:
            kept = handed_over if num_microbatch > 1 else []
            return step.layers, step.layers, step.update, _bound(kept, kept)
        bound = _bound(handed_over, list(step.gradients))
        equations = [*step.layers.eqns, bound, *step.update.eqns]
        whole = module.clone_jaxpr(closed_jaxpr, outvars=list(step.results), eqns=equations)
        return whole, step.layers, step.update, bound

    def _bound(operands: list[Any], results: list[Any]) -> Any:
        return module.new_jaxpr_eqn(operands, results, module.pipeline_p, {"mark_type": "grad", "name": "grad"})

    module.split_compute_grad_and_apply_grad = split_compute_grad_and_apply_grad  # type: ignore[attr-defined]


def _tell_sums(module: ModuleType) -> None:
    stock = module.shard_each_stage

    @functools.wraps(stock)
    def shard_each_stage(
        jax_all_stages: Any, virtual_meshes: Any, schedule: Any, num_meshes: Any, accumulator_mapping: Any,
        global_invars: Any, acc_grad_outvars: Any, *args: Any,
    ) -> Any:  # fmt: skip
        """As Alpa's; only sums over micro-batches are all-reduced late, and not all that layers hand over."""
        sums = module.OrderedSet(accumulator_mapping.values())
        return stock(
            jax_all_stages, virtual_meshes, schedule, num_meshes, accumulator_mapping, global_invars, sums, *args
        )

    module.shard_each_stage = shard_each_stage  # type: ignore[attr-defined]


def _pass_through(module: ModuleType) -> None:
    stock = module.add_pipeline_marks_for_sliced_eqns

    @functools.wraps(stock)
    def add_pipeline_marks_for_sliced_eqns(closed_jaxpr: Any, sliced_eqns: Any) -> Any:
        """As Alpa's, which marks what layers make; other results are passed through."""
        made = {var for equations in sliced_eqns for equation in equations for var in equation.outvars}
        results = closed_jaxpr.jaxpr.outvars
        own = [isinstance(atom, module.Var) and atom in made for atom in results]
        kept = [atom for atom, is_own in zip(results, own, strict=True) if is_own]
        marked = stock(module.clone_jaxpr(closed_jaxpr, outvars=kept), sliced_eqns)
        names = iter(marked.jaxpr.outvars)
        outvars = [next(names) if is_own else atom for atom, is_own in zip(results, own, strict=True)]
        return module.clone_jaxpr(marked, outvars=outvars)

    module.add_pipeline_marks_for_sliced_eqns = add_pipeline_marks_for_sliced_eqns  # type: ignore[attr-defined]


def _say_why_not(module: ModuleType) -> None:
    stock = module.cluster_jaxpr_by_cost

    @functools.wraps(stock)
    def cluster_jaxpr_by_cost(jaxpr: Any, layer_num: int, eps: float, costs: Any, cost_criteria: str) -> Any:
        """As Alpa's; where there is no way to cut, a ValueError says why, and into how many layers there is one."""
        if layer_num <= len(jaxpr.eqns):
            with contextlib.suppress(AssertionError):
                return stock(jaxpr, layer_num, eps, costs, cost_criteria)
        found = EquationClusters(jaxpr.eqns, eps).cut(int(layer_num))
        starts = (0, *found.ends[:-1])
        rows = [jaxpr.eqns[start:end] for start, end in zip(starts, found.ends, strict=True)]
        return rows, {"total_cost": found.most_bytes}

    module.cluster_jaxpr_by_cost = cluster_jaxpr_by_cost  # type: ignore[attr-defined]


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.layer_construction",
        reason="where a loss can't be cut into so many layers, the error says why, and which numbers there can be",
        apply=_say_why_not,
        expects={"cluster_jaxpr_by_cost": ("jaxpr", "layer_num", "eps", "costs", "cost_criteria")},
    ),
    Patch(
        module="alpa.pipeline_parallel.layer_construction",
        reason="results of the loss that no layer makes, as constants and arguments, are passed through",
        apply=_pass_through,
        expects={
            "add_pipeline_marks_for_sliced_eqns": ("closed_jaxpr", "sliced_eqns"),
            "clone_jaxpr": ("closed_jaxpr", "invars", "outvars", "eqns", "constvars", "consts"),
        },
    ),
    Patch(
        module="alpa.pipeline_parallel.apply_grad",
        reason="a step is sorted into layers and optimizer, whatever reads what (only chains of layers were)",
        apply=_sort_step,
        expects={
            "split_compute_grad_and_apply_grad": ("closed_jaxpr", "gensym_fn", "num_microbatch", "inference_mode"),
            "clone_jaxpr": ("closed_jaxpr", "invars", "outvars", "eqns", "constvars", "consts"),
            "new_jaxpr_eqn": ("invars", "outvars", "primitive", "params", "effects", "source_info"),
            "pipeline_p": None,
        },
        uses=("jax._src.lax.lax.copy_p", "jax._src.ad_util.add_jaxvals_p"),
    ),
    Patch(
        module="alpa.pipeline_parallel.compile_executable",
        reason="which arguments are cut into micro-batches is known where a step is sorted into layers",
        apply=_tell_batch,
        expects={
            "split_and_process_layers": (
                "closed_jaxpr", "full_batch_closed_jaxpr", "num_microbatch", "inference_mode", "gensym_func",
            ),
        },
    ),
    Patch(
        module="alpa.pipeline_parallel.compile_executable",
        reason="only sums over micro-batches are reduced after the last (a loss with an L2 term was reduced twice)",
        apply=_tell_sums,
        expects={
            "shard_each_stage": (
                "jax_all_stages", "virtual_meshes", "schedule", "num_meshes", "accumulator_mapping", "global_invars",
                "acc_grad_outvars", "donate_invars_dict", "num_microbatch", "logical_mesh_shapes",
                "autosharding_option_dicts", "default_as_option", "input_sharding_dicts", "output_sharding_dicts",
                "stage_input_shardings", "name_base", "gensym_func",
            ),
            "OrderedSet": None,
        },
    ),
)  # fmt: skip
