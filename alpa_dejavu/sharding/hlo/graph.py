"""A computation opened for editing: instructions by id, fresh ids, uses replaced, dead code dropped, order kept valid.

The passes of this package work on a `HloGraph` and write it back with `close`. Within a graph an instruction is the
protobuf message itself; a pass changes its fields in place or points the users of one to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from alpa_dejavu.sharding.hlo.schema import HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto
from alpa_dejavu.sharding.hlo.shapes import array_shape, literal_values, make_literal, tuple_shape

_SIDE_EFFECTS = frozenset({
    "parameter", "infeed", "outfeed", "send", "send-done", "recv", "recv-done", "rng-get-and-update-state",
})  # fmt: skip


def entry(module: HloModuleProto) -> HloComputationProto:
    """Returns the entry computation of an HLO module, with which it starts."""
    return computation(module, module.entry_computation_id)


def computation(module: HloModuleProto, computation_id: int) -> HloComputationProto:
    """Returns the computation of an HLO module with the given id; raises a KeyError if there is none."""
    for part in module.computations:
        if part.id == computation_id:
            return part
    raise KeyError(f"the module {module.name} has no computation {computation_id}")


class HloGraph:
    """An editable view of one computation of an HLO module; `close` writes the edits into the module."""

    def __init__(self, module: HloModuleProto, target: HloComputationProto | None = None) -> None:
        self.module = module
        self.computation = entry(module) if target is None else target
        self.nodes: dict[int, HloInstructionProto] = {node.id: node for node in self.computation.instructions}
        self.root_id: int = self.computation.root_id
        self._next_id = 1 + max((node.id for part in module.computations for node in part.instructions), default=0)
        self._forward: dict[int, int] = {}

    def __iter__(self) -> Iterator[HloInstructionProto]:
        return iter(list(self.nodes.values()))

    @property
    def root(self) -> HloInstructionProto:
        """Returns the instruction whose value the computation returns."""
        return self.nodes[self.root_id]

    def operands(self, node: HloInstructionProto) -> list[HloInstructionProto]:
        """Returns the instructions whose values an instruction takes."""
        return [self.nodes[i] for i in node.operand_ids]

    def operand(self, node: HloInstructionProto, position: int) -> HloInstructionProto:
        """Returns the instruction whose value an instruction takes at a position."""
        return self.nodes[node.operand_ids[position]]

    def parameters(self) -> list[HloInstructionProto]:
        """Returns the parameter instructions, in the order of their numbers."""
        nodes = (node for node in self.nodes.values() if node.opcode == "parameter")
        return sorted(nodes, key=lambda node: node.parameter_number)

    def users(self) -> dict[int, list[HloInstructionProto]]:
        """Returns for each instruction's id the instructions that take its value; later edits aren't followed."""
        users: dict[int, list[HloInstructionProto]] = {i: [] for i in self.nodes}
        for node in self.nodes.values():
            for operand in dict.fromkeys(node.operand_ids):
                users[operand].append(node)
        return users

    def add(
        self, opcode: str, shape: ShapeProto, operands: Sequence[HloInstructionProto] = (), **fields: Any
    ) -> HloInstructionProto:
        """Adds an instruction, and returns it; other fields of its message are given by name."""
        node = HloInstructionProto(opcode=opcode, shape=shape, id=self._next_id, **fields)
        node.name = f"{opcode}.d{self._next_id}"
        node.operand_ids.extend(operand.id for operand in operands)
        self._next_id += 1
        self.nodes[node.id] = node
        return node

    def adopt(self, node: HloInstructionProto, operands: Iterable[int]) -> HloInstructionProto:
        """Adds a copy of an instruction, maybe of another computation, with the given operands, and returns it."""
        copy = HloInstructionProto()
        copy.CopyFrom(node)
        copy.id = self._next_id
        copy.name = f"{node.opcode}.d{self._next_id}"
        copy.ClearField("operand_ids")
        copy.ClearField("control_predecessor_ids")
        copy.operand_ids.extend(operands)
        self._next_id += 1
        self.nodes[copy.id] = copy
        return copy

    def constant(self, element_type: int, values: np.ndarray | float) -> HloInstructionProto:
        """Adds a constant of an element type and values, and returns it."""
        literal = make_literal(element_type, values)
        return self.add("constant", literal.shape, literal=literal)

    def reshape(self, node: HloInstructionProto, dimensions: Sequence[int]) -> HloInstructionProto:
        """Adds a reshape, and returns it; an instruction that has these dimensions is returned itself."""
        if list(node.shape.dimensions) == list(dimensions):
            return node
        return self.add("reshape", array_shape(node.shape.element_type, dimensions), [node], metadata=node.metadata)

    def transpose(self, node: HloInstructionProto, permutation: Sequence[int]) -> HloInstructionProto:
        """Adds a transpose, and returns it; for the identity permutation the instruction itself is returned."""
        if list(permutation) == list(range(len(permutation))):
            return node
        dimensions = [node.shape.dimensions[i] for i in permutation]
        return self.add(
            "transpose", array_shape(node.shape.element_type, dimensions), [node],
            dimensions=list(permutation), metadata=node.metadata,
        )

    def element(self, node: HloInstructionProto, index: int) -> HloInstructionProto:
        """Adds an instruction that extracts the part of a tuple at an index, and returns it."""
        return self.add("get-tuple-element", node.shape.tuple_shapes[index], [node], tuple_index=index)

    def tuple(self, parts: Sequence[HloInstructionProto]) -> HloInstructionProto:
        """Adds an instruction that makes a tuple of values, and returns it."""
        return self.add("tuple", tuple_shape([part.shape for part in parts]), parts)

    def replace(self, old: HloInstructionProto, new: HloInstructionProto) -> None:
        """Notes that users of the instruction `old` are to take `new`, once `settle` is called."""
        if old.id != new.id:
            self._forward[old.id] = new.id

    def resolve(self, node_id: int) -> int:
        """Returns the id of the instruction that stands for another after the replacements noted so far."""
        seen = node_id
        while seen in self._forward:
            seen = self._forward[seen]
        if node_id != seen:
            self._forward[node_id] = seen
        return seen

    def settle(self) -> bool:
        """Carries out the replacements noted so far, and returns whether there were any."""
        if not self._forward:
            return False
        for node in self.nodes.values():
            if any(i in self._forward for i in node.operand_ids):
                node.operand_ids[:] = [self.resolve(i) for i in node.operand_ids]
        self.root_id = self.resolve(self.root_id)
        self._forward.clear()
        return True

    def drop_dead(self) -> bool:
        """Removes instructions, but parameters, that nothing needs; returns whether there were any."""
        live: set[int] = set()
        stack = [self.root_id] + [node.id for node in self.nodes.values() if has_side_effect(node)]
        while stack:
            current = stack.pop()
            if current not in live:
                live.add(current)
                stack.extend(self.nodes[current].operand_ids)
        if len(live) == len(self.nodes):
            return False
        self.nodes = {i: node for i, node in self.nodes.items() if i in live}
        for node in self.nodes.values():
            if any(i not in live for i in node.control_predecessor_ids):
                node.control_predecessor_ids[:] = [i for i in node.control_predecessor_ids if i in live]
        return True

    def order(self) -> list[HloInstructionProto]:
        """Returns the instructions in an order in which each stands after its operands."""
        state: dict[int, bool] = {}
        result: list[HloInstructionProto] = []
        for start in self.nodes:
            stack = [start]
            while stack:
                current = stack[-1]
                node = self.nodes[current]
                if current not in state:
                    state[current] = False
                    before = [*node.operand_ids, *node.control_predecessor_ids]
                    stack.extend(i for i in reversed(before) if i not in state)
                    continue
                stack.pop()
                if not state[current]:
                    state[current] = True
                    result.append(node)
        return result

    def close(self) -> None:
        """Writes the edited computation into its module, without dead code and with operands before their users."""
        self.settle()
        self.drop_dead()
        ordered = [HloInstructionProto.FromString(node.SerializeToString()) for node in self.order()]
        self.computation.root_id = self.root_id
        del self.computation.instructions[:]
        self.computation.instructions.extend(ordered)
        self.computation.program_shape.result.CopyFrom(self.root.shape)
        if self.computation.id == self.module.entry_computation_id:
            self.module.host_program_shape.result.CopyFrom(self.root.shape)


def reduction_of(module: HloModuleProto, node: HloInstructionProto) -> str:
    """Returns the operation by which an instruction reduces, such as "add"; "" if it isn't a single operation."""
    if not node.called_computation_ids:
        return ""
    called = computation(module, node.called_computation_ids[0])
    root = next(inner for inner in called.instructions if inner.id == called.root_id)
    return root.opcode if all(inner.opcode in ("parameter", root.opcode) for inner in called.instructions) else ""


def scalar_value(graph: HloGraph, node: HloInstructionProto) -> float | None:
    """Returns the number that every element of a constant, or of a broadcast of one, has; else None."""
    while node.opcode in ("broadcast", "reshape") and node.operand_ids:
        node = graph.operand(node, 0)
    if node.opcode != "constant":
        return None
    values = literal_values(node.literal)
    if values is None or values.size != 1 or np.iscomplexobj(values):
        return None
    return float(values.reshape(()))


def has_side_effect(node: HloInstructionProto) -> bool:
    """Returns whether an HLO instruction must stay although nobody takes its value."""
    return node.opcode in _SIDE_EFFECTS or (node.opcode == "custom-call" and node.custom_call_has_side_effect)


def drop_unreachable(module: HloModuleProto) -> None:
    """Removes the computations of an HLO module that nothing calls any more."""
    by_id = {part.id: part for part in module.computations}
    live: set[int] = set()
    stack = [module.entry_computation_id]
    while stack:
        current = stack.pop()
        if current not in live:
            live.add(current)
            stack.extend(i for node in by_id[current].instructions for i in node.called_computation_ids)
    if len(live) < len(by_id):
        kept = [HloComputationProto.FromString(p.SerializeToString()) for p in module.computations if p.id in live]
        del module.computations[:]
        module.computations.extend(kept)
