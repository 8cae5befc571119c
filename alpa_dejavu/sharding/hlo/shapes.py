"""Shapes of HLO values: sizes in bytes, numpy types, and how to make new ones.

References: `PrimitiveType` in XLA's `xla_data.proto` for the numbers of the element types.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from alpa_dejavu.sharding.hlo.schema import LiteralProto, ShapeProto

PRED, S8, S16, S32, S64, U8, U16, U32, U64 = 1, 2, 3, 4, 5, 6, 7, 8, 9
F16, F32, F64, TUPLE, C64, BF16, C128 = 10, 11, 12, 13, 15, 16, 18

# Of each element type numpy's name, and which field of a literal holds its values.
_TYPES = {
    PRED: ("bool", "preds"), S32: ("int32", "s32s"), S64: ("int64", "s64s"), U32: ("uint32", "u32s"),
    U64: ("uint64", "u64s"), F32: ("float32", "f32s"), F64: ("float64", "f64s"), C64: ("complex64", "c64s"),
    C128: ("complex128", "c128s"), S8: ("int8", "s8s"), U8: ("uint8", "u8s"), S16: ("int16", "s16s"),
    U16: ("uint16", "u16s"), F16: ("float16", "f16s"), BF16: ("bfloat16", "bf16s"),
    19: ("float8_e5m2", "f8e5m2s"), 20: ("float8_e4m3fn", "f8e4m3fns"), 21: ("int4", "s4s"), 22: ("uint4", "u4s"),
    23: ("float8_e4m3b11fnuz", "f8e4m3b11fnuzs"), 24: ("float8_e5m2fnuz", "f8e5m2fnuzs"),
    25: ("float8_e4m3fnuz", "f8e4m3fnuzs"),
}  # fmt: skip
_NUMPY = {kind: np.dtype(getattr(ml_dtypes, name, name)) for kind, (name, _) in _TYPES.items()}

INTEGERS = frozenset(kind for kind, (name, _) in _TYPES.items() if "int" in name)
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
    return num_elements(shape) * (_NUMPY[shape.element_type].itemsize if shape.element_type in _NUMPY else 0)


def dtype_name(shape: ShapeProto) -> str:
    """Returns numpy's name of an HLO array's element type; "" where it has none, as a token's."""
    return _TYPES[shape.element_type][0] if shape.element_type in _TYPES else ""


def same_array(first: ShapeProto, second: ShapeProto) -> bool:
    """Returns whether two HLO array shapes have the same element type and dimensions; layouts don't count."""
    return first.element_type == second.element_type and list(first.dimensions) == list(second.dimensions)


def literal_values(literal: LiteralProto) -> np.ndarray | None:
    """Returns an HLO literal as a numpy array, or None where its values aren't there, as in a tuple's."""
    kind = literal.shape.element_type
    if kind not in _TYPES:
        return None
    dtype, values = _NUMPY[kind], getattr(literal, _TYPES[kind][1])
    # Bytes are a little-endian array, as which complex numbers are pairs.
    array = np.frombuffer(values if isinstance(values, bytes) else np.array(values, _part(dtype)), dtype)
    return array.reshape(tuple(literal.shape.dimensions)) if array.size == num_elements(literal.shape) else None


def make_literal(element_type: int, values: np.ndarray | float) -> LiteralProto:
    """Makes an HLO literal of the given element type from an array or a number, dense and row-major."""
    dtype = _NUMPY[element_type]
    array = np.ascontiguousarray(values, dtype).reshape(np.shape(values))
    literal = LiteralProto(shape=array_shape(element_type, array.shape))
    field = _TYPES[element_type][1]
    if isinstance(getattr(literal, field), bytes):
        setattr(literal, field, array.tobytes())
    else:
        getattr(literal, field).extend(array.ravel().view(_part(dtype)).tolist())
    return literal


def _part(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the type of a complex number's parts, and any other type as it is."""
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype
