"""A module of PyTorch as a list of operations on arrays, by `torch.export` of its forward pass on no device."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import torch
from torch import nn
from torch.fx import Node

from alpa_dejavu.layers.torch_modules._table import OPERATORS, VIEWS

_NARROW = {"int64": "int32", "float64": "float32", "complex128": "complex64"}
"""jax's arrays, too, have 32 bits at most, unless it is told otherwise."""
_PLACED = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "requires_grad", "generator"})
"""Arguments of operators that say where numbers lie."""
_UNCHANGED = frozenset({"detach_"})
"""Operators in place that leave all numbers as they are."""


@final
@dataclasses.dataclass(frozen=True)
class Place:
    """An array among an operation's arguments, by its name."""

    name: str


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """One run of an operator on arrays.

    Attributes:
        operator: its name in the table.
        arguments, options: what it takes by position and by name, with a `Place` for each array.
        result: the name of its result.
        like: the shape and type of its result, or those of its results.
        block: the name of the module among many alike in a row that it runs in; empty: in none.
        where: the operator's whole name, and the module that runs it, for a reader.
    """

    operator: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    result: str
    like: Any
    block: str
    where: str

    @property
    def operands(self) -> list[str]:
        """Returns the names of the arrays that it takes, in order."""
        names: list[str] = []
        on_places([*self.arguments, *self.options.values()], names.append)
        return names


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Weight:
    """A parameter or a buffer of a module: its name, the block that it is in, its shape and type, whether it is
    trained, and the names of arrays that it is for operations.
    """

    name: str
    block: str
    like: jax.ShapeDtypeStruct
    trained: bool
    places: tuple[str, ...]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ExportedModule:
    """A module's forward pass as operations, in order: its weights, its inputs by name, and the name and shape of its
    result, which is its loss where it returns one.
    """

    operations: tuple[Operation, ...]
    weights: tuple[Weight, ...]
    inputs: Mapping[str, jax.ShapeDtypeStruct]
    result: str
    shape: tuple[int, ...]


def on_places(value: Any, function: Callable[[str], Any]) -> Any:
    """Returns an argument with the results of a function of their names in the place of all arrays in it."""
    if isinstance(value, Place):
        return function(value.name)
    if isinstance(value, (list, tuple)):
        return type(value)(on_places(part, function) for part in value)
    return value


def exported(module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> ExportedModule:
    """Exports a module, which stays as it is, called with such arguments, of which only shapes and types count.

    Raises:
        ValueError: the module can't be exported for these inputs, or has an operator without a translation; it is
            named with the module that runs it.
    """
    name = type(module).__name__
    given = (leaf for leaf in jax.tree.leaves((arguments, dict(options))) if isinstance(leaf, torch.Tensor))
    device = next((tensor.device for tensor in (*module.parameters(), *module.buffers(), *given)), torch.device("meta"))

    def fresh(leaf: Any) -> Any:  # also where one tensor is given twice
        return torch.empty_like(leaf, device=device) if isinstance(leaf, torch.Tensor) else leaf

    arguments, options = jax.tree.map(fresh, (arguments, dict(options)))
    try:
        with _quietly():
            program = torch.export.export(_FirstTensor(module), arguments, options, strict=False)
            if not _is_functional(program.graph.nodes):
                program = program.run_decompositions({})
    except Exception as error:  # of torch, of the module itself, or of what it calls
        raise ValueError(_refusal(name, error, (arguments, options))) from error
    return _read(name, module, program, (arguments, options))


@final
class _FirstTensor(nn.Module):
    """A module of which only the loss or the first floating-point tensor is wanted, as logits are."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        returned = self.module(*args, **kwargs)
        loss = getattr(returned, "loss", None)
        first = next(_tensors(returned if loss is None else loss), None)
        if first is None:
            raise TypeError(f"it returns a {type(returned).__name__} without a floating-point tensor")
        return first


def _tensors(returned: Any) -> Iterator[torch.Tensor]:
    if isinstance(returned, torch.Tensor) and returned.is_floating_point():
        yield returned
    elif isinstance(returned, Mapping):
        for value in returned.values():
            yield from _tensors(value)
    elif isinstance(returned, (list, tuple)):
        for value in returned:
            yield from _tensors(value)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keeps torch from printing: an error has what it says of an export that fails, and its warnings help nobody."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _refusal(name: str, error: Exception, inputs: Any) -> str:
    reason = str(error).strip().split("\n")[0].rstrip(".")
    if "data-dependent" in reason.lower() or "DataDependent" in type(error).__name__:
        return (
            f"model is {name}, but must run the same operations whatever numbers it is given ({reason}); choose by "
            "torch.where, or plan the part that is always run"
        )
    shapes = ", ".join(
        f"{tuple(leaf.shape)} of {str(leaf.dtype).removeprefix('torch.')}"
        for leaf in jax.tree.leaves(inputs)
        if isinstance(leaf, torch.Tensor)
    )
    return (
        f"inputs are {shapes or 'none'}, but must be such that torch.export can run the forward pass of {name} on them "
        f"({type(error).__name__}: {reason}); check that {name} takes them by calling it"
    )


def _is_functional(nodes: Sequence[Node]) -> bool:
    """Whether nothing is changed in place that is also seen by another name later on."""
    roots: dict[Node, Node] = {}
    members: dict[Node, list[Node]] = collections.defaultdict(list)
    order = {node: n for n, node in enumerate(nodes)}
    for node in nodes:
        first = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        name = _operator(node)
        shares = name in VIEWS or name.endswith("_")
        if name == "getitem":
            assert first is not None
            shares = _operator(first) in VIEWS
        roots[node] = roots[first] if shares and first is not None else node
        if first is not None and _changes(node):
            others = (other for other in members[roots[first]] if other is not first)
            if any(order[user] > order[node] for other in others for user in other.users):
                return False
        members[roots[node]].append(node)
    return True


def _changes(node: Node) -> bool:
    name = _operator(node)
    return name.endswith("_") and not name.endswith("__") and name not in _UNCHANGED


def _operator(node: Node) -> str:
    """The name of a node's operator, without its namespace and overload; empty if it has none."""
    if node.op != "call_function":
        return ""
    if node.target is operator.getitem:
        return "getitem"
    schema = getattr(node.target, "_schema", None)
    return str(node.target) if schema is None else str(schema.name).partition("::")[2]


def _read(name: str, module: nn.Module, program: Any, inputs: Any) -> ExportedModule:
    graph = program.graph_signature
    blocks = _rows(module)
    operations, result, shape = _operations(name, program.graph.nodes, blocks)
    likes = {node.name: _like(node.meta["val"]) for node in program.graph.nodes if node.op == "placeholder"}
    needed = {operand for operation in operations for operand in operation.operands} | {result}
    weights = _weights(module, graph, likes, needed, blocks)
    leaves = jax.tree.leaves(inputs, is_leaf=lambda leaf: leaf is None)
    spec = program.call_spec.in_spec
    positions = jax.tree.leaves(spec.unflatten(list(range(len(leaves)))))
    given = [graph.user_inputs[n] for leaf, n in zip(leaves, positions, strict=True) if isinstance(leaf, torch.Tensor)]
    return ExportedModule(tuple(operations), tuple(weights), {place: likes[place] for place in given}, result, shape)


def _rows(module: nn.Module) -> frozenset[str]:
    """The names of modules that stand in a row with others of their class."""
    rows: set[str] = set()
    for name, parent in module.named_modules():
        if isinstance(parent, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
            counts = collections.Counter(type(child) for child in parent.children())
            rows.update(
                f"{name}.{own}".lstrip(".") for own, child in parent.named_children() if counts[type(child)] > 1
            )
    return frozenset(rows)


def _block(path: str, rows: frozenset[str]) -> str:
    """The outermost module of a row that a name is in; empty if there is none."""
    parts = path.split(".")
    prefixes = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return next((prefix for prefix in prefixes if prefix in rows), "")


def _operations(name: str, nodes: Sequence[Node], rows: frozenset[str]) -> tuple[list[Operation], str, Any]:
    """The operations that the result depends on, each array under its last name where it was changed in place; the name
    and the shape of the result.
    """
    names: dict[str, str] = {}
    operations: list[Operation] = []
    result, shape = "", ()

    def named(node: Node) -> Place:
        return Place(names.get(node.name, node.name))

    for node in nodes:
        if node.op == "output":
            last = node.args[0][-1]
            result, shape = named(last).name, _like(last.meta["val"]).shape
        elif node.op == "call_function":
            arguments = tuple(_argument(value, named) for value in node.args)
            options = {key: _argument(value, named) for key, value in node.kwargs.items() if key not in _PLACED}
            path, where = _where(node, name)
            own = _operator(node)
            changed = own.removesuffix("_") if own.endswith("_") and not own.endswith("__") else own
            operations.append(
                Operation(changed, arguments, options, node.name, node.meta.get("val"), _block(path, rows), where)
            )
            if _changes(node):
                names[node.args[0].name] = node.name
    needed = {result}
    live: list[Operation] = []
    for operation in reversed(operations):
        if operation.result in needed:
            needed.update(operation.operands)
            live.append(operation)
    _check_known(live)
    shaped = [dataclasses.replace(step, like=_like(step.like, step.where)) for step in reversed(live)]
    return shaped, result, shape


def _where(node: Node, name: str) -> tuple[str, str]:
    """The name of the module that runs a node, and its operator with that for a reader."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path, kind = stack[-1] if stack else ("", name)
    path = re.sub(r"@\d+", "", path).removeprefix("module").lstrip(".")
    kind = (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]
    kind = name if kind == _FirstTensor.__name__ else kind
    return path, f"{node.target} in {f'{path} ({kind})' if path else kind}"


def _check_known(operations: Sequence[Operation]) -> None:
    lacking = {step.operator: step.where for step in reversed(operations) if step.operator not in OPERATORS}
    if lacking:
        raise ValueError(
            f"operators are {', '.join(list(lacking.values())[:3])}, but must be among the {len(OPERATORS)} that are "
            "translated to jax; write the module with others, or plan a model function in jax in its place"
        )


def _argument(value: Any, named: Callable[[Node], Place]) -> Any:
    if isinstance(value, Node):
        return named(value)
    if isinstance(value, (list, tuple)):
        parts = [_argument(part, named) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, torch.dtype):
        return _dtype(value)
    return None if isinstance(value, (torch.device, torch.layout, torch.memory_format)) else value


def _dtype(dtype: torch.dtype) -> Any:
    text = str(dtype).removeprefix("torch.")
    return jnp.dtype(_NARROW.get(text, text))


def _like(value: Any, where: str = "") -> Any:
    if isinstance(value, torch.Tensor):
        if not all(isinstance(size, int) for size in value.shape):
            raise ValueError(
                f"the shape of {where} is {tuple(value.shape)}, but must not depend on the numbers of arrays; give all "
                "arrays a size that the inputs' shapes determine"
            )
        return jax.ShapeDtypeStruct(tuple(value.shape), _dtype(value.dtype))
    return [_like(part, where) for part in value] if isinstance(value, (list, tuple)) else None


def _weights(
    module: nn.Module, graph: Any, likes: Mapping[str, Any], needed: set[str], rows: frozenset[str]
) -> list[Weight]:
    """The parameters and buffers that operations take; what is shared between modules is one."""
    own = dict(module.named_parameters(remove_duplicate=False))
    first = {id(parameter): name for name, parameter in module.named_parameters()}
    places: dict[str, list[str]] = {}
    sources = {**graph.inputs_to_parameters, **graph.inputs_to_buffers, **graph.inputs_to_lifted_tensor_constants}
    for place, target in sources.items():
        name = target.removeprefix("module.")
        if place in needed:
            places.setdefault(first[id(own[name])] if name in own else name, []).append(place)
    return [
        Weight(name, _block(name, rows), likes[own_places[0]], name in own and own[name].requires_grad, (*own_places,))
        for name, own_places in places.items()
    ]
