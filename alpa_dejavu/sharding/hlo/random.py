"""Random numbers that follow a seed given to each run.

XLA's `rng` draws from a state of the compiled program that nobody can set. Here it is replaced by Philox bits of a
key that comes from one more parameter, the instruction and the partition, so a run can be repeated and no two
partitions draw the same.

References: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011); Box and Muller (1958).
"""

from __future__ import annotations

import dataclasses
import math

from alpa_dejavu.sharding.hlo._graph import Graph, entry
from alpa_dejavu.sharding.hlo._schema import HloInstructionProto, HloModuleProto, OpSharding, ShapeProto
from alpa_dejavu.sharding.hlo._shapes import BF16, F16, F32, F64, U32, U64, array_shape, tuple_shape

__all__ = ["seed_random_numbers"]

_UNIFORM, _NORMAL = 1, 2
_PHILOX = 2
_MANTISSA_BITS = {F16: 11, BF16: 8, F32: 23, F64: 52}
# Odd multipliers spread instructions and partitions over the keys: the fractions of the golden ratio and of the
# square root of 2.
_INSTRUCTION_STEP = 0x9E3779B97F4A7C15
_PARTITION_STEP = 0x6A09E667F3BCC909


def seed_random_numbers(module: HloModuleProto, partitioned: bool) -> HloModuleProto | None:
    """Returns a copy of a module whose random numbers follow a seed, a u64 scalar that is its last parameter.

    It is None if the module draws no random numbers.

    Args:
        module: a module whose entry computation may contain `rng`; those in loops and branches, and those of integers,
            are left as they are.
        partitioned: whether it runs as one partition of several, which then draw different numbers.
    """
    if not any(_is_replaceable(node) for node in entry(module).instructions):
        return None
    module = HloModuleProto.FromString(module.SerializeToString())
    graph = Graph(module)
    drawn = _Drawn(graph, _partition_seed(graph, _add_parameter(graph), partitioned))
    for node in graph:
        if _is_replaceable(node):
            low, high = graph.operands(node)
            new = drawn.uniform(node, low, high) if node.distribution == _UNIFORM else drawn.normal(node, low, high)
            graph.replace(node, new)
    graph.close()
    return module


def _is_replaceable(node: HloInstructionProto) -> bool:
    known = node.shape.element_type in _MANTISSA_BITS and node.distribution in (_UNIFORM, _NORMAL)
    return node.opcode == "rng" and known


def _add_parameter(graph: Graph) -> HloInstructionProto:
    shape = array_shape(U64, [])
    seed = graph.add("parameter", shape, parameter_number=len(graph.parameters()))
    for program in (graph.module.host_program_shape, graph.computation.program_shape):
        program.parameters.add().CopyFrom(shape)
        program.parameter_names.append(seed.name)
    if graph.module.spmd_parameters_shardings:
        graph.module.spmd_parameters_shardings.append(OpSharding())
    return seed


def _partition_seed(graph: Graph, seed: HloInstructionProto, partitioned: bool) -> HloInstructionProto:
    if not partitioned:
        return seed
    number = graph.add("convert", seed.shape, [graph.add("partition-id", array_shape(U32, []))])
    step = graph.constant(U64, _PARTITION_STEP)
    return graph.add("add", seed.shape, [seed, graph.add("multiply", seed.shape, [number, step])])


def _computed_in(like: HloInstructionProto) -> int:
    return F64 if like.shape.element_type == F64 else F32


@dataclasses.dataclass
class _Drawn:
    """Draws arrays in a graph, each from a key of its own."""

    graph: Graph
    seed: HloInstructionProto
    count: int = 0

    def uniform(
        self, like: HloInstructionProto, low: HloInstructionProto, high: HloInstructionProto
    ) -> HloInstructionProto:
        """Adds HLO instructions that draw uniform random numbers from [low, high), and returns the last of them.

        The numbers have the shape and type of the instruction `like`.
        """
        unit = self._converted(self._unit(like, _MANTISSA_BITS[like.shape.element_type]), like)
        width = self.graph.add("subtract", low.shape, [high, low])
        return self._scaled(unit, low, width)

    def normal(
        self, like: HloInstructionProto, mean: HloInstructionProto, deviation: HloInstructionProto
    ) -> HloInstructionProto:
        """Adds HLO instructions that draw normal random numbers by Box and Muller's method, and returns the last one.

        The numbers have the shape and type of the instruction `like`.
        """
        graph = self.graph
        first, second = (self._unit(like, _MANTISSA_BITS[_computed_in(like)]) for _ in range(2))
        # 1 - u is never zero, u may be.
        logarithm = graph.add("log", first.shape, [self._with_scalar("subtract", 1.0, first)])
        radius = graph.add("sqrt", first.shape, [self._with_scalar("multiply", -2.0, logarithm)])
        angle = graph.add("cosine", first.shape, [self._with_scalar("multiply", 2 * math.pi, second)])
        standard = graph.add("multiply", first.shape, [radius, angle])
        return self._scaled(self._converted(standard, like), mean, deviation)

    def _scaled(
        self, values: HloInstructionProto, offset: HloInstructionProto, factor: HloInstructionProto
    ) -> HloInstructionProto:
        scaled = self.graph.add("multiply", values.shape, [values, self._broadcast(factor, values.shape)])
        return self.graph.add("add", values.shape, [scaled, self._broadcast(offset, values.shape)])

    def _unit(self, like: HloInstructionProto, keep: int) -> HloInstructionProto:
        """Numbers of [0, 1) in the type that is computed in: multiples of 2 ** -keep, so that none is rounded to 1."""
        graph, dimensions, kind = self.graph, list(like.shape.dimensions), _computed_in(like)
        word, width = (U64, 64) if kind == F64 else (U32, 32)
        bits = self._bits(array_shape(word, dimensions))
        drop = self._broadcast(graph.constant(word, width - keep), bits.shape)
        kept = graph.add("shift-right-logical", bits.shape, [bits, drop])
        return self._with_scalar("multiply", 2.0**-keep, graph.add("convert", array_shape(kind, dimensions), [kept]))

    def _converted(self, values: HloInstructionProto, like: HloInstructionProto) -> HloInstructionProto:
        if values.shape.element_type == like.shape.element_type:
            return values
        shape = array_shape(like.shape.element_type, list(like.shape.dimensions))
        return self.graph.add("convert", shape, [values])

    def _bits(self, shape: ShapeProto) -> HloInstructionProto:
        graph = self.graph
        self.count += 1
        step = graph.constant(U64, self.count * _INSTRUCTION_STEP % 2**64)
        key = graph.reshape(graph.add("add", self.seed.shape, [self.seed, step]), [1])
        counter = graph.reshape(graph.constant(U64, 0), [1])
        state = graph.add("concatenate", array_shape(U64, [2]), [key, counter], dimensions=[0])
        both = graph.add("rng-bit-generator", tuple_shape([state.shape, shape]), [state], rng_algorithm=_PHILOX)
        return graph.element(both, 1)

    def _with_scalar(self, opcode: str, scalar: float, values: HloInstructionProto) -> HloInstructionProto:
        constant = self._broadcast(self.graph.constant(values.shape.element_type, scalar), values.shape)
        return self.graph.add(opcode, values.shape, [constant, values])

    def _broadcast(self, scalar: HloInstructionProto, shape: ShapeProto) -> HloInstructionProto:
        target = array_shape(scalar.shape.element_type, list(shape.dimensions))
        return self.graph.add("broadcast", target, [scalar])
