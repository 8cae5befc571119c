"""The all-reduce of a number between meshes, in the middle of their executables, on CPU.

XLA calls a function of this process for the custom call, once on each device's thread. The devices of a process meet,
the last one adds their numbers up and exchanges the sum with the other processes by Ray, and all go on with the same
result. Which calls belong together is written in the call: the meshes, and the call's number in its module.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax._src.lib import xla_client as xc

__all__ = ["TARGET", "MeshAllReduce", "opaque", "register_target"]

TARGET = "__builtin$CrossMeshAllReduce"
_logger = logging.getLogger(__name__)
_SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {"SUM": np.add, "AND": np.logical_and, "OR": np.logical_or}
Gather = Callable[[str, str, np.ndarray], Sequence[np.ndarray]]


def opaque(operator: str, meshes: str, number: int, dtype: np.dtype[Any]) -> str:
    """What is written in a call: SUM, AND or OR, the meshes, the call's number in its module and the kind of number."""
    return f"{operator};{meshes};{number};{dtype.name}"


class _Meeting:
    """Where the threads of one process's devices wait for each other, again and again."""

    def __init__(self, parties: int) -> None:
        self._parties = parties
        self._condition = threading.Condition()
        self._values: list[Any] = []
        self._generation = 0
        self._result: Any = None

    def reduce(self, value: Any, finish: Callable[[list[Any]], Any]) -> Any:
        with self._condition:
            generation = self._generation
            self._values.append(value)
            if len(self._values) == self._parties:
                self._result = finish(self._values)
                self._values, self._generation = [], generation + 1
                self._condition.notify_all()
            else:
                self._condition.wait_for(lambda: self._generation > generation)
            return self._result


class MeshAllReduce:
    """Answers the custom calls of a process.

    Args:
        parties: how many devices of this process run each executable.
        gather: takes a group's name, a channel's name and this process's number; gives those of all processes, in one
            order for all.
    """

    def __init__(self, parties: int, gather: Gather) -> None:
        self._parties = parties
        self._gather = gather
        self._meetings: dict[str, _Meeting] = {}
        self._lock = threading.Lock()

    def __call__(self, written: str, value: np.ndarray) -> np.ndarray:
        """The number that all devices of all the meshes get."""
        operator, meshes, *_ = written.split(";")
        with self._lock:
            meeting = self._meetings.setdefault(written, _Meeting(self._parties))
        combine = functools.partial(functools.reduce, _OPERATORS[operator])

        def finish(values: list[Any]) -> Any:
            return combine(self._gather(str(meshes.encode()), written, np.asarray(combine(values), value.dtype)))

        return np.asarray(meeting.reduce(value, finish), value.dtype)

    def install(self) -> None:
        """Makes this the one that the process's executables call."""
        global _answer
        _answer = self


def _unanswered(written: str, value: np.ndarray) -> np.ndarray:
    raise RuntimeError("an all-reduce between meshes needs the workers of a Ray cluster")


_answer: Callable[[str, np.ndarray], np.ndarray] = _unanswered


@_SIGNATURE
def _called_by_xla(out: int, inputs: Any, text: int, length: int, status: int) -> None:
    written = ctypes.string_at(text, length).decode()
    dtype = np.dtype(written.rpartition(";")[2])
    value = np.frombuffer(ctypes.string_at(inputs[0], dtype.itemsize), dtype)[0]
    try:
        result = np.asarray(_answer(written, value), dtype)
    except Exception:
        # XLA's thread can't be left by an exception: the step's numbers become invalid, and the log says why.
        _logger.exception("the all-reduce between meshes '%s' failed", written)
        result = np.asarray(np.nan if dtype.kind == "f" else 0).astype(dtype)
    ctypes.memmove(out, result.tobytes(), dtype.itemsize)


def _partition(
    arg_shapes: Any, arg_shardings: Any, result_shape: Any, result_sharding: Any, written: Any
) -> tuple[bytes, Any, Any]:
    """A partition does the same call as the whole."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    text = written.decode() if isinstance(written, bytes) else written
    element = {"bool": "i1", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}.get(
        text.rpartition(";")[2], text.rpartition(";")[2].replace("int", "i")
    )
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(
            f"func.func public @main(%number: tensor<{element}>) -> tensor<{element}> {{\n"
            f'%reduced = "stablehlo.custom_call"(%number) {{call_target_name = "{TARGET}", has_side_effect = true, '
            f'backend_config = "{text}", api_version = 3 : i32}} : (tensor<{element}>) -> tensor<{element}>\n'
            f"return %reduced : tensor<{element}>\n}}"
        )
        return mlir.module_to_bytecode(module), arg_shardings, result_sharding


def _keep_user_sharding(sharding: Any, shape: Any, written: Any) -> Any:
    return sharding


def _same_sharding(arg_shapes: Any, arg_shardings: Any, shape: Any, written: Any) -> Any:
    return arg_shardings[0]


@functools.cache
def register_target() -> None:
    """Makes the custom call known to XLA's CPU compiler and to its partitioner, once in a process."""
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    pointer = ctypes.cast(_called_by_xla, ctypes.c_void_p)
    xc.register_custom_call_target(TARGET, new_capsule(pointer, b"xla._CUSTOM_CALL_TARGET", None), platform="cpu")
    xc.register_custom_call_partitioner(TARGET, _keep_user_sharding, _partition, _same_sharding, True)
