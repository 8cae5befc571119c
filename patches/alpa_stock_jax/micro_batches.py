"""Steps over several micro-batches: the batch's own numbers, whatever the loss is, or a word that says why not."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from jax import core, lax
from jax._src.lax.lax import copy_p
from jax.tree_util import tree_structure, treedef_tuple

from alpa_stock_jax._micro_batch_step import MicroBatchStep, read_step
from alpa_stock_jax._patch import Patch
from alpa_stock_jax._recorded_step import RecordedStep, differentiate, record, recording

__all__: list[str] = []


def _record_losses(module: ModuleType) -> None:
    for name, with_value in (("grad", False), ("value_and_grad", True)):
        setattr(module, name, differentiate(getattr(module, name), with_value))


def _rewrite_steps(module: ModuleType) -> None:
    for method in (module.ShardParallel, module.PipeshardParallel):
        method.compile_executable = _over_micro_batches(method.compile_executable)


def _over_micro_batches(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def compile_executable(
        self: Any, fun: Any, in_tree: Any, out_tree_thunk: Any, static_argnums: Any, donated_invars: Any,
        batch_invars: Sequence[bool], *avals: Any,
    ) -> Any:  # fmt: skip
        """As Alpa's, for any loss."""
        number = self.num_micro_batches or 1
        compiled = functools.partial(stock, self, fun, in_tree, out_tree_thunk, static_argnums, donated_invars)
        if number <= 1 or not any(batch_invars) or getattr(self, "pipeline_schedule", "") == "inference":
            return compiled(batch_invars, *avals)
        step = _read(fun, batch_invars, number, avals, getattr(getattr(self, "stage_option", None), "accumulate", None))
        if step is None:
            _reset(fun)
            return compiled(batch_invars, *avals)
        return _compile(stock, self, step, fun, in_tree, out_tree_thunk, static_argnums, donated_invars, avals)

    return compile_executable


def _read(
    fun: Any, batch_invars: Sequence[bool], number: int, avals: Sequence[Any], accumulate: str | None
) -> MicroBatchStep | None:
    import alpa

    shapes = [tuple(aval.shape) for aval, is_batch in zip(avals, batch_invars, strict=True) if is_batch]
    for shape in shapes:
        if shape[0] % number or shape[0] != shapes[0][0]:
            other = f", or one batch size for all: another array has {shapes[0]}" if shape[0] != shapes[0][0] else ""
            divisors = [n for n in range(1, shape[0] + 1) if shape[0] % n == 0]
            raise ValueError(
                f"num_micro_batches is {number}, which doesn't divide the batch of {shape}; choose one of {divisors}, "
                f"or another batch size{other}"
            )
    micro, whole = (_traced(fun, batch_invars, count, avals) for count in (number, 1))
    if micro is None or whole is None:
        return None
    return read_step(micro, whole, batch_invars, number, (alpa.grad, alpa.value_and_grad), accumulate)


def _traced(fun: Any, batch_invars: Sequence[bool], number: int, avals: Sequence[Any]) -> RecordedStep | None:
    from alpa.util import trace_jaxpr_with_micro_batch

    _reset(fun)
    # Keys stay what they are here: the loss is read before they become plain arrays.
    trace = getattr(trace_jaxpr_with_micro_batch, "__wrapped__", trace_jaxpr_with_micro_batch)
    with recording():
        closed, _ = trace(fun, batch_invars, number, avals)
    return record(closed)


def _reset(fun: Any) -> None:
    for store in fun.stores:
        if store:
            store.reset()


def _compile(
    stock: Callable[..., Any], method: Any, step: MicroBatchStep, fun: Any, in_tree: Any, out_tree_thunk: Any,
    static_argnums: Any, donated_invars: Sequence[bool], avals: Sequence[Any],
) -> Any:  # fmt: skip
    from jax import linear_util

    def rewritten(*arguments: Any) -> list[Any]:
        return step.call(*arguments)

    rewritten.__name__ = fun.__name__
    rewritten.over_micro_batches = True  # type: ignore[attr-defined]
    more = len(step.extra_avals)
    leaf = tree_structure(0)
    tree = treedef_tuple([*in_tree.children(), treedef_tuple([leaf] * more)])
    executable = stock(
        _for_more_arguments(method), linear_util.wrap_init(rewritten), tree, out_tree_thunk, static_argnums,
        (*donated_invars, *[False] * more), (*step.batch_invars, *step.extra_batch), *avals, *step.extra_avals,
    )  # fmt: skip
    return _with_more_arguments(executable, step, in_tree)


def _for_more_arguments(method: Any) -> Any:
    """A method for a step that takes one argument more, and whose loss takes arrays alone."""
    method = copy.copy(method)
    layers = getattr(method, "layer_option", None)
    if getattr(layers, "static_argnums", ()):
        method.layer_option = copy.copy(layers)
        method.layer_option.static_argnums = ()
    for name in ("ms_option", "manual_sharding_option"):
        option = getattr(method, name, None)
        if option is not None and option.in_axis_resources is not None:
            resources = (*option.in_axis_resources, None)
            setattr(method, name, dataclasses.replace(option, in_axis_resources=resources))
    return method


def _with_more_arguments(executable: Any, step: MicroBatchStep, in_tree: Any) -> Any:
    """An executable that is given its step's own arguments, and takes the ones more itself."""
    placements = executable.get_input_placement_specs()[:-1]
    executable.more_arguments, executable.in_tree = step.prepare, in_tree
    executable.get_input_placement_specs = lambda: placements
    return executable


def _take_more_arguments(executable: Any) -> None:
    stock = executable.launch_on_driver

    @functools.wraps(stock)
    def launch_on_driver(self: Any, *arguments: Any) -> Any:
        """As Alpa's, for steps that take more arguments than the user's."""
        more = getattr(self, "more_arguments", None)
        return stock(self, *arguments, *(more(*arguments) if more else ()))

    executable.launch_on_driver = launch_on_driver


def _take_more_in_one_mesh(module: ModuleType) -> None:
    _take_more_arguments(module.GradAccMeshDriverExecutable)


def _take_more_in_pipelines(module: ModuleType) -> None:
    _take_more_arguments(module.PipeshardDriverExecutable)


def _trace_once(module: ModuleType) -> None:
    stock_trace, stock_bounds = module.trace_jaxpr_with_micro_batch, module._get_full_batch_apply_grad

    def trace_jaxpr_with_micro_batch(
        fun: Any, batch_invars: Any, num_micro_batches: int, raw_avals: Any, batch_dim: int = 0
    ) -> Any:
        """As Alpa's; of a step that was rewritten, all results are added up, so the whole batch isn't traced."""
        if num_micro_batches == 1 and getattr(fun.f, "over_micro_batches", False):
            return None, None
        return stock_trace(fun, batch_invars, num_micro_batches, raw_avals, batch_dim)

    def _get_full_batch_apply_grad(
        closed_jaxpr: Any, microbatch_bound: Any, num_microbatch: int, inference_mode: bool, batch_dim: int = 0
    ) -> Any:
        """As Alpa's, but for steps whose results are all added up."""
        if closed_jaxpr is None and num_microbatch > 1:
            return [True] * len(microbatch_bound.outvars), microbatch_bound, None
        return stock_bounds(closed_jaxpr, microbatch_bound, num_microbatch, inference_mode, batch_dim)

    module.trace_jaxpr_with_micro_batch = trace_jaxpr_with_micro_batch  # type: ignore[attr-defined]
    module._get_full_batch_apply_grad = _get_full_batch_apply_grad  # type: ignore[attr-defined]


def _add_whole_numbers(module: ModuleType) -> None:
    stock = module.apply_grad_get_mean

    def apply_grad_get_mean(
        apply_grad_jaxpr: Any, global_outvars: Any, gradients: Any, gensym_fn: Any, num_microbatch: int,
        reduce_invars: Any,
    ) -> Any:  # fmt: skip
        """As Alpa's, but for whole numbers, which are added up over micro-batches and not divided by their number."""
        closed, outvars = stock(
            apply_grad_jaxpr, global_outvars, gradients, gensym_fn, num_microbatch, reduce_invars
        )
        return _undivided(closed, set(gradients)), outvars

    module.apply_grad_get_mean = apply_grad_get_mean  # type: ignore[attr-defined]


def _add_whole_numbers_in_one_mesh(module: ModuleType) -> None:
    stock = module.add_gradient_accumulation

    def add_gradient_accumulation(raw_jaxpr: Any, num_micro_batches: int) -> Any:
        """As Alpa's, but results may be constants, and whole numbers are added up and not divided."""
        closed, *rest = stock(_with_computed_results(raw_jaxpr), num_micro_batches)
        # Alpa gives a quotient its dividend's name.
        named = {q.outvars[0] for q in closed.jaxpr.eqns if q.primitive is lax.div_p and q.outvars[0] is q.invars[0]}
        return (_undivided(closed, named), *rest)

    module.add_gradient_accumulation = add_gradient_accumulation  # type: ignore[attr-defined]


def _with_computed_results(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Copies results that are constants."""
    jaxpr, made, outvars = closed.jaxpr, [], []
    for atom in jaxpr.outvars:
        if isinstance(atom, core.Literal) or atom in jaxpr.constvars:
            copied = core.Var("", core.raise_to_shaped(atom.aval))
            made.append(core.new_jaxpr_eqn([atom], [copied], copy_p, {}, core.no_effects))
            atom = copied
        outvars.append(atom)
    return core.ClosedJaxpr(jaxpr.replace(eqns=[*jaxpr.eqns, *made], outvars=outvars), closed.consts)


def _undivided(closed: core.ClosedJaxpr, accumulated: set[Any]) -> core.ClosedJaxpr:
    """Leaves whole numbers and booleans that were accumulated as they are, where they are divided."""
    eqns = []
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive is lax.div_p and isinstance(eqn.invars[0], core.Var) and eqn.invars[0] in accumulated:
            dtype = eqn.outvars[0].aval.dtype
            if dtype == np.bool_:
                eqn = eqn.replace(primitive=lax.or_p, invars=[eqn.invars[0]] * 2)
            elif np.issubdtype(dtype, np.integer):
                eqn = eqn.replace(invars=[eqn.invars[0], core.Literal(np.array(1, dtype), eqn.invars[1].aval)])
        eqns.append(eqn)
    return core.ClosedJaxpr(closed.jaxpr.replace(eqns=eqns), closed.consts)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.api",
        reason="a step's loss can be read before it is differentiated",
        apply=_record_losses,
        expects={"grad": ("args", "kwargs"), "value_and_grad": ("args", "kwargs")},
    ),
    Patch(
        module="alpa.parallel_method",
        reason="over micro-batches a step gives the batch's own numbers, though its loss is no plain mean",
        apply=_rewrite_steps,
        expects={
            "ShardParallel.compile_executable": (
                "self", "fun", "in_tree", "out_tree_thunk", "static_argnums", "donated_invars", "batch_invars", "avals",
            ),
            "PipeshardParallel.compile_executable": (
                "self", "fun", "in_tree", "out_tree_thunk", "static_argnums", "donated_invars", "batch_invars", "avals",
            ),
        },
    ),
    Patch(
        module="alpa.mesh_executable",
        reason="a step over micro-batches may take more than its user's arguments, such as sums over the batch",
        apply=_take_more_in_one_mesh,
        expects={"GradAccMeshDriverExecutable.launch_on_driver": ("self", "args")},
    ),
    Patch(
        module="alpa.pipeline_parallel.pipeshard_executable",
        reason="and so may a step in a pipeline",
        apply=_take_more_in_pipelines,
        expects={"PipeshardDriverExecutable.launch_on_driver": ("self", "args")},
    ),
    Patch(
        module="alpa.pipeline_parallel.compile_executable",
        reason="a step that was rewritten for micro-batches is traced with one of them alone",
        apply=_trace_once,
        expects={
            "trace_jaxpr_with_micro_batch": ("fun", "batch_invars", "num_micro_batches", "raw_avals", "batch_dim"),
            "_get_full_batch_apply_grad": (
                "closed_jaxpr", "microbatch_bound", "num_microbatch", "inference_mode", "batch_dim",
            ),
        },
    ),
    Patch(
        module="alpa.pipeline_parallel.apply_grad",
        reason="whole numbers are added up over micro-batches, as counts are, and aren't divided",
        apply=_add_whole_numbers,
        expects={
            "apply_grad_get_mean": (
                "apply_grad_jaxpr", "global_outvars", "gradients", "gensym_fn", "num_microbatch", "reduce_invars",
            ),
        },
    ),
    Patch(
        module="alpa.shard_parallel.compile_executable",
        reason="whole numbers are added up over micro-batches in one mesh, too, and results may be constants",
        apply=_add_whole_numbers_in_one_mesh,
        expects={"add_gradient_accumulation": ("raw_jaxpr", "num_micro_batches")},
        uses=("jax._src.lax.lax.copy_p",),
    ),
)  # fmt: skip
