"""The all-reduce of a number between meshes, in the middle of their executables, on CPU.

XLA calls a function of this process for the custom call, once on each device's thread. The devices of a process meet,
the last one exchanges the number with the other processes by Ray, and all go on with the same result. A call says which
ones of other meshes it belongs to: it has the meshes, and its number in the update, written in it. It takes the result
of the call before it, too, and so comes after it.
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
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": np.add, "AND": np.bitwise_and, "OR": np.bitwise_or, "MIN": np.minimum, "MAX": np.maximum,
}  # fmt: skip
Gather = Callable[[str, str, np.ndarray, str], Sequence[np.ndarray]]


def opaque(operator: str, meshes: str, number: int, dtype: np.dtype[Any]) -> str:
    """What is written in a call: the operator, the meshes, the call's number in the update and the kind of number."""
    return f"{operator};{meshes};{number};{dtype.name}"


class _Meeting:
    """Where the threads of one process's devices wait for each other, again and again."""

    def __init__(self, parties: int) -> None:
        self._parties = parties
        self._condition = threading.Condition()
        self._arrived = self._generation = 0
        self._result: Any = None

    def meet(self, finish: Callable[[], Any]) -> Any:
        """What the last one to come finishes; raises for all what that raises."""
        with self._condition:
            generation = self._generation
            self._arrived += 1
            if self._arrived == self._parties:
                try:
                    self._result = finish()
                except Exception as error:
                    self._result = error
                self._arrived, self._generation = 0, generation + 1
                self._condition.notify_all()
            else:
                self._condition.wait_for(lambda: self._generation > generation)
            if isinstance(self._result, Exception):
                raise self._result
            return self._result


class MeshAllReduce:
    """Answers the custom calls of a process.

    All devices of a mesh have the same number, and it counts once: that of the mesh's first process.

    Args:
        parties: how many devices of this process run each executable.
        first: whether this is the first process of its mesh.
        gather: takes a group's name, a channel's name, this process's number and what errors call it; gives the numbers
            of all processes, in one order for all.
        fail: is told why a call has failed, before its result, which then is invalid, can be seen.
    """

    def __init__(self, parties: int, first: bool, gather: Gather, fail: Callable[[Exception], None]) -> None:
        self._parties, self._first, self._gather, self._fail = parties, first, gather, fail
        self._meetings: dict[str, _Meeting] = {}
        self._lock = threading.Lock()

    def __call__(self, written: str, value: np.ndarray) -> np.ndarray:
        """The number that all devices of all the meshes get."""
        operator, meshes, number, _ = written.split(";")
        with self._lock:
            meeting = self._meetings.setdefault(written, _Meeting(self._parties))
        given = value if self._first or operator != "SUM" else np.zeros_like(value)
        what = f"all-reduce {number} ({operator}) of the update, between meshes {meshes.strip('$').replace('$', ', ')}"

        def finish() -> Any:
            return functools.reduce(_OPERATORS[operator], self._gather(str(meshes.encode()), written, given, what))

        try:
            return np.asarray(meeting.meet(finish), value.dtype)
        except Exception as error:
            self._fail(error)
            raise

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
    except Exception as error:
        # XLA's thread can't be left by an exception: the step's numbers become invalid, and the log says why.
        _logger.error("the all-reduce between meshes '%s' failed: %s", written, error)
        result = np.asarray(np.nan if np.issubdtype(dtype, np.inexact) or dtype.kind == "V" else 0).astype(dtype)
    ctypes.memmove(out, result.tobytes(), dtype.itemsize)


def _partition(
    arg_shapes: Any, arg_shardings: Any, result_shape: Any, result_sharding: Any, written: Any
) -> tuple[bytes, Any, Any]:
    """A partition does the same call as the whole."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    text = written.decode() if isinstance(written, bytes) else written
    with mlir.make_ir_context(), ir.Location.unknown():
        kinds = [str(ir.RankedTensorType.get([], mlir.dtype_to_ir_type(one.numpy_dtype()))) for one in arg_shapes]
        names = [f"%argument{number}" for number in range(len(kinds))]
        typed = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
        module = ir.Module.parse(
            f"func.func public @main({typed}) -> {kinds[0]} {{\n"
            f'%reduced = "stablehlo.custom_call"({", ".join(names)}) {{call_target_name = "{TARGET}", '
            f'has_side_effect = true, backend_config = "{text}", api_version = 3 : i32}} : '
            f"({', '.join(kinds)}) -> {kinds[0]}\nreturn %reduced : {kinds[0]}\n}}"
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
