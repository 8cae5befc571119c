"""Message classes of protocol buffers from tables of their fields, without a compiler of .proto files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Fields = Mapping[str, tuple[int, str]]
"""The fields of a message by name, each with its number and its type; a type in brackets is repeated."""
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
    "uint64": _FIELD.TYPE_UINT64,
    "bool": _FIELD.TYPE_BOOL,
    "float": _FIELD.TYPE_FLOAT,
    "double": _FIELD.TYPE_DOUBLE,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}


def message_classes(
    package: str, messages: Mapping[str, Fields], one_of: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Any]:
    """Returns the classes of messages by their names, in protobuf's third syntax. Fields that aren't listed are carried
    through unchanged. Enums travel as int32. A type that is no scalar is the name of another message; `one_of` has for
    messages the fields of which only one is set at a time.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3"
    )
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        alternatives = (one_of or {}).get(message_name, ())
        if alternatives:
            message.oneof_decl.add(name="value")
        for field_name, (number, kind) in fields.items():
            label = _FIELD.LABEL_REPEATED if kind.startswith("[") else _FIELD.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            if field_name in alternatives:
                field.oneof_index = 0
            kind = kind.strip("[]")
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
