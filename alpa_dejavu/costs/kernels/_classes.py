"""Generations with unlike tensor cores, and classes of dtypes: kernels of each are fitted by themselves."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import final

from alpa_dejavu._util.json_text import strict_json
from alpa_dejavu.clusters.gpus import Gpu

ASYNCHRONOUS = ("hopper", "blackwell")
"""The generations whose tensor cores compute on tiles in shared memory while other instructions go on; those of earlier
ones, and of Ada, take registers and let them wait."""
SYNCHRONOUS = ("pascal", "volta", "turing", "ampere", "ada", "cdna3")
"""The other generations that data sheets may have; those before Volta have no tensor cores. AMD's CDNA 3 has matrix
cores, which take registers: nothing of it was measured."""
_VECTOR = 1.5
"""How many times faster products are than everything else, at least, where they run on tensor cores."""


def family(generation: str) -> str:
    """Returns whether a generation's tensor cores are "asynchronous" or "synchronous".

    Raises:
        ValueError: the generation is in neither `ASYNCHRONOUS` nor `SYNCHRONOUS`.

    >>> family("hopper"), family("ada")
    ('asynchronous', 'synchronous')
    """
    words = SYNCHRONOUS + ASYNCHRONOUS
    if generation not in words:
        raise ValueError(
            f"generation is {generation!r}, but must be one of {', '.join(words)}; enter a new one in SYNCHRONOUS or "
            f"ASYNCHRONOUS of {Path(__file__).name}"
        )
    return "asynchronous" if generation in ASYNCHRONOUS else "synchronous"


def dtype_class(gpu: Gpu, dtype: str) -> str:
    """Returns the class of a dtype's products on a GPU: "float8" for those of 8 bits or fewer, "half" for all others on
    tensor cores, TF32 included, and "float32" for those on the units that compute everything else.

    >>> from alpa_dejavu.clusters.gpus import gpu_of
    >>> [dtype_class(gpu_of(name), "float32") for name in ("V100-SXM2-16GB", "A100-SXM-80GB")]
    ['float32', 'half']
    """
    if width_bytes(dtype) <= 1:
        return "float8"
    return "half" if matrix_rate(gpu, dtype) > _VECTOR * gpu.vector_flop_per_s else "float32"


def matrix_rate(gpu: Gpu, dtype: str) -> float:
    """Returns a GPU's operations per second of dense products in a dtype, those of "float32" in one that its data sheet
    lacks; "float8" stands for all formats of 8 bits, "float4" for all of 4.
    """
    name = {1.0: "float8", 0.5: "float4"}.get(width_bytes(dtype), dtype)
    return gpu.flop_per_s.get(name, gpu.flop_per_s["float32"])


def width_bytes(dtype: str) -> float:
    """Returns the bytes of a number; 4 for a dtype that isn't known.

    >>> width_bytes("float8_e4m3fn"), width_bytes("bfloat16"), width_bytes("float4")
    (1, 2, 0.5)
    """
    if dtype.startswith("float4"):
        return 0.5
    if dtype.startswith(("float8", "int8", "uint8")):
        return 1
    return {"float64": 8, "float16": 2, "bfloat16": 2}.get(dtype, 4)


IN_STEPS_FILE = Path(__file__).with_name("in_steps.json")
"""The figures, which are fitted to published training steps."""


@final
@dataclasses.dataclass(frozen=True)
class InSteps:
    """Factors on the seconds of kernels in a training step: on products and attention, beside the power limit, since
    caches are busy with other tensors and clocks vary; and a further one on backward passes of attention, of which
    forward passes alone were measured.
    """

    products: float = 1.0
    attention_backward: float = 1.0

    def factor(self, attention_backward: bool) -> float:
        """Returns the factor on the seconds of products or attention."""
        return self.products * (self.attention_backward if attention_backward else 1.0)


@functools.cache
def in_steps() -> InSteps:
    """Returns the package's fitted factors."""
    figures = strict_json(IN_STEPS_FILE.read_text(encoding="utf-8"))["figures"]
    return InSteps(**figures)
