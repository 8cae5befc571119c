"""Writes a model as JSON's data: its layers' operators, of which equal ones are written once, and its tensors."""

from __future__ import annotations

import base64
import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util import units
from alpa_dejavu._util.file_size import VARIABLE, most_bytes
from alpa_dejavu.problem import Layer, Model, Operator, Operators, RecomputingPasses, Tensor

Data = dict[str, Any]
_PARTS, _AGAIN = ("forward", "backward", "update"), ("forward", "again", "backward")
_COLUMNS = tuple(field.name for field in dataclasses.fields(Operators) if field.name != "records")
_FIGURES = tuple(field.name for field in dataclasses.fields(Operator))


@final
class Numbered:
    """A list that stores each object once and numbers the objects in the order in which they were first met."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}

    @property
    def objects(self) -> list[Any]:
        return list(self._objects.values())

    def number(self, thing: Any) -> int:
        self._objects[id(thing)] = thing  # kept, so that its id stays its own
        return self._numbers.setdefault(id(thing), len(self._numbers))


def model_data(model: Model) -> Data:
    operators, records = Numbered(), Numbered()
    layers = [
        {
            "name": layer.name,
            **{part: operators.number(getattr(layer, part)) for part in _PARTS},
            "temporary_bytes": [layer.forward_temporary_bytes, layer.backward_temporary_bytes],
            "exchanged_bytes": list(layer.exchanged_bytes),
            "recomputing": None if layer.recomputing is None else _passes_data(layer.recomputing, operators),
        }
        for layer in model.layers
    ]
    distinct: dict[Operator, int] = {}
    tensors: dict[Tensor, int] = {}
    columns = [_columns_data(rows, records.number(rows.records)) for rows in operators.objects]
    return {
        "training": model.training,
        "layers": layers,
        "operators": columns,
        "records": [[distinct.setdefault(record, len(distinct)) for record in rows] for rows in records.objects],
        "distinct": [[getattr(record, name) for name in _FIGURES] for record in distinct],
        "tensor_numbers": [tensors.setdefault(tensor, len(tensors)) for tensor in model.tensors],
        "tensors": [[tensor.num_bytes, tensor.role, tensor.producer, list(tensor.users)] for tensor in tensors],
    }


def _passes_data(passes: RecomputingPasses, operators: Numbered) -> Data:
    numbers = {part: operators.number(getattr(passes, part)) for part in _AGAIN}
    return {**numbers, "temporary_bytes": passes.temporary_bytes}


def _columns_data(rows: Operators, number: int) -> Data:
    """Returns operators as JSON data: their columns where these aren't simply their records' figures."""
    whole = Operators.of(rows.records)
    if all(np.array_equal(getattr(rows, name), getattr(whole, name)) for name in _COLUMNS):
        return {"records": number}
    return {"records": number, **{name: getattr(rows, name).tolist() for name in _COLUMNS}}


def model_of(data: Mapping[str, Any]) -> Model:
    """Returns the model, without its sharding, that JSON data made by `model_data` describe.

    Raises:
        ValueError: there are so many layers that one number for each range of layers takes too much memory, or the data
            are broken.
    """
    count = len(data["layers"])
    if 8 * count**2 > most_bytes():
        mebibytes = math.ceil(8 * count**2 / 2**20)
        raise ValueError(
            f"a number for each range of its {count} layers takes {units.traffic(8 * count**2)}, but must take at "
            f"most {units.traffic(most_bytes())}; if that is meant, set {VARIABLE} to {mebibytes}"
        )
    if "distinct" in data:
        distinct, numbers = list(map(_record, data["distinct"])), data["records"]
    else:  # as 0.1.0 wrote them: each operator as often as it is used
        distinct = [_record(row) for rows in data["records"] for row in rows]
        ends = np.cumsum([len(rows) for rows in data["records"]]).tolist()
        numbers = [list(range(end - len(rows), end)) for end, rows in zip(ends, data["records"], strict=True)]
    whole = Operators.of(distinct)
    operators = [_operators(rows, numbers[rows["records"]], distinct, whole) for rows in data["operators"]]
    layers = []
    for layer in data["layers"]:
        exchanged = np.array(layer["exchanged_bytes"], np.float64)
        check_figures("exchanged_bytes", exchanged, (exchanged.size,))
        forward, backward, update = (operators[layer[part]] for part in _PARTS)
        forward_bytes, backward_bytes = map(float, layer["temporary_bytes"])
        sizes = forward_bytes, backward_bytes, tuple(exchanged.tolist())
        again = layer.get("recomputing")  # older files don't have it
        passes = None if again is None else _passes_of(again, operators, (len(forward), len(forward), len(backward)))
        layers.append(Layer(layer["name"], forward, backward, update, *sizes, passes))
    tensors = tuple(
        Tensor(float(size), role, operator.index(producer), tuple(map(operator.index, users)))
        for size, role, producer, users in data["tensors"]
    )
    if any(tensor.producer < -1 for tensor in tensors):
        raise ValueError("a tensor is made at a position below -1, which is outside")
    if "tensor_numbers" in data:  # older files have each tensor as often as it comes
        tensors = tuple(map(tensors.__getitem__, data["tensor_numbers"]))
    return Model(tuple(layers), tensors, bool(data["training"]))


def _passes_of(data: Mapping[str, Any], operators: Sequence[Operators], lengths: tuple[int, ...]) -> RecomputingPasses:
    forward, again, backward = (operators[data[part]] for part in _AGAIN)
    if (counts := (len(forward), len(again), len(backward))) != lengths:
        raise ValueError(f"recomputing passes have {counts} operators, but must have {lengths}, as many as the layer's")
    return RecomputingPasses(forward, again, backward, float(data["temporary_bytes"]))


def _operators(data: Mapping[str, Any], numbers: list[int], distinct: list[Operator], whole: Operators) -> Operators:
    """Returns operators by their numbers among the distinct ones, `whole` in columns; data may have other columns."""
    records, length = tuple(distinct[number] for number in numbers), len(numbers)
    if "flop" not in data:
        return Operators(records, **{name: getattr(whole, name)[numbers] for name in _COLUMNS})
    columns: Data = {name: np.array(data[name], dtype=_type_of(name)) for name in _COLUMNS}
    lengths = {name: len(column) for name, column in columns.items()}
    if set(lengths.values()) - {length}:
        raise ValueError(f"there are {length} records of operators, but columns of {lengths}")
    for name, column in columns.items():
        if _type_of(name) is np.float64:
            check_figures(name, column, (length,))
    return Operators(records, **columns)


def check_figures(name: str, figures: NDArray[np.float64], shape: tuple[int, ...]) -> None:
    """Raises ValueError unless figures have a shape, and each is finite and at least 0."""
    if figures.shape != shape:
        raise ValueError(f"{name} has the shape {list(figures.shape)}, but must have {list(shape)}")
    if not (np.isfinite(figures) & (figures >= 0)).all():
        raise ValueError(f"{name} has {figures.min()}, but must have finite numbers of at least 0")


def _type_of(column: str) -> type[np.generic]:
    if column == "dtype":
        return np.str_
    return np.bool_ if column.startswith("is_") else np.float64


def _record(values: list[Any]) -> Operator:
    # Older ones have no `repeated` or kernel, those of 0.1.0 no `by_weight`
    if not len(_FIGURES) - 3 <= len(values) <= len(_FIGURES):
        raise ValueError(f"an operator has {len(values)} figures, but must have {len(_FIGURES)}")
    # In the order of the figures: naming them takes as long as all else.
    kind, primitive, input_shapes, output_shapes, *others = values
    return Operator(kind, primitive, tuple(map(tuple, input_shapes)), tuple(map(tuple, output_shapes)), *others)


def packed(array: NDArray[Any], dtype: type[np.signedinteger[Any]]) -> dict[str, Any]:
    """Returns an array of whole numbers as JSON data: its shape, and its numbers as little-endian bytes in base64.

    >>> packed(np.array([[1, 2]]), np.int8)
    {'shape': [1, 2], 'numbers': 'AQI='}
    """
    small = array.astype(np.dtype(dtype).newbyteorder("<"))
    if (small != array).any():
        raise ValueError(f"numbers from {array.min()} to {array.max()} don't fit {np.dtype(dtype)}")
    return {"shape": list(array.shape), "numbers": base64.b64encode(small.tobytes()).decode("ascii")}


def unpacked(data: Mapping[str, Any], dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    content = base64.b64decode(data["numbers"], validate=True)
    return np.frombuffer(content, dtype=np.dtype(dtype).newbyteorder("<")).reshape(data["shape"])
