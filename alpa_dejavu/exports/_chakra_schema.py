"""The messages of Chakra's execution traces, with the field numbers of its `schema/protobuf/et_def.proto`.

Left out are inputs, outputs, storage and lists of attributes. Enums travel as int32.

References:
    MLCommons, Chakra (github.com/mlcommons/chakra), schema 0.0.4, under the MIT licence: Copyright (c) 2023 Georgia
    Institute of Technology; Copyright (c) 2023 Meta Platforms, Inc. and affiliates.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from alpa_dejavu._util.protobuf_messages import Fields, message_classes

_VERSION = "0.0.4"
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
"""The types of nodes."""
COLLECTIVES = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}
"""The types of collectives."""
_VALUES: Fields = {
    "int64_val": (9, "int64"), "uint32_val": (11, "uint32"), "bool_val": (27, "bool"), "string_val": (29, "string"),
}  # fmt: skip
_MESSAGES: dict[str, Fields] = {
    "AttributeProto": {"name": (1, "string"), **_VALUES},
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "[AttributeProto]")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "string"), "type": (3, "int32"), "data_deps": (5, "[uint64]"),
        "duration_micros": (7, "uint64"), "attr": (10, "[AttributeProto]"),
    },
}  # fmt: skip
_CLASSES = message_classes("ChakraProtoMsg", _MESSAGES, {"AttributeProto": tuple(_VALUES)})
_Attribute, _Metadata, _Node = (_CLASSES[name] for name in _MESSAGES)


def metadata() -> bytes:
    """Returns the message that a trace begins with, which says the version of the schema."""
    return delimited(_Metadata(version=_VERSION).SerializeToString())


def node(number: int, name: str, kind: int, waits_for: Iterable[int], micros: int) -> bytes:
    """Returns a node without its attributes, which may follow: messages that are put one behind the other are one."""
    message = _Node(id=number, name=name, type=kind, data_deps=sorted(waits_for), duration_micros=micros)
    return bytes(message.SerializeToString())


@functools.lru_cache(maxsize=4096)
def attributes(**values: bool | int | str) -> bytes:
    """Returns attributes of a node, by their names, as its message has them."""
    messages = [_Attribute(name=name, **{_field(name, value): value}) for name, value in values.items()]
    return bytes(_Node(attr=messages).SerializeToString())


def _field(name: str, value: bool | int | str) -> str:
    if isinstance(value, bool):
        return "bool_val"
    if isinstance(value, str):
        return "string_val"
    return "int64_val" if name in ("comm_size", "comm_type") else "uint32_val"


def delimited(message: bytes) -> bytes:
    """Returns a message with its length in front of it, as a varint."""
    length, left = bytearray(), len(message)
    while left > 0x7F:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    return bytes(length) + message
