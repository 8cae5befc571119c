"""Shapes of HLO values: sizes in bytes, numpy types, and how to make new ones.

References: `PrimitiveType` in XLA's `xla_data.proto` for the numbers of the element types.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from alpa_dejavu.sharding.hlo._schema import LiteralProto, ShapeProto

PRED, S8, S16, S32, S64, U8, U16, U32, U64 = 1, 2, 3, 4, 5, 6, 7, 8, 9
F16, F32, F64, TUPLE, OPAQUE, C64, BF16, TOKEN, C128 = 10, 11, 12, 13, 14, 15, 16, 17, 18

_ITEM_BYTES = {
    PRED: 1,
    S8: 1,
    U8: 1,
    S16: 2,
    U16: 2,
    F16: 2,
    BF16: 2,
    S32: 4,
    U32: 4,
    F32: 4,
    S64: 8,
    U64: 8,
    F64: 8,
    C64: 8,
    C128: 16,
    19: 1,
    20: 1,
    23: 1,
    24: 1,
    25: 1,
    21: 1,
    22: 1,
}
_NUMPY = {
    PRED: np.bool_, S8: np.int8, S16: np.int16, S32: np.int32, S64: np.int64, U8: np.uint8, U16: np.uint16,
    U32: np.uint32, U64: np.uint64, F16: np.float16, F32: np.float32, F64: np.float64, C64: np.complex64,
    C128: np.complex128,
}  # fmt: skip
# Which field of a literal holds the values of an element type; those in bytes are little-endian arrays.
_LITERAL_FIELD = {
    PRED: "preds", S32: "s32s", S64: "s64s", U32: "u32s", U64: "u64s", F32: "f32s", F64: "f64s",
    S8: "s8s", U8: "u8s", S16: "s16s", U16: "u16s", F16: "f16s", BF16: "bf16s",
}  # fmt: skip
_BYTES_FIELDS = {"s8s", "u8s", "s16s", "u16s", "f16s", "bf16s"}

FLOATS = frozenset({F16, F32, F64, BF16})


def array_shape(element_type: int, dimensions: Sequence[int]) -> ShapeProto:
    """Makes the HLO shape of a dense array in row-major layout from its element type's number and dimensions."""
    shape = ShapeProto(element_type=element_type, dimensions=list(dimensions))
    shape.layout.minor_to_major.extend(range(len(dimensions) - 1, -1, -1))
    shape.is_dynamic_dimension.extend([False] * len(dimensions))
    return shape


def tuple_shape(shapes: Sequence[ShapeProto]) -> ShapeProto:
    """Makes the HLO shape of a tuple from the shapes of its parts."""
    return ShapeProto(element_type=TUPLE, tuple_shapes=list(shapes))


def is_tuple(shape: ShapeProto) -> bool:
    """Returns whether an HLO shape is a tuple's."""
    return shape.element_type == TUPLE


def num_elements(shape: ShapeProto) -> int:
    """Returns how many elements an array of an HLO shape has."""
    return math.prod(shape.dimensions)


def byte_size(shape: ShapeProto) -> int:
    """Returns how many bytes a value of an HLO shape occupies, all parts of a tuple together."""
    if is_tuple(shape):
        return sum(byte_size(part) for part in shape.tuple_shapes)
    return num_elements(shape) * _ITEM_BYTES.get(shape.element_type, 0)


def same_array(first: ShapeProto, second: ShapeProto) -> bool:
    """Returns whether two HLO array shapes have the same element type and dimensions; layouts don't count."""
    return first.element_type == second.element_type and list(first.dimensions) == list(second.dimensions)


def literal_values(literal: LiteralProto) -> np.ndarray | None:
    """Returns an HLO literal as a numpy array, or None for element types that numpy lacks."""
    kind = literal.shape.element_type
    field, dtype = _LITERAL_FIELD.get(kind), _NUMPY.get(kind)
    if field is None or dtype is None:
        return None
    values = getattr(literal, field)
    array = np.frombuffer(values, dtype) if field in _BYTES_FIELDS else np.array(values, dtype)
    return array.reshape(tuple(literal.shape.dimensions)) if array.size == num_elements(literal.shape) else None


def make_literal(element_type: int, values: np.ndarray | float) -> LiteralProto:
    """Makes an HLO literal of the given element type from an array or a number, dense and row-major."""
    array = np.asarray(values, _NUMPY[element_type])
    literal = LiteralProto(shape=array_shape(element_type, array.shape))
    field = _LITERAL_FIELD[element_type]
    if field in _BYTES_FIELDS:
        setattr(literal, field, array.tobytes())
    else:
        getattr(literal, field).extend(array.ravel().tolist())
    return literal
