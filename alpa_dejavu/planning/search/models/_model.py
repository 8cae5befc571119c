"""Writes a model as JSON's data: its layers' operators, of which equal ones are written once, and its tensors."""

from __future__ import annotations

import base64
import dataclasses
import math
import operator
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util import units
from alpa_dejavu._util.file_size import VARIABLE, most_bytes
from alpa_dejavu.problem import Layer, Model, Operator, Operators, Tensor

Data = dict[str, Any]
_PARTS = ("forward", "backward", "update")
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
    """Returns a model's layers and tensors as JSON data, without its sharding."""
    operators, records = Numbered(), Numbered()
    layers = [
        {
            "name": layer.name,
            **{part: operators.number(getattr(layer, part)) for part in _PARTS},
            "temporary_bytes": [layer.forward_temporary_bytes, layer.backward_temporary_bytes],
            "exchanged_bytes": list(layer.exchanged_bytes),
        }
        for layer in model.layers
    ]
    columns = [
        {"records": records.number(rows.records), **{name: getattr(rows, name).tolist() for name in _COLUMNS}}
        for rows in operators.objects
    ]
    distinct: dict[Operator, int] = {}
    numbers = [[distinct.setdefault(record, len(distinct)) for record in rows] for rows in records.objects]
    return {
        "training": model.training,
        "layers": layers,
        "operators": columns,
        "distinct": [[getattr(record, name) for name in _FIGURES] for record in distinct],
        "records": numbers,
        "tensors": [[tensor.num_bytes, tensor.role, tensor.producer, list(tensor.users)] for tensor in model.tensors],
    }


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
        distinct = list(map(_record, data["distinct"]))
        records = [tuple(distinct[number] for number in rows) for rows in data["records"]]
    else:  # as 0.1.0 wrote them: each operator as often as it is used
        records = [tuple(map(_record, rows)) for rows in data["records"]]
    operators = []
    for rows in data["operators"]:
        columns: Data = {name: np.array(rows[name], dtype=_type_of(name)) for name in _COLUMNS}
        operators.append(Operators(records[rows["records"]], **columns))
        length, lengths = len(operators[-1].records), {name: len(column) for name, column in columns.items()}
        if set(lengths.values()) - {length}:
            raise ValueError(f"there are {length} records of operators, but columns of {lengths}")
        for name, column in columns.items():
            if _type_of(name) is np.float64:
                check_figures(name, column, (length,))
    layers = []
    for layer in data["layers"]:
        exchanged = np.array(layer["exchanged_bytes"], np.float64)
        check_figures("exchanged_bytes", exchanged, (exchanged.size,))
        forward, backward, update = (operators[layer[part]] for part in _PARTS)
        forward_bytes, backward_bytes = map(float, layer["temporary_bytes"])
        sizes = forward_bytes, backward_bytes, tuple(exchanged.tolist())
        layers.append(Layer(layer["name"], forward, backward, update, *sizes))
    tensors = tuple(
        Tensor(float(size), role, operator.index(producer), tuple(map(operator.index, users)))
        for size, role, producer, users in data["tensors"]
    )
    if any(tensor.producer < -1 for tensor in tensors):
        raise ValueError("a tensor is made at a position below -1, which is outside")
    return Model(tuple(layers), tensors, bool(data["training"]))


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
    if not len(_FIGURES) - 2 <= len(values) <= len(_FIGURES):  # older ones have no kernel, those of 0.1.0 no by_weight
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
    """Returns the array that `packed` made JSON data of."""
    content = base64.b64decode(data["numbers"], validate=True)
    return np.frombuffer(content, dtype=np.dtype(dtype).newbyteorder("<")).reshape(data["shape"])
