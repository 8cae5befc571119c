"""Operators as the kernels that they are like: products by their shapes, all others by their traffic."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from alpa_dejavu.latency._kernels import Array, DataSheet, Kernels
from alpa_dejavu.problem import Device, Operator, Operators

_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "float8": 1}
_STREAM, _STREAM_BYTES = "relu", 8.0
"""What stands for an operator that streams, and what it moves for each element."""
_MOST_KNOWN = 4096


@final
class OperatorKernels:
    """Kernels of records on devices; what doesn't depend on how the records are divided is computed once."""

    def __init__(self) -> None:
        # By the records' id; the records are kept, so that it stays theirs.
        self._known: dict[tuple[object, ...], tuple[tuple[Operator, ...], Kernels, Array]] = {}

    def of(self, operators: Operators, device: Device, sheet: DataSheet) -> tuple[Kernels, Kernels]:
        """What one device runs, and what it would run if products weren't divided."""
        key = id(operators.records), device.name, *sorted(device.flop_per_s.items())
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = operators.records, *_undivided(operators, device, sheet)
        _, whole, flop = self._known[key]
        product, share = whole.kind == "product", operators.flop / flop
        traffic = operators.read_bytes + operators.written_bytes
        # Of products in a batch each device has some, whole; of others it has some rows.
        batch = np.where(whole.batch > 1, np.maximum(whole.batch * share, 1.0), 1.0)
        divided = dataclasses.replace(
            whole,
            batch=batch,
            m=np.where(product, np.maximum(whole.m * share * whole.batch / batch, 1.0), 1.0),
            n=np.where(product, whole.n, np.maximum(traffic / _STREAM_BYTES, 1.0)),
        )
        return divided, whole


def _undivided(operators: Operators, device: Device, sheet: DataSheet) -> tuple[Kernels, Array]:
    """The records' kernels, and the operations of those that are products (of others 1)."""
    names, rates, widths, sizes, flop = [], [], [], [], []
    for record in operators.records:
        found = record.product_sizes
        product = found is not None
        batch, rows, others, inner = found or (1.0, 1.0, 1.0, 1.0)
        names.append(("linear" if batch == 1 else "bmm") if product else _STREAM)
        rates.append(device.rate(record.dtype if product else "float32"))
        widths.append(_BYTES.get(record.dtype, 4) if product else 4)
        sizes.append((batch, max(rows, 1.0), others, inner))
        flop.append(record.flop if product else 1.0)
    batches, m, n, k = np.array(sizes, dtype=np.float64).T
    rate, narrower = np.array(rates), 4 / np.array(widths, dtype=np.float64)
    of_rate = {each: _sustained(sheet, each) for each in set(rates)}
    same = np.ones(len(names))
    kernels = Kernels(
        op=np.array(names, dtype=np.str_),
        batch=batches,
        m=m,
        n=n,
        k=k,
        gpu=np.zeros(len(names), dtype=np.int64),
        rate=rate,
        sustained=np.array([of_rate[each] for each in rates]),
        # Kernels count four bytes of each number: narrower ones go faster and take less of the cache.
        bandwidth=sheet.memory_bytes_per_s * narrower,
        num_sm=sheet.num_sm * same,
        l2_bytes=sheet.l2_cache_bytes * narrower,
    )
    return kernels, np.array(flop)


def _sustained(sheet: DataSheet, rate: float) -> float:
    """What a rate comes to: a sheet's power is reckoned for single precision; tensor cores take far less."""
    power_w = None if rate > sheet.flop_per_s else sheet.power_w
    return dataclasses.replace(sheet, flop_per_s=rate, power_w=power_w).sustained_flop_per_s
