"""The program of a module in jax: its operations by the table, blocks that are alike traced once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax

from alpa_dejavu.layers.torch_modules._exported import ExportedModule, Operation, on_places
from alpa_dejavu.layers.torch_modules._table import OPERATORS, PLANNED

Arrays = dict[str, Any]


@final
class Program:
    """A function from a module's arrays by name, weights and inputs, to its result.

    Args:
        module: the module.
        exact: whether what depends on numbers is computed as torch computes it; else experts have equally many tokens.
    """

    def __init__(self, module: ExportedModule, exact: bool = False) -> None:
        table = OPERATORS if exact else PLANNED
        self._result = module.result
        self._grouped = {
            step.where: None for step in module.operations if table[step.operator] is not OPERATORS[step.operator]
        }
        self._parts: list[tuple[Callable[..., list[Any]], Sequence[str], Sequence[str]]] = []
        blocks: dict[str, Callable[..., list[Any]]] = {}
        runs = [(block, list(run)) for block, run in itertools.groupby(module.operations, lambda step: step.block)]
        users = [{operand for step in run for operand in step.operands} for _, run in runs]
        later = {module.result}
        wanted: list[set[str]] = []
        for of_run in reversed(users):
            wanted.append(set(later))
            later |= of_run
        for (block, run), after in zip(runs, reversed(wanted), strict=True):
            own = {step.result for step in run}
            operands = list(dict.fromkeys(name for step in run for name in step.operands if name not in own))
            results = [step.result for step in run if step.result in after]
            function = _function(table, run, operands, results)
            if block:
                function = blocks.setdefault(_structure(run, operands, results), jax.jit(function, inline=True))
            self._parts.append((function, operands, results))

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns sentences on what is computed in another way than torch computes it."""
        if not self._grouped:
            return ()
        return (f"{next(iter(self._grouped))} is planned with as many tokens for each expert as for any other",)

    def __call__(self, arrays: Mapping[str, Any]) -> Any:
        """Returns the module's result on arrays by their names."""
        values: Arrays = dict(arrays)
        for function, operands, results in self._parts:
            values.update(zip(results, function(*(values[name] for name in operands)), strict=True))
        return values[self._result]


def _function(
    table: Mapping[str, Callable[..., Any]], run: Sequence[Operation], operands: Sequence[str], results: Sequence[str]
) -> Callable[..., list[Any]]:
    def function(*arrays: Any) -> list[Any]:
        values: Arrays = dict(zip(operands, arrays, strict=True))
        for step in run:
            values[step.result] = _computed(table, step, values)
        return [values[name] for name in results]

    return function


def _computed(table: Mapping[str, Callable[..., Any]], step: Operation, values: Arrays) -> Any:
    """The result of an operation, in the type that torch gives it."""
    arguments, options = on_places((step.arguments, tuple(step.options.items())), values.__getitem__)
    try:
        result = table[step.operator](*arguments, **dict(options))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ValueError(f"{step.where} isn't translated to jax with what it is given: {error}") from error
    return _conformed(result, step)


def _conformed(result: Any, step: Operation) -> Any:
    likes = step.like if isinstance(step.like, list) else [step.like]
    results = list(result) if isinstance(step.like, list) else [result]
    if [array.shape for array in results] != [like.shape for like in likes]:
        raise RuntimeError(
            f"the shapes of {step.where} are {[array.shape for array in results]} in jax, but must be "
            f"{[like.shape for like in likes]}; report this as an error of its translation"
        )
    typed = [array.astype(like.dtype) for array, like in zip(results, likes, strict=True)]
    return typed if isinstance(step.like, list) else typed[0]


def _structure(run: Sequence[Operation], operands: Sequence[str], results: Sequence[str]) -> str:
    """A text that rows of operations share if they do the same on arrays in the same places."""
    numbers = {name: n for n, name in enumerate((*operands, *(step.result for step in run)))}
    steps = [
        (
            step.operator,
            on_places((step.arguments, *step.options.items()), lambda name: f"array {numbers[name]}"),
            step.like,
        )
        for step in run
    ]
    return repr((steps, [numbers[name] for name in results]))
