"""Random numbers are jax's own: what is drawn from a key is what one device draws from it.

Alpa draws from a state of each device instead, whatever the key: then what is computed again in a backward pass draws
other numbers. Here jax.random stays as it is, and Alpa sees keys as the plain arrays of their words.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from jax._src import linear_util
from jax.tree_util import tree_map

from alpa_stock_jax._key_trees import key_of, with_words, words_of
from alpa_stock_jax._patch import Patch
from alpa_stock_jax._plain_keys import is_key, with_plain_keys


def _keep_random(module: ModuleType) -> None:
    module.monkey_patch_random = module.restore_random = lambda: None  # type: ignore[attr-defined]


def _trace_plain_keys(module: ModuleType) -> None:
    stock = module.trace_jaxpr_with_micro_batch

    @functools.wraps(stock)
    def trace_jaxpr_with_micro_batch(
        fun: Any, batch_invars: Sequence[bool], num_micro_batches: int, raw_avals: Sequence[Any], batch_dim: int = 0
    ) -> Any:
        closed_jaxpr, batch_size = stock(fun, batch_invars, num_micro_batches, raw_avals, batch_dim)
        return with_plain_keys(closed_jaxpr), batch_size

    module.trace_jaxpr_with_micro_batch = trace_jaxpr_with_micro_batch  # type: ignore[attr-defined]


def _take_typed_keys(module: ModuleType) -> None:
    flatten, flatten_fun = module.tree_flatten, module.flatten_fun_nokwargs

    def tree_flatten(tree: Any) -> Any:
        leaves, structure = flatten(tree)
        return flatten(with_words(tree)) if any(map(is_key, leaves)) else (leaves, structure)

    module.tree_flatten = tree_flatten  # type: ignore[attr-defined]
    module.flatten_fun_nokwargs = lambda fun, in_tree: flatten_fun(_words_out(fun), in_tree)  # type: ignore[attr-defined]


def _tell_shapes(module: ModuleType) -> None:
    for kind in (module.DistributedArray, module.ReplicatedDistributedArray):
        kind.ndim = property(lambda array: array.aval.ndim)
    module.ReplicatedDistributedArray.shape = property(lambda array: array.aval.shape)
    module.ReplicatedDistributedArray.dtype = property(lambda array: array.aval.dtype)


def _save_typed_keys(module: ModuleType) -> None:
    save, restore = module.save_checkpoint, module.restore_checkpoint

    @functools.wraps(save)
    def save_checkpoint(ckpt_dir: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        return save(ckpt_dir, tree_map(words_of, target), *args, **kwargs)

    @functools.wraps(restore)
    def restore_checkpoint(ckpt_dir: Any, step: int, placement_specs: Any) -> Any:
        plain = tree_map(lambda spec: dataclasses.replace(spec, aval=words_of(spec.aval)), placement_specs)
        found = restore(ckpt_dir, step, plain)
        return tree_map(
            lambda spec, array: key_of(array, spec.aval.dtype) if is_key(spec.aval) else array, placement_specs, found
        )

    module.save_checkpoint = save_checkpoint  # type: ignore[attr-defined]
    module.restore_checkpoint = restore_checkpoint  # type: ignore[attr-defined]


@linear_util.transformation
def _words_out(*args: Any, **kwargs: Any) -> Iterator[Any]:
    yield with_words((yield args, kwargs))


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.monkey_patch",
        reason="jax.random stays as it is: Alpa would draw from a state of the device, whatever the key",
        apply=_keep_random,
        expects={"monkey_patch_random": (), "restore_random": ()},
    ),
    Patch(
        module="alpa.util",
        reason="a traced step has no variables that are typed keys: their words are plain arrays",
        apply=_trace_plain_keys,
        expects={
            "trace_jaxpr_with_micro_batch": ("fun", "batch_invars", "num_micro_batches", "raw_avals", "batch_dim"),
        },
        uses=("jax._src.core.closed_call_p", "jax._src.core.physical_aval"),
    ),
    Patch(
        module="alpa.device_mesh",
        reason="arrays on workers tell shape and dtype wherever they lie, as typed keys ask of their words",
        apply=_tell_shapes,
        expects={"DistributedArray": None, "ReplicatedDistributedArray.replica": None},
    ),
    Patch(
        module="alpa.api",
        reason="typed keys among arguments and results are given to Alpa as the arrays of their words",
        apply=_take_typed_keys,
        expects={"tree_flatten": None, "flatten_fun_nokwargs": None},
        uses=("jax._src.prng.PRNGKeyArray", "jax._src.prng.KeyTy"),
    ),
    Patch(
        module="alpa.serialization",
        reason="checkpoints keep the words of typed keys, and restore the keys",
        apply=_save_typed_keys,
        expects={
            "save_checkpoint": ("ckpt_dir", "target", "step", "local_cache_dir"),
            "restore_checkpoint": ("ckpt_dir", "step", "placement_specs"),
        },
    ),
)
