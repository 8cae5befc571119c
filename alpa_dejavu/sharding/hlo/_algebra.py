"""Local rewrites that leave a value unchanged: nothing is moved across computations and no arithmetic is reordered.

Each rule takes an instruction and returns one that has the same value, or None where it has nothing to say. They are
what the sharding engine wants gone before it counts strategies: shape changes that change nothing, chains of
reshapes, transposes and broadcasts, sums with zero and products with one.

References: a small part of XLA's AlgebraicSimplifier and TupleSimplifier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from alpa_dejavu.sharding.hlo.graph import HloGraph, reduction_of, scalar_value
from alpa_dejavu.sharding.hlo.schema import HloInstructionProto
from alpa_dejavu.sharding.hlo.shapes import FLOATS, literal_values, num_elements, same_array

Node = HloInstructionProto
Rule = Callable[[HloGraph, Node], Node | None]


def _get_tuple_element(graph: HloGraph, node: Node) -> Node | None:
    source = graph.operand(node, 0)
    return graph.operand(source, node.tuple_index) if source.opcode == "tuple" else None


def _tuple(graph: HloGraph, node: Node) -> Node | None:
    """A tuple of all the elements of another tuple, in order, is that tuple.

    Not a marker's: a stage's inputs and its outputs stay apart.
    """
    parts = graph.operands(node)
    if not parts or any(part.opcode != "get-tuple-element" for part in parts):
        return None
    source = graph.operand(parts[0], 0)
    same = all(part.operand_ids[0] == source.id and part.tuple_index == i for i, part in enumerate(parts))
    if source.opcode == "custom-call" or not same or len(source.shape.tuple_shapes) != len(parts):
        return None
    return source


def _unchanged(graph: HloGraph, node: Node) -> Node | None:
    source = graph.operand(node, 0)
    return source if same_array(source.shape, node.shape) else None


def _reshape(graph: HloGraph, node: Node) -> Node | None:
    source = graph.operand(node, 0)
    if same_array(source.shape, node.shape):
        return source
    if source.opcode == "reshape":
        return graph.reshape(graph.operand(source, 0), list(node.shape.dimensions))
    if source.opcode == "broadcast" and not source.dimensions:
        return _spread(graph, node, graph.operand(source, 0))
    if source.opcode == "constant" and num_elements(node.shape) == 1:
        values = literal_values(source.literal)
        if values is not None:
            return graph.constant(node.shape.element_type, values.reshape(tuple(node.shape.dimensions)))
    return None


def _transpose(graph: HloGraph, node: Node) -> Node | None:
    source = graph.operand(node, 0)
    permutation = list(node.dimensions)
    if permutation == sorted(permutation):
        return source
    if source.opcode == "transpose":
        return graph.transpose(graph.operand(source, 0), [source.dimensions[i] for i in permutation])
    if source.opcode == "broadcast" and not source.dimensions:
        return _spread(graph, node, graph.operand(source, 0))
    moved = [i for i in permutation if source.shape.dimensions[i] != 1]
    if moved == sorted(moved):
        return graph.reshape(source, list(node.shape.dimensions))
    return None


def _broadcast(graph: HloGraph, node: Node) -> Node | None:
    source = graph.operand(node, 0)
    if same_array(source.shape, node.shape) and list(node.dimensions) == list(range(len(node.dimensions))):
        return source
    if source.opcode == "broadcast":
        return _spread(graph, node, graph.operand(source, 0), [node.dimensions[i] for i in source.dimensions])
    if source.opcode == "reshape" and source.shape.dimensions and num_elements(source.shape) == 1:
        return _spread(graph, node, graph.reshape(graph.operand(source, 0), []))
    if source.shape.dimensions and num_elements(source.shape) == 1 and num_elements(node.shape) > 1:
        return _spread(graph, node, graph.reshape(source, []))
    return None


def _spread(graph: HloGraph, node: Node, source: Node, dimensions: Sequence[int] = ()) -> Node:
    return graph.add("broadcast", node.shape, [source], dimensions=list(dimensions), metadata=node.metadata)


def _broadcast_of_iota(graph: HloGraph, node: Node) -> Node | None:
    """A spread-out iota is an iota of that shape."""
    source = graph.operand(node, 0)
    if source.opcode != "iota":
        return None
    dimension = node.dimensions[source.dimensions[0] if source.dimensions else 0]
    return graph.add("iota", node.shape, dimensions=[dimension], metadata=node.metadata)


def _multiply_twice(graph: HloGraph, node: Node) -> Node | None:
    """(x * a) * b is x * (a * b), where a and b are constants."""
    for side in (0, 1):
        inner, outer = graph.operand(node, 1 - side), scalar_value(graph, graph.operand(node, side))
        if outer is None or inner.opcode != "multiply" or node.shape.element_type not in FLOATS:
            continue
        for inner_side in (0, 1):
            factor = scalar_value(graph, graph.operand(inner, inner_side))
            if factor is not None and node.shape.dimensions:
                both = graph.add("broadcast", node.shape, [graph.constant(node.shape.element_type, factor * outer)])
                return graph.add(
                    "multiply", node.shape, [graph.operand(inner, 1 - inner_side), both], metadata=node.metadata
                )
    return None


def _reduce(graph: HloGraph, node: Node) -> Node | None:
    """A reduction over nothing but dimensions of size one, from the neutral element, only changes the shape."""
    if len(node.operand_ids) != 2:
        return None
    source, start = graph.operands(node)
    if any(source.shape.dimensions[i] != 1 for i in node.dimensions):
        return None
    neutral = {"add": 0.0, "multiply": 1.0}.get(reduction_of(graph.module, node))
    if neutral is None or scalar_value(graph, start) != neutral:
        return None
    return graph.reshape(source, list(node.shape.dimensions))


def _pad(graph: HloGraph, node: Node) -> Node | None:
    padding = node.padding_config.ListFields()
    unchanged = all(
        not (d.edge_padding_low or d.edge_padding_high or d.interior_padding)
        for _, dimensions in padding for d in dimensions
    )
    return graph.operand(node, 0) if unchanged else None


def _select(graph: HloGraph, node: Node) -> Node | None:
    condition, yes, no = graph.operands(node)
    if yes.id == no.id:
        return yes
    value = scalar_value(graph, condition)
    if value is None or not same_array(yes.shape, no.shape):
        return None
    return yes if value else no


def _neutral(position: int | None, neutral: float) -> Rule:
    """`x op neutral` is x; with no position, on either side."""

    def rule(graph: HloGraph, node: Node) -> Node | None:
        for side in (0, 1) if position is None else (position,):
            other = graph.operand(node, 1 - side)
            if scalar_value(graph, graph.operand(node, side)) == neutral and same_array(other.shape, node.shape):
                return other
        return None

    return rule


def _opposite(graph: HloGraph, node: Node) -> Node | None:
    source = graph.operand(node, 0)
    return graph.operand(source, 0) if source.opcode == node.opcode else None


RULES: dict[str, tuple[Rule, ...]] = {
    "get-tuple-element": (_get_tuple_element,),
    "tuple": (_tuple,),
    "convert": (_unchanged,),
    "reshape": (_reshape,),
    "transpose": (_transpose,),
    "broadcast": (_broadcast, _broadcast_of_iota),
    "slice": (_unchanged,),
    "concatenate": (lambda graph, node: graph.operand(node, 0) if len(node.operand_ids) == 1 else None,),
    "reduce": (_reduce,),
    "pad": (_pad,),
    "select": (_select,),
    "add": (_neutral(None, 0.0),),
    "subtract": (_neutral(1, 0.0),),
    "multiply": (_neutral(None, 1.0), _multiply_twice),
    "divide": (_neutral(1, 1.0),),
    "negate": (_opposite,),
    "not": (_opposite,),
}
